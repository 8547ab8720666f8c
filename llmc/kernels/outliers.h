// Outliers: kernels that measure them, and Smooth-SwiGLU, which brings the channels of SwiGLU's output nearer to each
// other.
//
// Llama's FP8 training under delayed scaling ran well for 200 billion tokens, until rows of gate and of up had become
// parallel and SwiGLU's output grew with the square of its input (arXiv 2409.12517, section 4). Kurtosis grew long
// before losses did (arXiv 2505.20524, section 3).
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// ---- signs of outliers: for records only, so none of these kernels is fused with another ---------------------------

// sums[0..2] += n, sum of x^2, sum of x^4, where x = values[i], times state->scale_inv if there is a state. Sums are in
// FP64, where the powers of single values are exact, in an order that depends on n alone. n is a multiple of 8. Values
// are 16-byte aligned (codes 8-byte). parts: moment_parts(n) doubles, contents irrelevant. Reads each value once.
template <class T>  // e4m3, with its state, or bf16
void add_moments(double* sums, double* parts, const T* values, size_t n, const Fp8State* state, stream_t stream);
size_t moment_parts(size_t n);

// sums[0..2] += n, sum of (actual[i] - expected[i])^2, sum of expected[i]^2; otherwise as add_moments(), with its
// parts. Reads both arrays once.
template <class T>  // bf16 or float
void add_differences(double* sums, double* parts, const T* actual, const T* expected, size_t n, stream_t stream);

// alignment = {mean, largest} of |cos(gate[c], up[c])| over c < F, where weight (2F, C) has F rows of gate, then F of
// up. A row of zeros counts as not aligned: 0. C % 8 == 0. Codes with one scale are used as they are, because a common
// factor does not change an angle. cosines: F floats, contents irrelevant. FP32 sums in a fixed order, FP64 for the
// mean. Reads the weight once.
template <class T>  // e4m3, bf16 or float
void gate_alignment(float* alignment, float* cosines, const T* weight, int F, int C, stream_t stream);

// ---- Smooth-SwiGLU (arXiv 2409.12517) ------------------------------------------------------------------------------
//
// Before the cast to FP8 with one scale, channel c is divided by a factor, and the weights that multiply it are
// multiplied by the same factor. Factors are powers of two, so nothing is rounded unless a value leaves the range of
// its format.

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
