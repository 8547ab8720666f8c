// Channels of SwiGLU's output brought nearer to each other before they are cast to FP8 with one scale (Smooth-SwiGLU,
// arXiv 2409.12517): channel c is divided by a factor, the weight that multiplies it is multiplied by it. Factors are
// powers of two, so that nothing is rounded where nothing leaves the range of its format.
#pragma once
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// values[n][c] *= factors[c], or /= with `divide`, in place: (N, C) bf16 or float, C % 8 == 0, 16-byte aligned; factors
// (C) are powers of two. amax (C), if not nullptr: raised to the largest finite |values[n][c]| of before. Moves
// 2 sizeof(Real) bytes an element. Deterministic: the maxima are of integers.
template <class Real>
void scale_columns(Real* values, float* amax, const float* factors, bool divide, int N, int C, stream_t stream);

constexpr int kMostSmoothing = 20;  // factors are 2^0 to 2^-20

// Of each layer: factors (C) from its channels' amax (C), which become 0. With e(c) the exponent of amax[c], E the
// largest of them and M that which half of the channels reach, 0 left out:
//
//   factors[c] = 2^-floor((E - max(e(c), M)) / 2), not below 2^-20
//
// So an outlier's distance to the others is shared out: half of it stays between the channels, the other half goes to
// the weight's columns; an E4M3 number keeps its relative precision over 2^15, and each side then needs half of that.
// Quiet channels are treated like those in the middle, for they may speak up. No channel comes to have a larger
// exponent than E, and no weight grows: the scales that both had stay as they are. Without an amax factors stay.
void smoothing_factors(float* factors, float* amax, int layers, int C, stream_t stream);

}  // namespace llmc
