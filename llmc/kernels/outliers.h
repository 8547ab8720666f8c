// Signs of coming outliers: the kurtosis of activations, and how far a gated MLP's gate and up are aligned; and how far
// an FP8 result is from its BF16 counterpart. These kernels serve records only, so none is fused with another.
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

}  // namespace llmc
