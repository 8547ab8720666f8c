// GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), forward and backward.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out = gelu(inp), n elements, n % 8 == 0. out may be inp. Real is float or bf16; moves 2 sizeof(Real) bytes an element
// (4 in bf16).
template <class Real>
void gelu_forward(Real* out, const Real* inp, size_t n, stream_t stream);

// dinp = dout * gelu'(inp), and the gradient of the bias that was added to inp:
// dbias[c] = sum over n of the FP32 values before they are rounded to dinp; added to dbias when `accumulate`.
//
//   dinp, dout, inp (N, C) Real; dinp may be dout (or inp). N >= 1, C % 8 == 0
//   dbias           (C) float; nullptr: not wanted
//   scratch         gelu_backward_scratch(N, C) floats, contents irrelevant
//
// Moves 3 sizeof(Real) bytes an element (6 in bf16): the bias gradient costs no pass of its own. Deterministic
// (llmc/kernels/column_sums.cuh).
template <class Real>
void gelu_backward(Real* dinp, float* dbias, float* scratch, const Real* dout, const Real* inp, int N, int C,
                   bool accumulate, stream_t stream);
size_t gelu_backward_scratch(int N, int C);

}  // namespace llmc
