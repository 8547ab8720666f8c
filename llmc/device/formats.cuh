// Number formats: bf16 and the two FP8 formats of the OCP "8-bit Floating Point Specification", with conversions from
// and to float. E4M3 has no infinities and its largest value is 448; the largest finite E5M2 value is 57344.
//
// Rounding is to nearest even with saturation, or stochastic with random bits from the caller. The portable code is
// branch-free so that g++ vectorises it, and bit-equal to the GPU's cvt instructions, which are used where they exist.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "llmc/device/keywords.cuh"

namespace llmc {

struct bf16 {
    uint16_t bits;
};
struct e4m3 {
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};

LLMC_HD uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(value);
#else
    return std::bit_cast<uint32_t>(value);
#endif
}

LLMC_HD float float_from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    return std::bit_cast<float>(bits);
#endif
}

constexpr uint32_t kFloatInfinityBits = 0x7f800000u;
constexpr uint32_t kFloatMagnitudeMask = 0x7fffffffu;

// ---- bf16 ----------------------------------------------------------------------------------------------------------

LLMC_HD float to_float(float value) { return value; }
LLMC_HD float to_float(bf16 value) { return float_from_bits(static_cast<uint32_t>(value.bits) << 16); }

// Rounds to nearest even. NaN becomes 0x7fff, as with cvt.rn.bf16.f32.
LLMC_HD bf16 to_bf16(float value) {
#if defined(__CUDA_ARCH__)
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
#else
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & kFloatMagnitudeMask) > kFloatInfinityBits;
    return bf16{static_cast<uint16_t>(nan ? 0x7fffu : rounded)};
#endif
}

// Rounds stochastically: adds 16 random bits below the last kept bit and truncates. Infinities stay.
LLMC_HD bf16 to_bf16_stochastic(float value, uint32_t random) {
    const uint32_t bits = float_bits(value);
    const uint32_t magnitude = bits & kFloatMagnitudeMask;
    const uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
    const uint32_t special = magnitude == kFloatInfinityBits ? bits >> 16 : rounded;
    return bf16{static_cast<uint16_t>(magnitude > kFloatInfinityBits ? 0x7fffu : special)};
}

// Packs two bf16 into one register, the first in the low half, as mma fragments hold them.
LLMC_HD uint32_t pack_bf16x2(float low, float high) {
#if defined(__CUDA_ARCH__)
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return static_cast<uint32_t>(to_bf16(low).bits) | static_cast<uint32_t>(to_bf16(high).bits) << 16;
#endif
}
LLMC_HD float bf16x2_low(uint32_t packed) { return float_from_bits(packed << 16); }
LLMC_HD float bf16x2_high(uint32_t packed) { return float_from_bits(packed & 0xffff0000u); }

// ---- FP8 -----------------------------------------------------------------------------------------------------------

// The constants of an FP8 format. ExponentOffset is 127 - bias: the format's exponent field is float's minus this.
template <int MantissaBits, uint32_t ExponentOffset, uint32_t LargestCode>
struct Fp8Format {
    static constexpr int mantissa_bits = MantissaBits;
    static constexpr uint32_t largest_code = LargestCode;   // the largest finite magnitude
    static constexpr int dropped_bits = 23 - MantissaBits;  // float mantissa bits that rounding drops
    static constexpr uint32_t code_offset = ExponentOffset << MantissaBits;
    static constexpr uint32_t smallest_normal = (ExponentOffset + 1u) << 23;  // as float bits
    // The float whose unit in the last place is the format's smallest subnormal: adding it rounds subnormals.
    static constexpr uint32_t rounding_magic = (ExponentOffset + 1u + dropped_bits) << 23;
};
using E4M3Format = Fp8Format<3, 120, 0x7e>;
using E5M2Format = Fp8Format<2, 112, 0x7b>;
template <class F8>
using FormatOf = std::conditional_t<std::is_same_v<F8, e4m3>, E4M3Format, E5M2Format>;

constexpr float kE4M3Max = 448.0f;
constexpr float kE5M2Max = 57344.0f;
constexpr uint8_t kFp8NaN = 0x7f;

// Rounds to nearest even and saturates, infinities included. NaN becomes 0x7f without a sign.
template <class Format>
LLMC_HD uint8_t fp8_nearest(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t magnitude = bits & kFloatMagnitudeMask;
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t round_bias = ((1u << (Format::dropped_bits - 1)) - 1u) + ((magnitude >> Format::dropped_bits) & 1u);
    const uint32_t normal = ((magnitude + round_bias) >> Format::dropped_bits) - Format::code_offset;
    const uint32_t subnormal =
        float_bits(float_from_bits(magnitude) + float_from_bits(Format::rounding_magic)) - Format::rounding_magic;
    uint32_t code = magnitude < Format::smallest_normal ? subnormal : normal;
    code = code > Format::largest_code ? Format::largest_code : code;
    return static_cast<uint8_t>(magnitude > kFloatInfinityBits ? kFp8NaN : code | sign);
}

