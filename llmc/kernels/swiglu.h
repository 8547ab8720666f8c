// SwiGLU (arXiv 2002.05202): silu(gate) * up, forward and backward, of a product that writes gate and up side by side.
#pragma once
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out = silu(gate) * up,   silu(x) = x / (1 + exp(-x))
//
//   inp (N, 2F) Real, float or bf16: each row F of gate, then F of up;   out (N, F) Real;   N >= 1, F % 8 == 0
//
// Moves 3 sizeof(Real) bytes an element of out (6 in bf16).
template <class Real>
void swiglu_forward(Real* out, const Real* inp, int N, int F, stream_t stream);

// dinp = [dgate | dup]:   dgate = dout * up * silu'(gate),   dup = dout * silu(gate)
//
//   dout (N, F), inp, dinp (N, 2F); dinp may be inp. Moves 5 sizeof(Real) bytes an element of dout (10 in bf16).
template <class Real>
void swiglu_backward(Real* dinp, const Real* dout, const Real* inp, int N, int F, stream_t stream);

}  // namespace llmc
