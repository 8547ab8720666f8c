// The sums of tensor cores, vectorised over the terms (fused_sum.h).
#include "dev/virtual_gpu/arithmetic/fused_sum.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace virtual_gpu {
namespace {

constexpr int kMantissaBits = 23;

// Operands split into mantissa and exponent: x = mantissa * 2^(exponent - 23). The loops run without branches over
// whole arrays so that they vectorise: every value that kernels and products multiply comes through here.
struct Parts {
    int32_t exponent[kMostTerms];
    int32_t mantissa[kMostTerms];  // signed
};

// Subnormal numbers of a format also get the exponent `least`; zero gets that of FP32, whatever the format. Returns
// true if all are finite.
bool take_apart(const float* x, int n, int least, Parts& parts) {
    int32_t special = 0;
    for (int i = 0; i < n; i++) {
        const auto bits = std::bit_cast<int32_t>(x[i]);
        const int32_t field = bits >> kMantissaBits & 255, fraction = bits & 0x7fffff;
        const int32_t mantissa = fraction | (field ? 0x800000 : 0);
        const int32_t exponent = (field ? field : 1) - 127;
        const int32_t below = exponent < least ? least - exponent : 0;  // exact: no bit of the format's numbers is lost
        const int32_t shifted = mantissa >> (below < 31 ? below : 31);
        parts.exponent[i] = mantissa ? exponent + below : kLeastExponentFloat;
        parts.mantissa[i] = bits < 0 ? -shifted : shifted;
        special |= field == 255;
    }
    return !special;
}

// The sum if some terms are not finite.
float special_sum(const float* a, const float* b, int n, float c) {
    const auto finite = [](float x) { return (std::bit_cast<uint32_t>(x) & kMagnitudeBits) < kInfinityBits; };
    float sum = finite(c) ? 0.0f : c;
    for (int i = 0; i < n; i++)
        if (!finite(a[i]) || !finite(b[i])) sum += a[i] * b[i];
    return std::isnan(sum) ? std::bit_cast<float>(kNaNBits) : sum;
}

// Aligns a term with 46 fraction bits that is `down` binades below the largest, and truncates it towards zero.
int64_t aligned(int64_t mantissa, int32_t down, int fraction_bits) {
    const int64_t sign = mantissa >> 63;
    const auto magnitude = static_cast<uint64_t>((mantissa ^ sign) - sign);
    const int32_t shift = down + 2 * kMantissaBits - fraction_bits;
    const auto kept = static_cast<int64_t>(magnitude >> (shift < 63 ? shift : 63));
    return (kept ^ sign) - sign;
}

// Truncates sum * 2^scale to a number with `fraction_bits`, which may be subnormal.
float cut(int64_t sum, int scale, int fraction_bits) {
    const uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
    if (magnitude == 0) return 0.0f;
    const int exponent = std::max(scale + 63 - std::countl_zero(magnitude), kLeastExponentFloat);
    const int drop = std::max(exponent - fraction_bits - scale, 0);
    const uint64_t kept = drop > 63 ? 0 : magnitude >> drop << drop;
    if (kept == 0) return 0.0f;
    const double unit = std::bit_cast<double>(static_cast<uint64_t>(scale + 1023) << 52);  // 2^scale, a normal number
    const double result = static_cast<double>(kept) * unit;
    return static_cast<float>(sum < 0 ? -result : result);  // exact, or infinite
}

}  // namespace

float fused_sum(const float* a, const float* b, int n, float c, int fraction_bits, bool short_result,
                const Exponents& exponents) {
    assert(n <= kMostTerms);
    Parts x, y, last;
    bool finite = take_apart(&c, 1, kLeastExponentFloat, last);
    finite &= take_apart(a, n, exponents.least_a, x);
    finite &= take_apart(b, n, exponents.least_b, y);
    if (!finite) return special_sum(a, b, n, c);

    int32_t top = last.exponent[0];
    for (int i = 0; i < n; i++) {
        x.exponent[i] += y.exponent[i] + exponents.scale;
        top = top > x.exponent[i] ? top : x.exponent[i];
    }
    int64_t sum = aligned(int64_t{last.mantissa[0]} * (1 << kMantissaBits), top - last.exponent[0], fraction_bits);
    for (int i = 0; i < n; i++)
        sum += aligned(int64_t{x.mantissa[i]} * y.mantissa[i], top - x.exponent[i], fraction_bits);
    return cut(sum, top - fraction_bits, short_result ? 13 : kMantissaBits);
}

TensorCore tensor_core(Arithmetic arithmetic, Operands operands) {
    const bool halves =
        arithmetic == Arithmetic::ampere || arithmetic == Arithmetic::ada;  // applies to an instruction's inner size
    const int step = (operands == Operands::tf32 ? 8 : operands == Operands::bf16 ? 16 : 32) / (halves ? 2 : 1);
    const bool narrow =
        operands == Operands::fp8 && (arithmetic == Arithmetic::ada || arithmetic == Arithmetic::hopper);
    return {narrow ? 13 : halves ? 24 : 25, step, narrow};
}

float tensor_sum(const float* a, const float* b, int n, float c, const TensorCore& core, const Exponents& exponents) {
    for (int i = 0; i < n; i += core.step)
        c = fused_sum(a + i, b + i, std::min(core.step, n - i), c, core.fraction_bits, core.short_result, exponents);
    return c;
}

}  // namespace virtual_gpu
