// SwiGLU and its gradient, quantized as they are computed. Conventions for `out` and `pass`: see quantize.h. The bytes
// are those of the plain kernels (swiglu.h) and quantize(): values are rounded to BF16 first.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

// x = silu(gate) * up (N, F), inp (N, 2F) bf16: [gate | up]. Moves 6 bytes an element of x (4 in pass `measure`).
void swiglu_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int F, QuantizePass pass, stream_t stream);

// x = [dgate | dup] (N, 2F), one operand with one scale; dout (N, F), inp (N, 2F) bf16. F % 16 == 0. Moves 10 bytes an
// element of dout (6 in pass `measure`).
template <class F8>
void swiglu_backward_fp8(const Quantized<F8>& out, const bf16* dout, const bf16* inp, int N, int F, QuantizePass pass,
                         stream_t stream);

}  // namespace llmc
