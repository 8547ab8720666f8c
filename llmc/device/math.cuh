// Functions for kernels: fast exponentials, the maximum of floats, mixed bits, and rounding up of integers.
//
// On the GPU these are one or two instructions each. On the host they are branch-free polynomials that g++ vectorises,
// because calls to libm would dominate the host device's run time.
#pragma once
#include <cmath>
#include <cstdint>

#include "llmc/device/formats.cuh"

namespace llmc {

// fmaxf without its libm call. GPU and host differ in which operand survives when one is NaN, so never rely on it.
LLMC_HD float max_float(float a, float b) {
#if defined(__CUDA_ARCH__)
    return fmaxf(a, b);
#else
    return a > b ? a : b;
#endif
}
LLMC_HD float abs_float(float a) { return float_from_bits(float_bits(a) & kFloatMagnitudeMask); }

LLMC_HD bool is_finite(float a) { return (float_bits(a) & kFloatMagnitudeMask) < kFloatInfinityBits; }

// The bits of the largest magnitude. If any value is Inf or NaN, the result is at least the bits of infinity.
LLMC_HD uint32_t largest_magnitude(const float (&x)[8]) {
#if defined(__CUDA_ARCH__)
    float largest = fabsf(x[0]);
    LLMC_UNROLL
    for (int i = 1; i < 8; i++) asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(x[i])));
    return float_bits(largest);
#else
    uint32_t largest = 0;
    for (int i = 0; i < 8; i++) {
        const uint32_t magnitude = float_bits(x[i]) & kFloatMagnitudeMask;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
#endif
}

// 2^x. GPU: ex2.approx, 2 ulp. Host: polynomial of degree 6 with relative error below 3e-7; 0 below 2^-126; NaN stays.
LLMC_HD float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    float clamped = x < -126.0f ? -126.0f : x;
    clamped = clamped > 128.0f ? 128.0f : clamped;  // 2^128 assembles to the bits of infinity
    const float shifted = clamped + 12582912.0f;    // 1.5 * 2^23: the low bits now hold the nearest integer
    const float fraction = clamped - (shifted - 12582912.0f);
    float p = 1.5401e-4f * fraction + 1.33908e-3f;
    p = p * fraction + 9.6180e-3f;
    p = p * fraction + 5.550357e-2f;
    p = p * fraction + 2.40226507e-1f;
    p = p * fraction + 6.93147180e-1f;
    p = p * fraction + 1.0f;
    const float result = float_from_bits(float_bits(p) + (float_bits(shifted) << 23));
    const float not_nan = x < -126.0f ? 0.0f : result;
    return x != x ? x : not_nan;
#endif
}
LLMC_HD float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

// a / b. GPU: 2 ulp, and 0 if b is above 2^126, because IEEE division takes about ten instructions. Host: exact.
LLMC_HD float divide_fast(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

// a * b, rounded. The compiler cannot fuse it into a multiply-add.
LLMC_HD float multiply_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

LLMC_HD float reciprocal_sqrt(float x) {
#if defined(__CUDA_ARCH__)
    return rsqrtf(x);
#else
    return 1.0f / sqrtf(x);
#endif
}

// 2^64 divided by the golden ratio.
constexpr uint64_t kGolden64 = 0x9e3779b97f4a7c15u;

// The finalizer of splitmix64 (by D. Stafford): a bijection in which every input bit affects every output bit. Applied
// to consecutive multiples of kGolden64 it gives the sequence of splitmix64 (Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators").
LLMC_HD uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class T>
LLMC_HD constexpr T div_up(T a, T b) {
    return (a + b - 1) / b;
}
// The smallest multiple of `to` that is at least n.
template <class T>
LLMC_HD constexpr T round_up(T n, T to) {
    return div_up(n, to) * to;
}

}  // namespace llmc
