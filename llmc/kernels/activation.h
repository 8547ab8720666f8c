// Activations, forward and backward, plain and with quantization to FP8 fused in:
//
//   gelu     0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))      GPT-2's tanh form
//   relu2    max(x, 0)^2                                          arXiv 2109.08668
//   swiglu   silu(gate) * up,   silu(x) = x / (1 + exp(-x))       arXiv 2002.05202
//
// All of them are deterministic, and compute in FP32 between rounding on load and on store.
#pragma once
#include <cstddef>

#include "llmc/kernels/quantize.h"

namespace llmc {

// ---- plain: Real is float or bf16 ----------------------------------------------------------------------------------

// out = f(inp), n elements, a positive multiple of 8. out may be inp. Moves 2 sizeof(Real) bytes per element.
template <class Real>
void gelu_forward(Real* out, const Real* inp, size_t n, stream_t stream);
template <class Real>
void relu2_forward(Real* out, const Real* inp, size_t n, stream_t stream);

// dinp = dout * gelu'(inp), and the gradient of the bias that was added to inp.
//
//   dinp, dout, inp (N, C) Real; dinp may be dout or inp. N >= 1, C % 8 == 0
//   dbias           (C) float: sums over rows of the FP32 values before they are rounded to dinp; added to dbias if
//                   `accumulate`. nullptr: not computed
//   scratch         gelu_backward_scratch(N, C) floats, contents irrelevant
//
// Moves 3 sizeof(Real) bytes per element: the bias gradient needs no pass of its own (column_sums.cuh).
template <class Real>
void gelu_backward(Real* dinp, float* dbias, float* scratch, const Real* dout, const Real* inp, int N, int C,
                   bool accumulate, stream_t stream);
size_t gelu_backward_scratch(int N, int C);

// dinp = dout * 2 max(inp, 0), n elements, a positive multiple of 8. dinp may be dout or inp. Moves 3 sizeof(Real)
// bytes per element.
template <class Real>
void relu2_backward(Real* dinp, const Real* dout, const Real* inp, size_t n, stream_t stream);

// out (N, F) = silu(gate) * up. inp is (N, 2F): in each row F of gate, then F of up, as one matrix product writes them.
// N >= 1, F % 8 == 0. Moves 3 sizeof(Real) bytes per element of out.
template <class Real>
void swiglu_forward(Real* out, const Real* inp, int N, int F, stream_t stream);

// dinp = [dgate | dup]: dgate = dout * up * silu'(gate), dup = dout * silu(gate). dout is (N, F), inp and dinp (N, 2F);
// dinp may be inp. Moves 5 sizeof(Real) bytes per element of dout.
template <class Real>
void swiglu_backward(Real* dinp, const Real* dout, const Real* inp, int N, int F, stream_t stream);

// ---- quantized: quantize.h explains `out`, `pass` and the requirements on N and C ----------------------------------
//
// The function is that of the plain kernel, with BF16 inputs. relu2 and swiglu round to BF16 before the cast, so their
// bytes are those of the plain kernel followed by quantize(); gelu casts the FP32 value.

// Moves 4 bytes per element, 2 in pass `measure`.
void gelu_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream);
void relu2_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int C, QuantizePass pass, stream_t stream);

// Moves 6 bytes per element, 4 in pass `measure`. dbias (C) float: sums over rows of the unquantized values, added if
// `accumulate`, not touched by `measure`; may be nullptr. scratch: quantize_scratch(N, C) floats, contents irrelevant.
template <class F8>
void gelu_backward_fp8(const Quantized<F8>& out, float* dbias, float* scratch, const bf16* dout, const bf16* inp, int N,
                       int C, bool accumulate, QuantizePass pass, stream_t stream);
template <class F8>
void relu2_backward_fp8(const Quantized<F8>& out, const bf16* dout, const bf16* inp, int N, int C, QuantizePass pass,
                        stream_t stream);

// out (N, F), inp (N, 2F). Moves 6 bytes per element of out, 4 in pass `measure`.
void swiglu_forward_fp8(const Quantized<e4m3>& out, const bf16* inp, int N, int F, QuantizePass pass, stream_t stream);

// out = [dgate | dup] (N, 2F), one operand with one scale; dout (N, F), inp (N, 2F). F % 16 == 0. Moves 10 bytes per
// element of dout, 6 in pass `measure`.
template <class F8>
void swiglu_backward_fp8(const Quantized<F8>& out, const bf16* dout, const bf16* inp, int N, int F, QuantizePass pass,
                         stream_t stream);

}  // namespace llmc
