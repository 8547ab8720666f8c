// Decoding tables of the FP8 formats, and conversions to UE8M0 and TF32.
#include "dev/virtual_gpu/arithmetic/formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace virtual_gpu {
namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
bool is_nan(float x) { return (bits_of(x) & kMagnitudeBits) > kInfinityBits; }
float canonical_nan() { return std::bit_cast<float>(kNaNBits); }

// The value of a code: mantissa * 2^(exponent - mantissa bits), with an implicit 1 unless the exponent field is 0.
double fp8_value(uint32_t code, int mantissa_bits, int least_exponent) {
    const int field = static_cast<int>(code >> mantissa_bits);
    const uint32_t mantissa = (code & ((1u << mantissa_bits) - 1)) + (field ? 1u << mantissa_bits : 0u);
    return std::ldexp(mantissa, least_exponent + (field ? field - 1 : 0) - mantissa_bits);
}

std::array<float, 256> decoded(int mantissa_bits, int least_exponent, uint32_t first_special, bool has_infinity) {
    std::array<float, 256> table;
    for (uint32_t code = 0; code < 256; code++) {
        const uint32_t magnitude = code & 0x7fu;
        float value = static_cast<float>(fp8_value(magnitude, mantissa_bits, least_exponent));
        if (has_infinity && magnitude == first_special)
            value = std::numeric_limits<float>::infinity();
        else if (magnitude >= first_special)
            value = canonical_nan();
        table[code] = code & 0x80u && !is_nan(value) ? -value : value;
    }
    return table;
}

}  // namespace

float float_of_e4m3(uint8_t x) {
    static const std::array<float, 256> table = decoded(3, kLeastExponentE4M3, 0x7f, false);
    return table[x];
}
float float_of_e5m2(uint8_t x) {
    static const std::array<float, 256> table = decoded(2, kLeastExponentE5M2, 0x7c, true);
    return table[x];
}

uint8_t ue8m0_of(float x, bool up) {
    if (is_nan(x)) return 0xff;
    const uint32_t magnitude = bits_of(x) & kMagnitudeBits, exponent = magnitude >> 23,
                   mantissa = magnitude & 0x7fffffu;
    // Subnormals: code 0 is 2^-127, bit 22 of the mantissa; only larger values are rounded up.
    const bool above = exponent ? mantissa != 0 : mantissa > 0x400000u;
    return static_cast<uint8_t>(std::min(exponent + (up && above ? 1u : 0u), 254u));
}
float float_of_ue8m0(uint8_t x) { return x == 0xff ? canonical_nan() : std::ldexp(1.0f, x - 127); }

float tf32_of(float x) {
    if (is_nan(x)) return canonical_nan();
    const uint32_t bits = bits_of(x);
    if ((bits & kMagnitudeBits) == kInfinityBits) return x;
    return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}
float tf32_truncated(float x) {
    if (is_nan(x)) return canonical_nan();
    return std::bit_cast<float>(bits_of(x) & ~0x1fffu);
}

}  // namespace virtual_gpu
