"""Writes test/fixtures/gpt2_fp8.safetensors: what a small GPT-2 gives when its linear layers run in FP8.

A simulation with plain PyTorch operations: forward and backward are written out, in float64, with a rounding to BF16 or
FP8 wherever the model that is tested stores a value, and nowhere else. Scales are those of `current` scaling. Without
roundings the same code must give autograd's gradients, which every run checks. See README.md for the contents.
"""
import argparse
import math
import os

import torch
import torch.nn.functional as F

import make_fixture as reference
from make_fixture import BATCH, CHANNELS, CONTEXT, HEADS, LAYERS, LN_EPS, TOKENS, VOCAB

# Chosen, see README.md: of the seeds 1 to 40, eight keep the norms of all 28 gradients within MAX_NORM_ERROR, and of
# those this one changes least when all products change by 1e-7.
SEED = 28
MAX_BYTES = 1_500_000
MIN_COSINE, MAX_NORM_ERROR = 0.99, 0.02  # what the test asks of every gradient
OUTPUT = os.path.join(reference.HERE, "..", "..", "test", "fixtures", "gpt2_fp8.safetensors")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HEAD_DIM = CHANNELS // HEADS
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def initial_weights():
    """Statistics of a young GPT-2: small weights, smaller projections into the residual stream. Values fit bfloat16."""
    generator = torch.Generator().manual_seed(SEED)
    C, weights = CHANNELS, {}

    def add(name, shape, std, mean=0.0):
        values = mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)
        weights[name] = values.to(torch.float32).to(torch.bfloat16).to(torch.float64)

    add("wte", (VOCAB, C), 0.1)
    add("wpe", (CONTEXT, C), 0.05)
    for layer in range(LAYERS):
        for name, shape, std, mean in [
            ("ln1", (C,), 0.1, 1.0), ("qkv", (3 * C, C), 0.05, 0.0), ("attn_proj", (C, C), 0.02, 0.0),
            ("ln2", (C,), 0.1, 1.0), ("fc", (4 * C, C), 0.05, 0.0), ("fc_proj", (C, 4 * C), 0.02, 0.0),
        ]:
            add(f"h.{layer}.{name}.weight", shape, std, mean)
            add(f"h.{layer}.{name}.bias", shape[:1], 0.02)
    add("lnf.weight", (C,), 0.1, 1.0)
    add("lnf.bias", (C,), 0.02)
    return weights


# ---- roundings -----------------------------------------------------------------------------------------------------


class Exact:
    """No rounding."""

    def bf16(self, x):
        return x

    def bf16_pair(self, x):
        return x

    def quantize(self, x, tensor):
        return x


class Fp8:
    """BF16 and FP8, with the scales that were used. `gradients`: the format of tensors named *.dout."""

    def __init__(self, gradients):
        self.gradients = gradients
        self.scales = {}

    def bf16(self, x):
        return x.to(torch.float32).to(torch.bfloat16).to(torch.float64)

    def bf16_pair(self, x):
        """x as a BF16 number and a second one that holds what the first cut off."""
        high = self.bf16(x)
        return high + self.bf16(x - high)

    def quantize(self, x, tensor):
        """x through FP8 and back, saturating, with the scale that takes its largest magnitude to the format's."""
        dtype = self.gradients if tensor.endswith(".dout") else E4M3
        largest = torch.finfo(dtype).max
        single = x.to(torch.float32)
        scale = torch.tensor(largest, dtype=torch.float32) / single.abs().max()
        self.scales[tensor] = scale
        codes = (single * scale).clamp(-largest, largest).to(dtype)
        return codes.to(torch.float64) * (1 / scale).to(torch.float64)


# ---- the parts of the model; each forward returns what its backward needs --------------------------------------------


def norm(w, name, x):
    centered = x - x.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((centered * centered).mean(-1, keepdim=True) + LN_EPS)
    normed = centered * rstd
    return normed * w[name + ".weight"] + w[name + ".bias"], (normed, rstd)


def norm_backward(w, gradients, name, saved, dout):
    normed, rstd = saved
    gradients[name + ".weight"] = (dout * normed).sum(0)
    gradients[name + ".bias"] = dout.sum(0)
    d = dout * w[name + ".weight"]
    return rstd * (d - d.mean(-1, keepdim=True) - normed * (d * normed).mean(-1, keepdim=True))


