// RMS norm (arXiv 1910.07467), forward fused with the residual add before it, and backward fused with the residual's
// gradient.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// residual = inp1 + inp2
// normed   = residual * rstd * weight,   rstd = 1 / sqrt(mean(residual^2) + eps)
//
//   inp1, inp2, residual, normed  (N, C) Real, float or bf16; N >= 1, C % 8 == 0, C <= 12288
//   weight                        (C) Real; nullptr: 1
//   rstd                          (N) float; nullptr when no backward follows
//
// inp2 == nullptr: RMS norm of inp1; residual must be nullptr. rstd is that of the rounded residual, so that RMS norm
// of the stored residual repeats the same bits (recomputation). residual and normed may be inp1 or inp2 (not each
// other). Rounded once, from FP32.
//
// The kernel is layer norm's (layernorm.h), and moves as many bytes.
template <class Real>
void rmsnorm_forward(Real* normed, float* rstd, Real* residual, const Real* inp1, const Real* inp2, const Real* weight,
                     int N, int C, float eps, stream_t stream);

// dinp = dresidual + gradient of rmsnorm_forward's residual (= of inp1 and inp2).
//
//   dinp, dresidual, dout, inp  (N, C) Real; inp is the residual that was normalised. dresidual may be nullptr (0);
//                               dinp may be dresidual or dout
//   weight (C) Real and dweight (C) float go together, nullptr: without weight; rstd (N) float from the forward
//   dweight is overwritten, or added to when `accumulate`
//   scratch rmsnorm_backward_scratch(N, C) floats, contents irrelevant; nullptr without weight
template <class Real>
void rmsnorm_backward(Real* dinp, const Real* dresidual, float* dweight, float* scratch, const Real* dout,
                      const Real* inp, const Real* weight, const float* rstd, int N, int C, bool accumulate,
                      stream_t stream);
size_t rmsnorm_backward_scratch(int N, int C);

}  // namespace llmc
