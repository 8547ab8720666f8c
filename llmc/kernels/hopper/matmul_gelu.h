// Two products of GPT-2's MLP with what follows them in their epilogues, for Hopper (compute capability 9.0):
//
//   forward    h = x w^T + bias     (N, F) bf16        out = F8(gelu(h)), row (N, F) and transposed (F, N)
//   backward   d = dout w           (N, F), rounded to bf16 on the way
//              dh = d * gelu'(h)    the same outputs, and dbias = sums of dh over rows
//
// They replace a product of cuBLASLt followed by activation_forward_fp8() or activation_backward_fp8(), and save its
// second reading of h, and d altogether: forward writes 4 bytes per element of h instead of writing 4 and reading 2;
// backward reads 2 and writes 2 instead of writing 4 and reading 4. In BF16 the outputs are rows of bf16, as those of
// activation_forward() and activation_backward(), and the bytes are the same.
//
// Whole numbers, whose sums are exact, give every byte of the separate kernels, except dbias, whose terms are added in
// another order. Sums of tensor cores are in FP32: fast ones in forward, which are not promoted, and those of 128 terms
// added up in FP32 in backward, as with --fp8-fast-accum forward; in BF16 those of the tensor cores. Deterministic, and
// independent of the card's number of multiprocessors.
//
// Written for this project. dev/notes/hopper_matmul_gelu.md explains the design and its cost.
#pragma once
#include <type_traits>

#include "llmc/kernels/activation.h"

namespace llmc::hopper {

// T is the type of a product's operands: an FP8 type, or bf16. Codes of weights are E4M3.
template <class T>
using WeightOf = std::conditional_t<std::is_same_v<T, bf16>, bf16, e4m3>;

// An operand in the order of rows, and the factor that turns codes into values.
template <class T>
struct Codes {
    const T* codes;
    const float* scale_inv = nullptr;
};

// N tokens, K channels that are summed over, F channels of h. `tickets` is as in attention.h.
constexpr bool can_multiply_with_gelu(int N, int K, int F) {
    return N > 0 && F > 0 && N % 128 == 0 && F % 256 == 0 && K > 0 && K % 16 == 0;
}

// x (N, K), weight (F, K), bias (F). T = e4m3 or bf16. Codes: either layout of `out` may be nullptr, and neither may
// overlap x. Needs a pass that writes; measure the amax with the separate kernels. BF16: out.row (N, F) must not be h,
// and `pass` does not matter.
template <class T>
void multiply_gelu_forward(const Quantized<T>& out, bf16* h, const Codes<T>& x, const Codes<T>& weight,
                           const bf16* bias, int N, int K, int F, QuantizePass pass, unsigned* tickets,
                           stream_t stream);

// dout (N, K), weight transposed (F, K), but (K, F) in BF16, h (N, F). bias.dbias (F) must be given, with
// quantize_scratch(N, F) floats. T = e5m2 or bf16. Neither layout of `dh` may overlap dout.
template <class T>
void multiply_gelu_backward(const Quantized<T>& dh, const BiasGradient& bias, const Codes<T>& dout,
                            const Codes<WeightOf<T>>& weight, const bf16* h, int N, int K, int F, QuantizePass pass,
                            unsigned* tickets, stream_t stream);

}  // namespace llmc::hopper
