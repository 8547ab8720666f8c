// The scales of matrices whose blocks each have their own: which elements share one, how it is found, and where it
// lies. All are powers of two, so that a dequantized E4M3 value is a BF16 number exactly.
//
// A matrix here is (rows, K), row-major, and a product sums over K. The layouts are those that cuBLASLt reads:
//   vectors  1 x 128 along K, float        scale of (r, k) at (k / 128) * rows + r           (VEC128_32F)
//   tiles    128 x 128, float              at (r / 128) * round_up(K / 128, 4) + k / 128     (BLK128x128_32F)
//   mx       1 x 32 along K, UE8M0 bytes   in tiles of 128 rows x 4 scales, 512 bytes each, along K first (VEC32_UE8M0)
// Stored are the factors that dequantize: value = code * scale_inv. UE8M0 code c means 2^(c - 127).
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/math.cuh"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

enum class ScaleLayout { vectors, tiles, mx };

constexpr int kScaleVector = 128;  // elements of a block along K
constexpr int kMxVector = 32;
constexpr int kMxTileBytes = 512;

// The exponent e of the smallest power of two with amax / 2^e <= 448, from the bits of amax: finite, not negative. At
// least -126, so that 2^e and 2^-e are normal numbers; 0 for an amax of 0.
LLMC_HD int block_exponent(float amax) {
    const uint32_t bits = float_bits(amax);
    if (bits == 0) return 0;
    constexpr uint32_t kMantissaOf448 = 0x600000u;  // 1.75
    const int exponent = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffu) > kMantissaOf448 ? 1 : 0);
    return exponent < -126 ? -126 : exponent;
}
LLMC_HD float power_of_two(int exponent) { return float_from_bits(static_cast<uint32_t>(exponent + 127) << 23); }

LLMC_HD size_t vector_scale_index(int rows, int r, int k) {
    return static_cast<size_t>(k / kScaleVector) * static_cast<size_t>(rows) + static_cast<size_t>(r);
}
LLMC_HD size_t tile_scale_index(int K, int r, int k) {
    const int pitch = (div_up(K, kScaleVector) + 3) / 4 * 4;
    return static_cast<size_t>(r / kScaleVector) * static_cast<size_t>(pitch) + static_cast<size_t>(k / kScaleVector);
}
// Of the byte with the scale of (r, k).
LLMC_HD size_t mx_scale_index(int K, int r, int k) {
    const size_t tile = static_cast<size_t>(r / 128) * static_cast<size_t>(div_up(K, 128)) + k / 128;
    return tile * kMxTileBytes + static_cast<size_t>(r % 32 * 16 + r % 128 / 32 * 4 + k % 128 / kMxVector);
}

LLMC_HD float block_scale_inv(const void* scales, ScaleLayout layout, int rows, int K, int r, int k) {
    if (layout == ScaleLayout::mx)
        return power_of_two(static_cast<const uint8_t*>(scales)[mx_scale_index(K, r, k)] - 127);
    const float* table = static_cast<const float*>(scales);
    return table[layout == ScaleLayout::vectors ? vector_scale_index(rows, r, k) : tile_scale_index(K, r, k)];
}

// Of a whole table, with the padding that its layout has.
constexpr size_t scale_bytes(ScaleLayout layout, size_t rows, size_t K) {
    const size_t row_tiles = (rows + 127) / 128, vectors = (K + 127) / 128;
    if (layout == ScaleLayout::mx) return row_tiles * vectors * kMxTileBytes;
    return sizeof(float) * (layout == ScaleLayout::vectors ? rows * vectors : row_tiles * ((vectors + 3) / 4 * 4));
}

}  // namespace llmc
