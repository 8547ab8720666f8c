// RMS norm fused with the quantization of what it gives, forward and backward.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

// What rmsnorm_forward<bf16> (rmsnorm.h) and quantize() of its output write, byte for byte: residual, rstd and `out`.
// N % 16 == 0 and C % 16 == 0; the rest as layernorm_forward_fp8 (layernorm_fp8.h), whose kernel it is.
void rmsnorm_forward_fp8(const Quantized<e4m3>& out, float* rstd, bf16* residual, const bf16* inp1, const bf16* inp2,
                         const bf16* weight, int N, int C, float eps, QuantizePass pass, stream_t stream);

// What rmsnorm_backward<bf16> computes, to the last bits of FP32; `out` is dinp as rounded to BF16, byte by byte.
// weight, dweight and scratch, of rmsnorm_backward_fp8_scratch(N, C) floats, are nullptr together. N % 16 == 0, C % 16
// == 0 and C <= kWidestFusedGradient (layernorm_backward_fp8.h, whose kernel it is); passes `train`, `train_counted`,
// `measure`.
template <class F8>
void rmsnorm_backward_fp8(const Quantized<F8>& out, bf16* dinp, const bf16* dresidual, float* dweight, float* scratch,
                          const bf16* dout, const bf16* inp, const bf16* weight, const float* rstd, int N, int C,
                          bool accumulate, QuantizePass pass, stream_t stream);
size_t rmsnorm_backward_fp8_scratch(int N, int C);

}  // namespace llmc
