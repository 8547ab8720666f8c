// The gradient of a bias: column sums of the output gradient. A product's epilogue adds the bias itself.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"

namespace llmc {

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
