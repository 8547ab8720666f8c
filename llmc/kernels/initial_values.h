// Draws the first values of a tensor on the device. A value depends only on the tensor's key and the value's place, and
// every device computes the same bits, so runs on any device and number of ranks start from the same weights.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// Logarithm and cosine from additions and multiplications alone, so that every C library gives the same bits and loops
// vectorise. Their errors are a few units in the last place of a double, which rounding to float hides. No product is
// fused with a sum, so the bits are the same on every device.
LLMC_HD double multiply_rounded(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}
LLMC_HD double logarithm(double u) {  // u is positive and normal
    constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcdull;
    const uint64_t bits = std::bit_cast<uint64_t>(u);
    const int64_t exponent = static_cast<int64_t>(bits - kRootOfHalf) >> 52;
    const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));  // 0.71 to 1.41
    const double s = (m - 1.0) / (m + 1.0), square = s * s;                                  // log(m) = 2 atanh(s)
    constexpr double c[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                            1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    const auto times_square = [square](double sum) { return multiply_rounded(sum, square); };
    double series = times_square(c[10]) + c[9];
    series = times_square(times_square(series) + c[8]) + c[7];
    series = times_square(times_square(series) + c[6]) + c[5];
    series = times_square(times_square(series) + c[4]) + c[3];
    series = times_square(times_square(times_square(series) + c[2]) + c[1]) + c[0];
    return multiply_rounded(static_cast<double>(exponent), 0.6931471805599453) + multiply_rounded(2.0 * s, series);
}
LLMC_HD double cosine(uint32_t turn) {  // a full turn is 2^32
    const uint32_t quarter = (turn + (1u << 29)) >> 30;
    const double x = static_cast<double>(static_cast<int32_t>(turn - (quarter << 30))) * (0x1p-32 * 6.283185307179586);
    const double square = x * x;
    // Taylor's series: c[n] = 1 / n!.
    constexpr double c[] = {1.0,
                            1.0,
                            1.0 / 2,
                            1.0 / 6,
                            1.0 / 24,
                            1.0 / 120,
                            1.0 / 720,
                            1.0 / 5040,
                            1.0 / 40320,
                            1.0 / 362880,
                            1.0 / 3628800,
                            1.0 / 39916800,
                            1.0 / 479001600,
                            1.0 / 6227020800,
                            1.0 / 87178291200,
                            1.0 / 1307674368000,
                            1.0 / 20922789888000,
                            1.0 / 355687428096000};
    const auto times_square = [square](double sum) { return multiply_rounded(sum, square); };
    double cos = c[14] - times_square(c[16]), sin = c[15] - times_square(c[17]);
    cos = c[10] - times_square(c[12] - times_square(cos)), sin = c[11] - times_square(c[13] - times_square(sin));
    cos = c[6] - times_square(c[8] - times_square(cos)), sin = c[7] - times_square(c[9] - times_square(sin));
    cos = c[2] - times_square(c[4] - times_square(cos)), sin = c[3] - times_square(c[5] - times_square(sin));
    cos = c[0] - times_square(cos), sin = c[1] - times_square(sin);
    // Selects and negates by bits, without a branch, so that the loop around it vectorises.
    const uint64_t odd = 0 - static_cast<uint64_t>(quarter & 1u);
    const uint64_t negative = static_cast<uint64_t>((quarter + 1u) >> 1 & 1u) << 63;
    const uint64_t value = (std::bit_cast<uint64_t>(sin * x) & odd) | (std::bit_cast<uint64_t>(cos) & ~odd);
    return std::bit_cast<double>(value ^ negative);
}

// A standard normal number for place `i` of the stream `key` (Box-Muller on two 32-bit halves).
LLMC_HD float normal_number(uint64_t key, uint64_t i) {
    const uint64_t bits = mix64((key ^ mix64(i + kGolden64)) + kGolden64);
    const double u = (static_cast<double>(static_cast<uint32_t>(bits >> 32)) + 0.5) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * logarithm(u)) * cosine(static_cast<uint32_t>(bits)));
}

// The values of a tensor: normal numbers times `deviation`, or `constant` if the deviation is 0. Padding is 0.
struct InitialValues {
    uint64_t key;  // selects the tensor's random numbers
    float deviation, constant;
    size_t count;  // places from here on are padding
};

// out[i] = the value of place first + i for i < n, rounded to nearest. `out` is in FP32 or BF16. Moves 4 or 2 bytes and
// computes about 100 operations in FP64 per value.
void draw_initial_values(const StateArray& out, const InitialValues& values, size_t first, size_t n, stream_t stream);

}  // namespace llmc
