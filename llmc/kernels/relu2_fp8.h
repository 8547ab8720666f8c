// ReLU squared and its gradient, quantized as they are computed. Conventions for `out` and `pass`: see quantize.h. The
// bytes are those of the plain kernels (relu2.h) and quantize(): values are rounded to BF16 first.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

// x = max(inp, 0)^2, inp (N, C) bf16. Moves 4 bytes an element (2 in pass `measure`).
void relu2_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream);

// x = dout * 2 max(inp, 0), (N, C) bf16 both. Moves 6 bytes an element (4 in pass `measure`).
template <class F8>
void relu2_backward_fp8(const Quantized<F8>& out, const bf16* dout, const bf16* inp, int N, int C, QuantizePass pass,
                        stream_t stream);

}  // namespace llmc
