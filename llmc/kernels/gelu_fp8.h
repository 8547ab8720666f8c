// GELU and its gradient, quantized as they are computed. Conventions for `out` and `pass`: see quantize.h.
#pragma once
#include "llmc/kernels/quantize.h"

namespace llmc {

// x = gelu(inp), inp (N, C) bf16. Moves 4 bytes an element (2 in pass `measure`).
void gelu_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream);

// x = dout * gelu'(inp), (N, C) bf16 both, and the gradient of the bias that was added to inp:
// dbias (C) float = sums over rows of the unquantized x, added when `accumulate`, not touched by `measure`; may be
// nullptr. scratch: quantize_scratch(N, C) floats, contents irrelevant. Moves 6 bytes an element (4 in pass `measure`).
template <class F8>
void gelu_backward_fp8(const Quantized<F8>& out, float* dbias, float* scratch, const bf16* dout, const bf16* inp, int N,
                       int C, bool accumulate, QuantizePass pass, stream_t stream);

}  // namespace llmc
