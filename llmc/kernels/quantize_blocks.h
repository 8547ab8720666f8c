// Quantization with a scale for every block of a matrix, and back. After TransformerEngine's Float8BlockScaling and
// DeepSeek-V3 (arXiv 2412.19437), and the OCP MX specification.
//
// A matrix here is (rows, K), row-major, and a product sums over K. Scales lie as cuBLASLt reads them:
//
//   vectors  1 x 128 along K, float        scale of (r, k) at (k / 128) * rows + r           (VEC128_32F)
//   tiles    128 x 128, float              at (r / 128) * round_up(K / 128, 4) + k / 128     (BLK128x128_32F)
//   mx       1 x 32 along K, UE8M0 bytes   in tiles of 128 rows x 4 scales, 512 bytes each, along K first (VEC32_UE8M0)
//
// A table holds the factors that dequantize: value = code * scale_inv. UE8M0 code c means 2^(c - 127). All scales are
// powers of two, so a dequantized E4M3 value is exactly a BF16 number.
//
// The two layouts of a matrix have different blocks, because a product sums over the columns of one and the rows of the
// other. So each is quantized from the BF16 source; only the 128 x 128 tiles of a weight are the same both ways.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

struct StateArray;  // state_array.h

// ---- scales --------------------------------------------------------------------------------------------------------

enum class ScaleLayout { vectors, tiles, mx };

constexpr int kScaleVector = 128, kMxVector = 32;  // elements of a block along K
constexpr int block_length(Fp8Scaling scaling) { return scaling == Fp8Scaling::mx ? kMxVector : kScaleVector; }
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
    return static_cast<size_t>(k / kScaleVector) * rows + static_cast<size_t>(r);
}
LLMC_HD size_t tile_scale_index(int K, int r, int k) {
    const int pitch = (div_up(K, kScaleVector) + 3) / 4 * 4;
    return static_cast<size_t>(r / kScaleVector) * pitch + static_cast<size_t>(k / kScaleVector);
}
// Index of the byte with the scale of (r, k).
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

// Bytes of a whole table, with the padding of its layout.
constexpr size_t scale_bytes(ScaleLayout layout, size_t rows, size_t K) {
    const size_t row_tiles = (rows + 127) / 128, vectors = (K + 127) / 128;
    if (layout == ScaleLayout::mx) return row_tiles * vectors * kMxTileBytes;
    return sizeof(float) * (layout == ScaleLayout::vectors ? rows * vectors : row_tiles * ((vectors + 3) / 4 * 4));
}

// ---- kernels -------------------------------------------------------------------------------------------------------

// to.row (N, C) with to.row_scales, blocks along C, and to.transposed (C, N) with to.transposed_scales, blocks along N:
// E4M3(inp / scale_inv), to nearest even, each scale from its own block's largest finite magnitude. Scales in layout
// vectors (Fp8Scaling::block; N and C multiples of 128) or mx (Fp8Scaling::mx; multiples of 32). Either layout may be
// nullptr, with its scales. to.state gets amax and, for the casts of one layout, counts: `train` and `write` both;
// `replay` leaves it alone. dbias, scratch: as in quantize(). Reads 2 bytes per element, writes 2 (both layouts).
void quantize_blocks(const Quantized<e4m3>& to, float* dbias, float* scratch, const bf16* inp, int N, int C,
                     Fp8Scaling scaling, bool accumulate, QuantizePass pass, stream_t stream);

// to.row (R, C) and to.transposed (C, R) = E4M3(master / scale_inv), one scale each 128 x 128 tile, layout tiles. R and
// C are multiples of 128. Reads a master per element (and again from the L2 cache), writes 2 bytes.
void quantize_weight_tiles(const Quantized<e4m3>& to, const StateArray& master, int R, int C, QuantizePass pass,
                           stream_t stream);

}  // namespace llmc
