// What floating-point instructions have in common.
#pragma once
#include <bit>
#include <cstdint>

namespace virtual_gpu {

// An instruction's NaN is 0x7fffffff.
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(0x7fffffffu); }
inline double canonical(double x) { return x == x ? x : std::bit_cast<double>(0x7fffffffffffffffull); }

// Subnormal numbers as zero, of the same sign: .ftz.
inline float flush(float x) {
    const uint32_t b = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((b & 0x7f800000u) == 0 ? b & 0x80000000u : b);
}

}  // namespace virtual_gpu
