// Brings the channels of SwiGLU's output nearer to each other before they are cast to FP8 with one scale
// (Smooth-SwiGLU, arXiv 2409.12517). Channel c is divided by a factor, and the weights that multiply it are multiplied
// by the same factor. Factors are powers of two, so nothing is rounded unless a value leaves the range of its format.
#pragma once
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// values[n][c] *= factors[c], or /= with `divide`, in place: (N, C) bf16 or float, C % 8 == 0, 16-byte aligned. factors
// (C) are powers of two. amax (C), unless nullptr, is raised to the largest finite |values[n][c]| before the change.
// Moves 2 sizeof(Real) bytes per element. Deterministic: the maxima are those of integers.
template <class Real>
void scale_columns(Real* values, float* amax, const float* factors, bool divide, int N, int C, stream_t stream);

constexpr int kMostSmoothing = 20;  // factors are 2^0 to 2^-20

// For each layer, computes factors (C) from its channels' amax (C), and sets the amax to 0. Let e(c) be the exponent of
// amax[c], E the largest exponent, and M the exponent that half of the channels reach, not counting channels of 0:
//
//   factors[c] = 2^-floor((E - max(e(c), M)) / 2), not below 2^-20
//
// So an outlier's distance to the others is split: half of it stays between the channels, and the other half goes to
// the weight's columns. An E4M3 number keeps its relative precision over 2^15, and each side then needs half of that
// range. Quiet channels are treated like those in the middle, because they may grow later. No channel gets a larger
// exponent than E, and no weight grows, so the scales that both had stay as they are. Without an amax, factors stay.
void smoothing_factors(float* factors, float* amax, int layers, int C, stream_t stream);

}  // namespace llmc
