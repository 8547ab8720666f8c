// Reads the scaling factors of an FP8 operand from device memory (scales.h).
#include "dev/virtual_gpu/cublaslt/scales.h"

#include <cublasLt.h>

#include <cstring>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/memory.h"

namespace virtual_gpu {
namespace {

constexpr uint64_t kBlock = 128, kMxBlock = 32, kMxTileOuter = 128, kMxTileInner = 4;

uint64_t blocks(uint64_t elements, uint64_t size) { return (elements + size - 1) / size; }
uint64_t round_up(uint64_t n, uint64_t unit) { return blocks(n, unit) * unit; }

// cuBLAS documentation 3.1.4.4 and 3.1.4.5, layouts of scaling factors.
size_t count_of(int mode, uint64_t outer, uint64_t inner) {
    switch (mode) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
            return outer;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
            return outer * blocks(inner, kBlock);
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
            return round_up(blocks(inner, kBlock), 4) * blocks(outer, kBlock);
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
            return round_up(outer, kMxTileOuter) * round_up(blocks(inner, kMxBlock), kMxTileInner);
        default:
            return 1;
    }
}

}  // namespace

Scales::Scales(const void* address, int mode, uint64_t outer, uint64_t inner, const char* what)
    : mode_(address ? mode : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F), outer_(outer), inner_(inner), values_(1, 1.0f) {
    if (!address) return;
    values_.assign(count_of(mode, outer, inner), 0.0f);
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) {
        read_mx(static_cast<const uint8_t*>(address), what);
        return;
    }
    // Rows of tiles have a pitch. The gaps between them are never read.
    const bool tiles = mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const size_t used = tiles ? blocks(inner, kBlock) : values_.size(), pitch = tiles ? round_up(used, 4) : used;
    for (size_t begin = 0; begin < values_.size(); begin += pitch)
        std::memcpy(&values_[begin], Memory::get().readable(static_cast<const float*>(address) + begin, used * 4, what),
                    used * 4);
}

// 3.1.4.4.2: "it is necessary to still allocate full tile for storage and fill out of bounds values with zeroes".
void Scales::read_mx(const uint8_t* address, const char* what) {
    const char* const codes = Memory::get().readable(address, values_.size(), what);
    std::vector<bool> used(values_.size());
    for (uint64_t o = 0; o < outer_; o++)
        for (uint64_t i = 0; i < inner_; i += kMxBlock) used[index(o, i)] = true;
    for (size_t i = 0; i < values_.size(); i++) {
        if (!used[i] && codes[i] != 0) fault("%s: byte %zu is beyond the matrix and not 0", what, i);
        values_[i] = float_of_ue8m0(static_cast<uint8_t>(codes[i]));
    }
}

uint64_t Scales::block() const {
    switch (mode_) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
            return kBlock;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
            return kMxBlock;
        default:
            return 0;
    }
}

size_t Scales::index(uint64_t outer, uint64_t inner) const {
    switch (mode_) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
            return outer;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
            return inner / kBlock * outer_ + outer;
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
            return outer / kBlock * round_up(blocks(inner_, kBlock), 4) + inner / kBlock;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
            // Tiles of 128 x 4 in row-major order; within a tile, (outer % 32) * 16 + (outer / 32) * 4 + inner.
            const uint64_t scale = inner / kMxBlock, per_row = round_up(blocks(inner_, kMxBlock), kMxTileInner);
            const uint64_t tile_outer = outer % kMxTileOuter;
            const size_t tile = (scale / kMxTileInner * kMxTileInner + outer / kMxTileOuter * per_row) * 128;
            return tile + tile_outer % 32 * 16 + tile_outer / 32 * 4 + scale % kMxTileInner;
        }
        default:
            return 0;
    }
}

}  // namespace virtual_gpu