def linear(rounding, w, name, x):
    """Both operands in FP8; rounded once, after the bias."""
    operands = rounding.quantize(x, name + ".x"), rounding.quantize(w[name + ".weight"], name + ".w")
    return rounding.bf16(operands[0] @ operands[1].T + w[name + ".bias"]), operands


def linear_backward(rounding, gradients, name, operands, dout):
    gradients[name + ".bias"] = dout.sum(0)  # of the values before they are quantized
    quantized = rounding.quantize(dout, name + ".dout")
    gradients[name + ".weight"] = quantized.T @ operands[0]
    return rounding.bf16(quantized @ operands[1])


def split_heads(x):
    """(N, C) -> (B, NH, T, HD)"""
    return x.view(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).reshape(BATCH * TOKENS, CHANNELS)


def attention(rounding, qkv):
    """Products of BF16 values. The weights are rounded relative to the row's largest, before the division by their sum,
    which is that of the rounded ones; the backward makes unrounded probabilities from the scores and lse."""
    q, k, v = (split_heads(part) for part in qkv.split(CHANNELS, dim=-1))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)).masked_fill(~CAUSAL, -math.inf)
    weights = rounding.bf16(torch.exp(scores - scores.amax(-1, keepdim=True)))
    out = rounding.bf16_pair(weights @ v / weights.sum(-1, keepdim=True))
    return join_heads(out), (q, k, v, scores.softmax(-1), out)


def attention_backward(rounding, saved, dout):
    q, k, v, probabilities, out = saved
    dout = split_heads(dout)
    delta = (dout * out).sum(-1, keepdim=True)
    dscores = rounding.bf16(probabilities * (dout @ v.transpose(-1, -2) - delta))
    dq = dscores @ k / math.sqrt(HEAD_DIM)
    dk = dscores.transpose(-1, -2) @ q / math.sqrt(HEAD_DIM)
    dv = rounding.bf16(probabilities).transpose(-1, -2) @ dout
    return rounding.bf16(torch.cat([join_heads(part) for part in (dq, dk, dv)], dim=-1))


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_derivative(x):
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


# ---- the model -----------------------------------------------------------------------------------------------------


def loss_and_gradients(rounding, w, tokens):
    """tokens (B, T + 1) -> mean cross-entropy and the gradients of all weights"""
    inputs, targets, gradients = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1), {}
    positions = torch.arange(TOKENS).repeat(BATCH)

    hidden = rounding.bf16(w["wte"][inputs] + w["wpe"][positions])
    saved = []
    for h in (f"h.{layer}." for layer in range(LAYERS)):
        s = {}
        normed, s["ln1"] = norm(w, h + "ln1", hidden)  # not rounded: quantized as computed
        qkv, s["qkv"] = linear(rounding, w, h + "qkv", normed)
        attended, s["attention"] = attention(rounding, qkv)
        branch, s["attn_proj"] = linear(rounding, w, h + "attn_proj", attended)
        hidden = rounding.bf16(hidden + branch)
        normed, s["ln2"] = norm(w, h + "ln2", hidden)
        s["gelu"], s["fc"] = linear(rounding, w, h + "fc", normed)
        branch, s["fc_proj"] = linear(rounding, w, h + "fc_proj", gelu(s["gelu"]))
        hidden = rounding.bf16(hidden + branch)
        saved.append(s)
    normed, lnf = norm(w, "lnf", hidden)
    final = rounding.bf16(normed)
    logits = rounding.bf16(final @ w["wte"].T)
    loss = F.cross_entropy(logits, targets).item()

    dlogits = rounding.bf16((logits.softmax(-1) - F.one_hot(targets, VOCAB)) / len(targets))
    gradients["wte"] = dlogits.T @ final
    dhidden = rounding.bf16(norm_backward(w, gradients, "lnf", lnf, rounding.bf16(dlogits @ w["wte"])))
    for layer in reversed(range(LAYERS)):
        h, s = f"h.{layer}.", saved[layer]
        dbranch = linear_backward(rounding, gradients, h + "fc_proj", s["fc_proj"], dhidden)
        dbranch = dbranch * gelu_derivative(s["gelu"])  # not rounded: quantized as computed
        dbranch = linear_backward(rounding, gradients, h + "fc", s["fc"], dbranch)
        dhidden = rounding.bf16(dhidden + norm_backward(w, gradients, h + "ln2", s["ln2"], dbranch))
        dbranch = linear_backward(rounding, gradients, h + "attn_proj", s["attn_proj"], dhidden)
        dbranch = attention_backward(rounding, s["attention"], dbranch)
        dbranch = linear_backward(rounding, gradients, h + "qkv", s["qkv"], dbranch)
        dhidden = rounding.bf16(dhidden + norm_backward(w, gradients, h + "ln1", s["ln1"], dbranch))
    gradients["wte"].index_add_(0, inputs, dhidden)
    gradients["wpe"] = torch.zeros_like(w["wpe"]).index_add_(0, positions, dhidden)
    return loss, gradients


