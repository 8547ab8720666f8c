// Layer norm, forward fused with the residual add before it, and backward fused with the residual's gradient.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// residual = inp1 + inp2
// normed   = (residual - mean) * rstd * weight + shift,   rstd = 1 / sqrt(variance + 1e-5)
//
//   inp1, inp2, residual, normed  (N, C) Real, float or bf16; N >= 1, C % 8 == 0, C <= 12288
//   weight, shift                 (C) Real
//   mean, rstd                    (N) float; both nullptr when no backward follows
//
// inp2 == nullptr: layer norm of inp1; residual must be nullptr. The statistics are those of the rounded
// residual, so that layer norm of the stored residual repeats the same bits (recomputation). residual and normed may
// be inp1 or inp2 (not each other).
//
// A row stays in the registers of one warp (C <= 2048) or of the block: one read, two-pass statistics. Moves
// 4 sizeof(Real) bytes an element with the add (8C a row in bf16), 2 sizeof(Real) without (4C).
template <class Real>
void layernorm_forward(Real* normed, float* mean, float* rstd, Real* residual, const Real* inp1, const Real* inp2,
                       const Real* weight, const Real* shift, int N, int C, stream_t stream);

// dinp = dresidual + gradient of layernorm_forward's residual (= of inp1 and inp2).
//
//   dinp, dresidual, dout, inp  (N, C) Real; inp is the residual that was normalised. dresidual may be nullptr (0);
//                               dinp may be dresidual or dout
//   weight (C) Real; mean, rstd (N) float from the forward
//   dweight, dshift (C) float: overwritten, or added to when `accumulate`
//   scratch layernorm_backward_scratch(N, C) floats, contents irrelevant
//
// Blocks walk over rows and keep the columns' sums in registers; a second kernel adds the blocks' sums in order. The
// number of blocks depends on N and C alone: the same bits on every card. Moves 4 sizeof(Real) bytes an element
// (8C a row in bf16; 6C without dresidual). Design after TransformerEngine's ln_bwd.
template <class Real>
void layernorm_backward(Real* dinp, const Real* dresidual, float* dweight, float* dshift, float* scratch,
                        const Real* dout, const Real* inp, const Real* weight, const float* mean, const float* rstd,
                        int N, int C, bool accumulate, stream_t stream);
size_t layernorm_backward_scratch(int N, int C);

}  // namespace llmc
