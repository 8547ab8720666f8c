// The sums of tensor cores, bit by bit, as experiments found them (Microsoft's MMA-Sim; Khattak and Mikaitis, arXiv
// 2512.07004). The products of a step and the addend are aligned to the largest exponent among them, truncated to a few
// fraction bits, and added exactly; the result is truncated to FP32. mma and the matrix products share this code.
#pragma once
#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/options.h"

namespace virtual_gpu {

// Inputs to the terms' exponents besides their values.
struct Exponents {
    // By operand format: subnormal numbers are aligned as if they had this exponent.
    int least_a = kLeastExponentFloat, least_b = kLeastExponentFloat;
    int scale = 0;  // 2^scale multiplies every product, for MX blocks
};

constexpr int kMostTerms = 128;

// Returns c + the sum of n products a[i] b[i], n <= kMostTerms, all aligned to the largest exponent with fraction_bits
// (at most 40) below it. With short_result the result has 13 fraction bits instead of 23. Infinities and NaN behave as
// in FP32, with the canonical NaN; zero is +0.
float fused_sum(const float* a, const float* b, int n, float c, int fraction_bits, bool short_result,
                const Exponents& exponents = {});

// How a generation sums the products of one kind of operands: `step` products at a time.
enum class Operands { tf32, bf16, fp8 };
constexpr Operands operands_of(Element e) {
    return e == Element::fp32 ? Operands::tf32 : e == Element::bf16 ? Operands::bf16 : Operands::fp8;
}
struct TensorCore {
    int fraction_bits, step;
    bool short_result;
};
TensorCore tensor_core(Arithmetic arithmetic, Operands operands);

// c + the sum of n products, step after step. Not for Arithmetic::fp32.
float tensor_sum(const float* a, const float* b, int n, float c, const TensorCore& core,
                 const Exponents& exponents = {});

}  // namespace virtual_gpu
