// Shared by floating-point instructions: canonical NaN and flushing of subnormals.
#pragma once
#include <bit>
#include <cstdint>

namespace virtual_gpu {

// Replaces any NaN by the GPU's, 0x7fffffff.
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(0x7fffffffu); }
inline double canonical(double x) { return x == x ? x : std::bit_cast<double>(0x7fffffffffffffffull); }

// .ftz: replaces subnormal numbers by zero of the same sign.
inline float flush(float x) {
    const uint32_t b = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((b & 0x7f800000u) == 0 ? b & 0x80000000u : b);
}

}  // namespace virtual_gpu
