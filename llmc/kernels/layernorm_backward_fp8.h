// Layer norm backward, fused with the residual's gradient and with the quantization of what it gives: the gradient of
// the residual stream is also that of the linear layer's output that was added to it last.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

constexpr int kWidestFusedGradient = 4096;

// dinp = dresidual + gradient of the layer norm's input, rounded to BF16, and the rounded values quantized to `out`.
//
// Shapes, optional arguments and results as layernorm_backward<bf16> (layernorm.h), with scratch of
// layernorm_backward_fp8_scratch(N, C) floats. N % 16 == 0, C % 16 == 0 and C <= kWidestFusedGradient; conventions for
// `out` and `pass`: see quantize.h.
//
// dinp is part of a chain, so this runs once: pass `train` or `train_counted` writes everything; `measure` writes dinp,
// dweight, dshift and the state's amax_now and bad, and quantize() turns dinp into FP8 afterwards. No other pass.
//
// bias_parts, layernorm_backward_fp8_bias_parts(N, C) floats: partial sums of dinp over rows, except in pass `measure`;
// finish_bias_gradient() adds them up where the linear layer's gradient is wanted. May be nullptr.
//
// A block takes 32 rows (16 if C > 2048) at a time, 4 of them in registers; their codes pass through shared memory to
// leave transposed too. Moves 10 bytes an element with dresidual, 8 without (8 and 6 in pass `measure`). Deterministic.
template <class F8>
void layernorm_backward_fp8(const Quantized<F8>& out, float* bias_parts, bf16* dinp, const bf16* dresidual,
                            float* dweight, float* dshift, float* scratch, const bf16* dout, const bf16* inp,
                            const bf16* weight, const float* mean, const float* rstd, int N, int C, bool accumulate,
                            QuantizePass pass, stream_t stream);
size_t layernorm_backward_fp8_scratch(int N, int C);
size_t layernorm_backward_fp8_bias_parts(int N, int C);

// dbias (C) = sums over rows of dinp, added to dbias when `accumulate`.
void finish_bias_gradient(float* dbias, const float* bias_parts, int N, int C, bool accumulate, stream_t stream);

}  // namespace llmc
