// ReLU squared (arXiv 2109.08668): max(x, 0)^2, forward and backward.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out = max(inp, 0)^2, n elements, n % 8 == 0. out may be inp. Real is float or bf16; moves 2 sizeof(Real) bytes an
// element (4 in bf16).
template <class Real>
void relu2_forward(Real* out, const Real* inp, size_t n, stream_t stream);

// dinp = dout * 2 max(inp, 0), n elements. dinp may be dout or inp. Moves 3 sizeof(Real) bytes an element (6 in bf16).
template <class Real>
void relu2_backward(Real* dinp, const Real* dout, const Real* inp, size_t n, stream_t stream);

}  // namespace llmc
