// Loops that quantize with a scale for each block of values (quantize_blocks.h). A task has a tile of 128 x
// 128 values, which it quantizes along rows and along columns.
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/quantize.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {
namespace {

constexpr int kSegment = 32, kSegments = kTile / kSegment;

// The exponents of the scales of a line's four segments, from their largest finite magnitudes.
struct Exponents {
    int of[kSegments];

    Exponents(const float* line, bool mx) {
        float largest[kSegments], all = 0.0f;
        for (int s = 0; s < kSegments; s++) {
            Words most{};
            for (int i = 0; i < kSegment; i += kLanes) {
                const Words magnitude = bits_of(load(line + s * kSegment + i)) & kFloatMagnitudeMask;
                const Words finite = magnitude < kFloatInfinityBits ? magnitude : Words{};
                most = finite > most ? finite : most;
            }
            uint32_t bits = 0;
            for (int i = 0; i < kLanes; i++) bits = std::max(bits, static_cast<uint32_t>(most[i]));
            largest[s] = float_from_bits(bits);
            all = std::max(all, largest[s]);
        }
        for (int s = 0; s < kSegments; s++) of[s] = block_exponent(mx ? largest[s] : all);
    }
};

// A matrix (rows, K) of codes; the lines of a tile become parts of its rows.
struct CodeMatrix {
    e4m3* codes;
    void* scales;
    int rows, K;
    bool mx;

    // Writes the scales and codes of a line of 128 values to row r, from column k on.
    void write(const float* line, int r, int k, Tally& tally, QuantizePass pass) const {
        const Exponents exponents(line, mx);
        const int segments = r >= rows ? 0 : std::min(kSegments, (K - k) / kSegment);
        if (scales && mx) {
            uint8_t* const to = static_cast<uint8_t*>(scales) + mx_scale_index(K, r, k);
            for (int s = 0; s < kSegments; s++)
                to[s] = s < segments ? static_cast<uint8_t>(exponents.of[s] + 127) : uint8_t{0};
        } else if (scales && r < rows) {
            static_cast<float*>(scales)[vector_scale_index(rows, r, k)] = power_of_two(exponents.of[0]);
        }
        for (int s = 0; s < segments; s++) {
            e4m3* const to = codes ? codes + static_cast<size_t>(r) * K + k + s * kSegment : nullptr;
            quantize_rows<e4m3>({to, 0, nullptr, 0}, tally, line + s * kSegment, 0, 1, kSegment,
                                power_of_two(-exponents.of[s]), pass);
        }
    }
};

// Loads the tile of inp (N, C) at a corner. Values beyond the edges are zeros.
template <class Real>
void load_tile(float* tile, const Real* inp, int first_row, int first_column, int N, int C) {
    for (int r = 0; r < kTile; r++)
        for (int c = 0; c < kTile; c += kLanes) {
            const bool inside = first_row + r < N && first_column + c < C;
            const size_t at = static_cast<size_t>(first_row + r) * C + first_column + c;
            store(tile + r * kTile + c, inside ? load(inp + at) : Floats{});
        }
}

void transpose_tile(float* to, const float* from) {
    for (int r = 0; r < kTile; r += kLanes)
        for (int c = 0; c < kTile; c += kLanes) {
            Floats x[kLanes];
            for (int i = 0; i < kLanes; i++) x[i] = load(from + (r + i) * kTile + c);
            transpose(x);
            for (int i = 0; i < kLanes; i++) store(to + (c + i) * kTile + r, x[i]);
        }
}

// Sums the tile's first `columns` columns in the kernel's order: segments of rows, then their sums.
void sum_columns(float* part, const float* tile, int columns) {
    for (int c = 0; c < columns; c += kLanes) {
        Floats total{};
        for (int s = 0; s < kSegments; s++) {
            Floats sum{};
            for (int r = s * kSegment; r < (s + 1) * kSegment; r++) sum += load(tile + r * kTile + c);
            total += sum;
        }
        store(part + c, total);
    }
}

}  // namespace

template <Fp8Scaling S>
void quantize_blocks(const Grid&, e4m3* row, void* row_scales, e4m3* transposed, void* transposed_scales, float* parts,
                     Fp8State* state, const bf16* inp, int N, int C, QuantizePass pass) {
    constexpr bool kMx = S == Fp8Scaling::mx;
    const CodeMatrix rows{row, row_scales, N, C, kMx}, columns{transposed, transposed_scales, C, N, kMx};
    for_each_tile(state, N, C, pass, [&](int first_row, int first_column, Tally& tally) {
        alignas(64) float tile[kTile * kTile], turned[kTile * kTile];
        load_tile(tile, inp, first_row, first_column, N, C);
        for (int r = 0; r < kTile; r++) rows.write(tile + r * kTile, first_row + r, first_column, tally, pass);
        if (parts)
            sum_columns(parts + static_cast<size_t>(first_row / kTile) * C + first_column, tile,
                        std::min(kTile, C - first_column));
        if (!transposed) return;
        transpose_tile(turned, tile);
        Tally unused;  // the rows have been counted already
        for (int c = 0; c < kTile; c++)
            columns.write(turned + c * kTile, first_column + c, first_row, unused, QuantizePass::replay);
    });
}
LLMC_INSTANTIATE_BOTH(quantize_blocks, Fp8Scaling::block, Fp8Scaling::mx);

template <class Master>
void quantize_weight_tiles(const Grid&, e4m3* row, float* row_scales, e4m3* transposed, float* transposed_scales,
                           Fp8State* state, const Master* master, int R, int C, QuantizePass pass) {
    for_each_tile(state, R, C, pass, [&](int first_row, int first_column, Tally& tally) {
        alignas(64) float tile[kTile * kTile];
        load_tile(tile, master, first_row, first_column, R, C);
        float amax = 0.0f;
        for (const float x : tile) {
            const float magnitude = float_from_bits(float_bits(x) & kFloatMagnitudeMask);
            amax = magnitude > amax && float_bits(magnitude) < kFloatInfinityBits ? magnitude : amax;
        }
        const int exponent = block_exponent(amax);
        row_scales[tile_scale_index(C, first_row, first_column)] = power_of_two(exponent);
        transposed_scales[tile_scale_index(R, first_column, first_row)] = power_of_two(exponent);
        const size_t r = static_cast<size_t>(first_row), c = static_cast<size_t>(first_column);
        quantize_rows<e4m3>({row ? row + r * C + c : nullptr, static_cast<size_t>(C),
                             transposed ? transposed + c * R + r : nullptr, static_cast<size_t>(R)},
                            tally, tile, kTile, kTile, kTile, power_of_two(-exponent), pass);
    });
}
LLMC_INSTANTIATE_BOTH(quantize_weight_tiles, float, bf16);

}  // namespace llmc::host
