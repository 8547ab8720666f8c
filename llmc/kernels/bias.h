// Adds a bias, for products whose epilogue does not, and computes its gradient: column sums of the output gradient.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out[n][c] += bias[c], in FP32 and rounded once.
//
//   out  (N, OC) Real, float or bf16; N >= 1, OC % 8 == 0
//   bias (OC) Real
//
// Moves 2 * sizeof(Real) bytes per element. An epilogue adds to the unrounded sum, so in bf16 this `out` is rounded
// once more than an epilogue's.
template <class Real>
void add_bias(Real* out, const Real* bias, int N, int OC, stream_t stream);

// dbias[c] = sum over n of dout[n][c]; added to dbias if `accumulate`.
//
//   dout    (N, C) Real, float or bf16; N >= 1, C % 8 == 0
//   dbias   (C) float
//   scratch bias_gradient_scratch(N, C) floats, contents irrelevant
//
// Reads sizeof(Real) bytes per element (2C per row in bf16). Deterministic: a fixed order, with the same bits on every
// card (column_sums.cuh).
template <class Real>
void bias_gradient(float* dbias, float* scratch, const Real* dout, int N, int C, bool accumulate, stream_t stream);
size_t bias_gradient_scratch(int N, int C);

}  // namespace llmc
