// The contents of a CUtensorMap's 128 bytes on the virtual GPU; to programs they are opaque. cuda/tensor_map.cpp writes
// them, bulk_copy.cpp reads them.
#pragma once
#include <cstdint>

namespace virtual_gpu {

constexpr uint64_t kTensorMapMark = 0x70616d2d736e6574;  // "tens-map"
constexpr uint32_t kTensorMapBytes = 128;

struct TensorMap {
    uint64_t mark = kTensorMapMark;
    uint64_t address = 0;
    uint64_t size[5] = {};    // in elements, innermost dimension first
    uint64_t stride[5] = {};  // in bytes; that of the innermost dimension is one element
    uint16_t box[5] = {};     // in elements
    uint8_t rank = 0, element_bytes = 0;
    uint8_t swizzle_bytes = 0;  // 0, 32, 64 or 128
    uint8_t unused[19] = {};
};
static_assert(sizeof(TensorMap) == kTensorMapBytes);

// The address to which a swizzle of 32, 64 or 128 bytes moves data. The 16-byte pieces of a row of that many bytes are
// permuted by the row's number, which is a part of the address (PTX ISA, "Tensor: Swizzling Modes").
constexpr uint32_t swizzled(uint32_t address, uint32_t swizzle_bytes) {
    return swizzle_bytes ? address ^ ((address >> 7 & (swizzle_bytes / 16 - 1)) << 4) : address;
}

}  // namespace virtual_gpu
