// Layer norm forward, fused with the residual add before it and with the quantization of what it gives.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

// residual = inp1 + inp2
// x        = (residual - mean) * rstd * weight + shift, in FP32, quantized to `out`
//
// Shapes, optional arguments and statistics as layernorm_forward<bf16> (layernorm.h): the same bits in residual, mean
// and rstd. N % 16 == 0 and C % 16 == 0; conventions for `out` and `pass`: see quantize.h.
//
// Pass `measure` writes neither residual nor `out`: a second pass finds its inputs unchanged even where residual is
// inp1 or inp2. It does write mean and rstd.
//
// Rows stay in registers from the first read to the cast; a block's rows of codes pass through shared memory to leave
// transposed too. Moves 8 bytes an element with the add, 4 without (4 and 2 in pass `measure`).
void layernorm_forward_fp8(const Quantized<e4m3>& out, float* mean, float* rstd, bf16* residual, const bf16* inp1,
                           const bf16* inp2, const bf16* weight, const bf16* shift, int N, int C, QuantizePass pass,
                           stream_t stream);

}  // namespace llmc
