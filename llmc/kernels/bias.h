// A bias, for products whose epilogue does not add it, and its gradient: column sums of the gradient that reached it.
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
// Moves 2 * sizeof(Real) bytes an element. An epilogue adds to the unrounded sum: in bf16, `out` is rounded once more
// here.
template <class Real>
void add_bias(Real* out, const Real* bias, int N, int OC, stream_t stream);

// dbias[c] = sum over n of dout[n][c]; added to dbias when `accumulate`.
//
//   dout    (N, C) Real, float or bf16; N >= 1, C % 8 == 0
//   dbias   (C) float
//   scratch bias_gradient_scratch(N, C) floats, contents irrelevant
//
// Reads sizeof(Real) bytes an element (2C a row in bf16). Deterministic: fixed order, the same bits on every card
// (llmc/kernels/column_sums.cuh).
template <class Real>
void bias_gradient(float* dbias, float* scratch, const Real* dout, int N, int C, bool accumulate, stream_t stream);
size_t bias_gradient_scratch(int N, int C);

}  // namespace llmc