def check_backward(weights, tokens, loss64, gradients64):
    loss, gradients = loss_and_gradients(Exact(), weights, tokens)
    assert abs(loss / loss64 - 1) < 1e-12 and gradients.keys() == gradients64.keys()
    for name, g in gradients64.items():
        error = (gradients[name] - g).norm().item() / g.norm().item()
        assert error < 1e-11, f"{name}: without roundings the gradient is off by {error}"


def compare(gradients64, fp8, fp8_e4m3):
    """How far FP8 takes the gradients from the exact ones, and the two formats of dout from each other."""
    print(f"{'gradient of':22s} {'norm':>10s} {'cosine':>8s} {'norm ratio':>10s} {'E4M3: cos':>10s} {'E4M3-E5M2':>10s}")
    for name, g in sorted(gradients64.items()):
        def cosine(other):
            return (other * g).sum().item() / (other.norm() * g.norm()).item()
        ratio = (fp8[name].norm() / g.norm()).item()
        apart = ((fp8[name] - fp8_e4m3[name]).norm() / fp8[name].norm()).item()
        print(f"{name:22s} {g.norm():10.2e} {cosine(fp8[name]):8.5f} {ratio:10.5f} {cosine(fp8_e4m3[name]):10.5f} "
              f"{apart:10.1e}")
        assert cosine(fp8[name]) > MIN_COSINE and abs(ratio - 1) < MAX_NORM_ERROR, f"{name}: FP8 is too far off"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)  # one summation order

    weights, tokens = initial_weights(), reference.make_tokens()[:1]
    loss64, gradients64 = reference.loss_and_gradients(weights, tokens[0])
    check_backward(weights, tokens[0], loss64, gradients64)
    e5m2, e4m3 = Fp8(E5M2), Fp8(E4M3)
    loss_fp8, fp8 = loss_and_gradients(e5m2, weights, tokens[0])
    loss_e4m3, fp8_e4m3 = loss_and_gradients(e4m3, weights, tokens[0])
    assert loss_e4m3 == loss_fp8  # the forward knows nothing of dout's format
    compare(gradients64, fp8, fp8_e4m3)
    print(f"loss {loss64:.8f}, in FP8 {loss_fp8:.8f}")

    tensors = {name: value.to(torch.bfloat16) for name, value in weights.items()}
    tensors |= {"grad64." + name: value.to(torch.float32) for name, value in gradients64.items()}
    tensors |= {"grad_fp8." + name: value.to(torch.float32) for name, value in fp8.items()}
    # Every error of dout reaches the first block; the second one's weights would only make the file too large.
    tensors |= {f"grad_fp8_e4m3.{name}": value.to(torch.float32) for name, value in fp8_e4m3.items()
                if name.startswith("h.0.") and value.dim() == 2}
    tensors |= {"scale." + name: value for name, value in e5m2.scales.items()}
    tensors |= {"scale_e4m3." + name: value for name, value in e4m3.scales.items() if name.endswith(".dout")}
    tensors["tokens"] = tokens.to(torch.int32)
    tensors["loss64"] = torch.tensor(loss64, dtype=torch.float64)
    tensors["loss_fp8"] = torch.tensor(loss_fp8, dtype=torch.float64)
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    numbers = dict(layers=LAYERS, channels=CHANNELS, heads=HEADS, vocab=VOCAB, context=CONTEXT, batch=BATCH,
                   seq=TOKENS, layernorm_eps=LN_EPS, seed=SEED)
    size = reference.write_sorted(options.out, tensors, {key: str(value) for key, value in numbers.items()})
    assert size < MAX_BYTES, f"{size} bytes are too many for a file kept in the repository"
    print(f"wrote {os.path.relpath(options.out)}: {len(tensors)} tensors, {size} bytes")


if __name__ == "__main__":
    main()