// Rounds stochastically with 32 random bits: the probability of rounding up is the dropped fraction. Saturates.
LLMC_HD e4m3 to_e4m3_stochastic(float value, uint32_t random) {
    using Format = E4M3Format;
    constexpr uint32_t inverse_subnormal = (127u + 9u) << 23;  // 2^9: the smallest subnormal is 2^-9
    const uint32_t bits = float_bits(value);
    const uint32_t magnitude = bits & kFloatMagnitudeMask;
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t kept = magnitude + (random & ((1u << Format::dropped_bits) - 1u));
    const uint32_t normal = (kept >> Format::dropped_bits) - Format::code_offset;
    // Subnormals: scale so that one subnormal step is 1, which is exact, then round the fraction.
    const bool is_subnormal = magnitude < Format::smallest_normal;
    const float steps = float_from_bits(is_subnormal ? magnitude : 0u) * float_from_bits(inverse_subnormal);
    const uint32_t whole = static_cast<uint32_t>(static_cast<int>(steps));
    const float fraction = steps - static_cast<float>(static_cast<int>(whole));
    const float threshold = static_cast<float>(random >> 8) * (1.0f / 16777216.0f);
    uint32_t code = is_subnormal ? whole + (threshold < fraction ? 1u : 0u) : normal;
    code = code > Format::largest_code ? Format::largest_code : code;
    return e4m3{static_cast<uint8_t>(magnitude > kFloatInfinityBits ? kFp8NaN : code | sign)};
}

// Rounds a float stochastically to the mantissa of a format: adds random bits, of which it uses as many as the format
// drops, and clears these. A cast to nearest afterwards is exact, except that it rounds the format's subnormals to
// nearest. Infinities and NaN stay.
template <class Format>
LLMC_HD float dither(float value, uint32_t random) {
    constexpr uint32_t dropped = (1u << Format::dropped_bits) - 1u;
    const uint32_t rounded = (float_bits(value) + (random & dropped)) & ~dropped;
    return value == value ? float_from_bits(rounded) : value;  // a NaN could become 0
}

LLMC_HD e4m3 to_e4m3_portable(float value) { return e4m3{fp8_nearest<E4M3Format>(value)}; }
LLMC_HD e5m2 to_e5m2_portable(float value) { return e5m2{fp8_nearest<E5M2Format>(value)}; }

LLMC_HD e4m3 to_e4m3(float value) {
#if LLMC_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return e4m3{static_cast<uint8_t>(pair)};
#else
    return to_e4m3_portable(value);
#endif
}

LLMC_HD e5m2 to_e5m2(float value) {
#if LLMC_HARDWARE_FP8
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return e5m2{static_cast<uint8_t>(pair)};
#else
    return to_e5m2_portable(value);
#endif
}

LLMC_HD float to_float(e4m3 value) {
    const uint32_t magnitude = value.bits & 0x7fu;
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal = float_bits(static_cast<float>(static_cast<int>(magnitude)) * 0.001953125f);  // 2^-9
    const uint32_t finite = (magnitude < 8 ? subnormal : normal) | sign;
    return float_from_bits(magnitude == 0x7fu ? 0x7fffffffu : finite);
}

LLMC_HD float to_float(e5m2 value) {
    const uint32_t magnitude = value.bits & 0x7fu;
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
    const uint32_t normal = (magnitude << 21) + (112u << 23);
    const uint32_t subnormal =
        float_bits(static_cast<float>(static_cast<int>(magnitude)) * 0.0000152587890625f);  // 2^-16
    uint32_t finite = magnitude < 4 ? subnormal : normal;
    finite = magnitude == 0x7cu ? kFloatInfinityBits : finite;
    return float_from_bits(magnitude > 0x7cu ? 0x7fffffffu : finite | sign);
}

// to<T>(float) names the conversion by its result, for templates over the storage type.
template <class T>
LLMC_HD T to(float value) {
    if constexpr (std::is_same_v<T, bf16>)
        return to_bf16(value);
    else if constexpr (std::is_same_v<T, e4m3>)
        return to_e4m3(value);
    else if constexpr (std::is_same_v<T, e5m2>)
        return to_e5m2(value);
    else
        return value;
}

}  // namespace llmc
