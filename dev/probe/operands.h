// Operands of the probe's products. Every value is a function of its index alone, so the device fills gigabytes at the
// speed of its memory and the host knows any element without a copy: a reference needs a few rows and columns.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/linear/matmul.h"

namespace llmc::probe {

// What a tensor is filled with. Each tensor of a product has its own, so that no two agree by chance.
enum Salt : uint32_t { kFirst = 0x51ed270bu, kSecond = 0x9e3779b9u, kBias = 0x7feb352du, kResult = 0x2545f491u };

LLMC_HD uint32_t bits_at(uint32_t salt, size_t index) {
    return random_bits(salt + static_cast<uint32_t>(index >> 32) * 0x85ebca6bu, static_cast<uint32_t>(index));
}
// Uniform in (-2, 2), exact in FP32; stored values are this, rounded to their type.
LLMC_HD float value_at(uint32_t salt, size_t index) {
    return (static_cast<float>(bits_at(salt, index) & 0xffffu) - 32767.5f) * (1.0f / 16384.0f);
}
// Scales of blocks: 2^-2 to 2^2.
LLMC_HD float scale_at(uint32_t salt, size_t index) {
    return float_from_bits((bits_at(~salt, index) % 5u + 125u) << 23);
}
// Of whole tensors; no powers of two, so that a forgotten one shows.
constexpr float kFirstScale = 0.75f, kSecondScale = 1.375f;

// out[i] = value_at(salt, i), rounded to the element type. out is 16-byte aligned.
void fill_values(void* out, Product::Element element, size_t n, uint32_t salt, stream_t stream);
void fill_scales(float* out, size_t n, uint32_t salt, stream_t stream);
// The value as it is stored.
float stored_value(Product::Element element, uint32_t salt, size_t index);

// Of a whole tensor: elements that are not finite, and a sum of mixed bits that changes with any element and with its
// place, however the additions are ordered.
struct Summary {
    unsigned long long nonfinite, checksum;
};
void summarize(Summary* out, const void* tensor, Product::Element element, size_t n, stream_t stream);

}  // namespace llmc::probe
