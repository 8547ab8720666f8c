"""A linear layer of PyTorch whose three matmuls are FP8, so that part 8 compares FP8 with FP8: E4M3 inputs and weights,
E5M2 output gradients, one scale per tensor from its present maximum, which is what torchao calls tensorwise (fast
accumulation forward, as there). Results are BF16.
"""

import torch
from torch import nn


def quantize(values, kind):
    """Codes of `values`, and the factor by which they must be multiplied."""
    scale = torch.finfo(kind).max / values.abs().amax().float().clamp(min=1e-12)
    return (values.float() * scale).to(kind), scale.reciprocal()


def columns_of(codes):
    """The same matrix, stored column by column, as torch._scaled_mm wants its second operand."""
    return codes.t().contiguous().t()


class Fp8Product(torch.autograd.Function):
    """x (N, C) times the transpose of weight (OC, C)."""

    @staticmethod
    def forward(ctx, x, weight):
        x_codes, x_factor = quantize(x, torch.float8_e4m3fn)
        w_codes, w_factor = quantize(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x_codes, x_factor, w_codes, w_factor)
        return torch._scaled_mm(x_codes, w_codes.t(), scale_a=x_factor, scale_b=w_factor, out_dtype=torch.bfloat16,
                                use_fast_accum=True)

    @staticmethod
    def backward(ctx, dout):
        x_codes, x_factor, w_codes, w_factor = ctx.saved_tensors
        codes, factor = quantize(dout, torch.float8_e5m2)
        dx = torch._scaled_mm(codes, columns_of(w_codes), scale_a=factor, scale_b=w_factor, out_dtype=torch.bfloat16)
        dweight = torch._scaled_mm(codes.t().contiguous(), columns_of(x_codes), scale_a=factor, scale_b=x_factor,
                                   out_dtype=torch.bfloat16)
        return dx, dweight


class Fp8Linear(nn.Linear):
    def forward(self, x):
        weight = self.weight.bfloat16()
        out = Fp8Product.apply(x.reshape(-1, self.in_features).bfloat16(), weight)
        return (out + self.bias.bfloat16()).view(*x.shape[:-1], self.out_features)
