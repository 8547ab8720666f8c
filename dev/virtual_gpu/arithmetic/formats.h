// Number formats of tensor cores and of PTX's cvt: bf16, tf32, the two FP8 formats (OCP "8-bit Floating Point
// Specification") and UE8M0, the powers of two that scale MX blocks. Conversions to a wider format are exact for every
// input; the others round as described in PTX ISA, "Data Movement and Conversion Instructions: cvt".
#pragma once
#include <bit>
#include <cstdint>

namespace virtual_gpu {

constexpr uint32_t kInfinityBits = 0x7f800000u, kMagnitudeBits = 0x7fffffffu;
constexpr uint32_t kNaNBits = 0x7fffffffu;  // the canonical NaN in a GPU's FP32

// The exponents of the formats' smallest normal numbers; subnormal numbers have the same.
constexpr int kLeastExponentFloat = -126, kLeastExponentE4M3 = -6, kLeastExponentE5M2 = -14;

// Element types of tensor core operands. FP32 operands are read as TF32.
enum class Element : uint8_t { fp32, bf16, e4m3, e5m2 };
constexpr int least_exponent(Element e) {
    return e == Element::e4m3 ? kLeastExponentE4M3 : e == Element::e5m2 ? kLeastExponentE5M2 : kLeastExponentFloat;
}

// cvt.rn.bf16.f32: rounds to nearest even; NaN is 0x7fff.
inline uint16_t bf16_of(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>((bits & kMagnitudeBits) > kInfinityBits ? 0x7fffu : rounded);
}
inline float float_of_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Rounds to nearest even; larger values become the largest code. Branch-free, because kernels quantize whole warps.
template <int MantissaBits, int LeastExponent, uint32_t Largest>
inline uint8_t fp8_of(float x) {
    constexpr uint32_t least = LeastExponent + 127;  // as float's exponent field
    const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & kMagnitudeBits;
    const uint32_t exponent = magnitude >> 23, mantissa = (magnitude & 0x7fffffu) | (exponent ? 0x800000u : 0u);
    // Below the smallest normal number the step size stays the same, so a number has fewer bits.
    const uint32_t deficit = exponent < least ? least - exponent : 0;
    const uint32_t drop = 23 - MantissaBits + (deficit < 8 ? deficit : 8);  // 8: the mantissa is below half a step
    const uint32_t kept = drop > 24 ? 0 : mantissa >> drop, rest = mantissa & ((1u << drop) - 1),
                   half = 1u << (drop - 1);
    const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)) ? 1u : 0u);
    uint32_t code = rounded + (deficit ? 0u : (exponent - least) << MantissaBits);
    code = code > Largest ? Largest : code;
    return static_cast<uint8_t>(magnitude > kInfinityBits ? 0x7fu : code | (bits >> 24 & 0x80u));
}

// cvt.rn.satfinite.e4m3x2.f32 and e5m2x2: values saturate, also infinity, at 448 and 57344; NaN is 0x7f.
inline uint8_t e4m3_of(float x) { return fp8_of<3, kLeastExponentE4M3, 0x7e>(x); }
inline uint8_t e5m2_of(float x) { return fp8_of<2, kLeastExponentE5M2, 0x7b>(x); }
// Every NaN becomes the canonical one, without its sign. E4M3 has no infinities.
float float_of_e4m3(uint8_t x);
float float_of_e5m2(uint8_t x);

// cvt.rp.satfinite.ue8m0x2.f32 (up) and cvt.rz (not up): the exponent of |x| with a bias of 127, at most 254. Zero
// becomes 0 with rp, which stands for 2^-127. NaN is 0xff.
uint8_t ue8m0_of(float x, bool up);
float float_of_ue8m0(uint8_t x);

// TF32 has 10 fraction bits. tf32_of() is cvt.rna.tf32.f32: to nearest, ties away from zero. tf32_truncated() is the
// value that an instruction sees when it gets an FP32 number as tf32: it ignores the lower bits. Infinities stay; NaN
// becomes the canonical one.
float tf32_of(float x);
float tf32_truncated(float x);

}  // namespace virtual_gpu
