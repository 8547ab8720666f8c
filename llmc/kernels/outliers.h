// What shows that outliers are coming: the kurtosis of activations, and how far a gated MLP's gate and up are aligned.
// And how far what was made in FP8 is from the same in BF16. For records alone, so that none is fused into anything.
//
// Llama's FP8 training under delayed scaling ran well for 200 billion tokens, until rows of gate and of up had become
// parallel, so that SwiGLU's output grew with the square of its input (arXiv 2409.12517, section 4); kurtosis grew long
// before losses did (2505.20524, section 3).
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// sums[0..2] += n, sum of x^2, sum of x^4, where x = values[i], times state->scale_inv where there is a state. In FP64,
// in which the powers of single values are exact, in an order that depends on n alone. n is a multiple of 8, values are
// 16-byte aligned (codes 8-byte), parts: moment_parts(n) doubles, contents irrelevant. Reads each value once.
template <class T>  // e4m3, with its state, or bf16
void add_moments(double* sums, double* parts, const T* values, size_t n, const Fp8State* state, stream_t stream);
size_t moment_parts(size_t n);

// sums[0..2] += n, sum of (actual[i] - expected[i])^2, sum of expected[i]^2: as add_moments(), with its parts. Reads
// both once.
template <class T>  // bf16 or float
void add_differences(double* sums, double* parts, const T* actual, const T* expected, size_t n, stream_t stream);

// alignment = {mean, largest} of |cos(gate[c], up[c])| over c < F, where weight (2F, C) = F rows of gate, then F of up;
// a row of zeros is aligned with nothing: 0. C % 8 == 0. Codes with one scale do not need it. cosines: F floats,
// contents irrelevant. FP32 sums in a fixed order, FP64 for the mean. Reads the weight once.
template <class T>  // e4m3, bf16 or float
void gate_alignment(float* alignment, float* cosines, const T* weight, int F, int C, stream_t stream);

}  // namespace llmc
