// The operands of the probe's products. Every value is a function of its index, so the device fills gigabytes at the
// speed of its memory, and the host can compute any element without a copy. A reference needs only a few rows and
// columns.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/linear/matmul.h"

namespace llmc::probe {

// Seeds of tensors. Each tensor of a product has its own, so that no two agree by chance.
enum Salt : uint32_t { kFirst = 0x51ed270bu, kSecond = 0x9e3779b9u, kBias = 0x7feb352du, kResult = 0x2545f491u };

// 32 random bits that depend only on (seed, counter): a two-round multiply-xorshift mix (Wellons, "Prospecting for hash
// functions").
LLMC_HD uint32_t random_bits(uint32_t seed, uint32_t counter) {
    uint32_t h = counter * 0x9E3779B1u ^ seed;
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    h ^= h >> 16;
    return h;
}

LLMC_HD uint32_t bits_at(uint32_t salt, size_t index) {
    return random_bits(salt + static_cast<uint32_t>(index >> 32) * 0x85ebca6bu, static_cast<uint32_t>(index));
}
// Uniform in (-2, 2), exact in FP32. Stored values are this, rounded to their type.
LLMC_HD float value_at(uint32_t salt, size_t index) {
    return (static_cast<float>(bits_at(salt, index) & 0xffffu) - 32767.5f) * (1.0f / 16384.0f);
}
// Scales of blocks, from 2^-2 to 2^2.
LLMC_HD float scale_at(uint32_t salt, size_t index) {
    return float_from_bits((bits_at(~salt, index) % 5u + 125u) << 23);
}
// Scales of whole tensors. They are not powers of two, so a forgotten scale shows.
constexpr float kFirstScale = 0.75f, kSecondScale = 1.375f;

// out[i] = value_at(salt, i), rounded to the element type. out is 16-byte aligned.
void fill_values(void* out, Product::Element element, size_t n, uint32_t salt, stream_t stream);
void fill_scales(float* out, size_t n, uint32_t salt, stream_t stream);
// The value after rounding to the element type.
float stored_value(Product::Element element, uint32_t salt, size_t index);

// A summary of a whole tensor: the number of non-finite elements, and a checksum that changes with any element and its
// place but not with the order of the additions.
struct Summary {
    unsigned long long nonfinite, checksum;
};
void summarize(Summary* out, const void* tensor, Product::Element element, size_t n, stream_t stream);

}  // namespace llmc::probe
