// The activation of an MLP, forward and backward, plain and with quantization to FP8 fused in:
//
//   gelu     0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))      GPT-2's tanh form
//   relu2    max(x, 0)^2                                          arXiv 2109.08668
//   swiglu   silu(gate) * up,   silu(x) = x / (1 + exp(-x))       arXiv 2002.05202
//
// Outputs and their gradients are (N, F). Inputs and theirs are (N, F) too, except SwiGLU's: (N, 2F), in each row F of
// gate, then F of up, as one matmul writes them. N >= 1 and F % 8 == 0.
//
// All of them are deterministic, and compute in FP32 between rounding on load and on store.
#pragma once
#include <cstddef>

#include "llmc/kernels/quantize.h"

namespace llmc {

enum class Activation { gelu, swiglu, relu2 };
constexpr bool is_gated(Activation f) { return f == Activation::swiglu; }

// Which activations compute the gradient of the bias that was added to their input along with the input's gradient.
// That needs no pass of its own (column_sums.cuh).
constexpr bool sums_bias_gradient(Activation f) { return f == Activation::gelu; }
struct BiasGradient {
    // (F): sums over rows of the FP32 values before they are rounded or cast; nullptr if not wanted, or not computed by
    // this activation.
    float* dbias = nullptr;
    // Contents irrelevant: activation_scratch(N, F) floats for GELU, quantize_scratch(N, F) if it quantizes and dbias
    // is not nullptr.
    float* scratch = nullptr;
    bool accumulate = false;  // add to dbias
};
size_t activation_scratch(int N, int F);

// ---- plain: Real is float or bf16 ----------------------------------------------------------------------------------

// out = f(inp). out may be inp, except SwiGLU's. Moves 2 sizeof(Real) bytes per element of out; SwiGLU 3.
template <class Real>
void activation_forward(Activation f, Real* out, const Real* inp, int N, int F, stream_t stream);

// dinp = dout * f'(inp). SwiGLU's is [dgate | dup]: dgate = dout * up * silu'(gate), dup = dout * silu(gate). dinp may
// be inp, or dout except for SwiGLU. Moves 3 sizeof(Real) bytes per element of dout; SwiGLU 5.
template <class Real>
void activation_backward(Activation f, Real* dinp, const BiasGradient& bias, const Real* dout, const Real* inp, int N,
                         int F, stream_t stream);

// ---- quantized: quantize.h explains `out`, `pass` and the requirements on N and F ----------------------------------
//
// The function is that of the plain kernel, with BF16 inputs. relu2 and swiglu round to BF16 before the cast, so their
// bytes are those of the plain kernel followed by quantize(); gelu casts the FP32 value.

// Moves 4 bytes per element of out, 2 in pass `measure`; SwiGLU 6 and 4.
void activation_forward_fp8(Activation f, const Quantized<e4m3>& out, const bf16* inp, int N, int F, QuantizePass pass,
                            stream_t stream);

// out is one operand with one scale, (N, F) or SwiGLU's (N, 2F), with F % 16 == 0. Moves 6 bytes per element of dout, 4
// in pass `measure`; SwiGLU 10 and 6. `measure` does not touch dbias.
void activation_backward_fp8(Activation f, const Quantized<e5m2>& out, const BiasGradient& bias, const bf16* dout,
                             const bf16* inp, int N, int F, QuantizePass pass, stream_t stream);

}  // namespace llmc
