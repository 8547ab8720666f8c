// Kernels that quantize with a scale for each block of values (quantize_blocks.h). Here a block is always a block of
// threads.
//
// It owns a tile of 128 x 128 values and reads it once, into shared memory. From there two threads quantize each row,
// and four threads every two columns. The codes of columns go back through the same shared memory, so that both layouts
// leave in full 32-byte sectors.
#include "llmc/kernels/quantize_blocks.h"

#include "llmc/device/registers.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize_tile.cuh"
#include "llmc/kernels/state_array.h"

namespace llmc {

namespace {

constexpr int kTile = kTileRows;
static_assert(kTileColumns == kTile, "rows and columns are quantized alike");
constexpr int kPitch = kTile + 8;       // bf16: rows of the tile start 4 banks apart
constexpr int kCodePitch = kTile + 16;  // bytes of a column's codes
constexpr int kSegment = 32;            // elements; four segments make a row or column of the tile
constexpr int kSegments = kTile / kSegment;
static_assert(kCodePitch * kTile <= kPitch * kTile * 2, "codes fit where the values were");

// Values past the edge of the matrix are zero.
LLMC_DEVICE void load_tile(bf16* tile, const bf16* inp, const TileCorner& corner, int N, int C) {
    LLMC_UNROLL
    for (int i = 0; i < kTile * kTile / 8 / kQuantizeThreads; i++) {
        const int index = i * kQuantizeThreads + static_cast<int>(threadIdx.x);
        const int r = index / (kTile / 8), c = index % (kTile / 8) * 8;
        Bytes16 bytes = {};
        if (corner.row + r < N && corner.column + c < C)
            bytes = load16(inp + static_cast<size_t>(corner.row + r) * C + corner.column + c);
        store16(tile + r * kPitch + c, bytes);
    }
}

LLMC_DEVICE float finite_magnitude(float x) { return is_finite(x) ? abs_float(x) : 0.0f; }

// The exponents of the four segments of a row or column, a UE8M0 code each, from their largest finite magnitudes. They
// are one word instead of an array, so a loop may index it without unrolling.
template <Fp8Scaling S>
LLMC_DEVICE uint32_t segment_exponents(const float (&largest)[kSegments]) {
    float all = 0.0f;
    LLMC_UNROLL
    for (int s = 0; s < kSegments; s++) all = max_float(all, largest[s]);
    uint32_t word = 0;
    LLMC_UNROLL
    for (int s = 0; s < kSegments; s++)
        word |= static_cast<uint32_t>(block_exponent(S == Fp8Scaling::mx ? largest[s] : all) + 127) << (8 * s);
    return word;
}
LLMC_DEVICE int exponent_of(uint32_t word, int segment) {
    return static_cast<int>(word >> (8 * segment) & 0xffu) - 127;
}

// Writes the scales of one row of the tile, which is row r of a (rows, K) matrix from column k on. cuBLASLt reads whole
// tiles of mx scales and needs 0 outside of the matrix (its guide, "1D Block Scaling Factors Layout").
template <Fp8Scaling S>
LLMC_DEVICE void store_scales(void* scales, uint32_t exponents, int rows, int K, int r, int k) {
    if constexpr (S == Fp8Scaling::mx) {
        const int segments = r >= rows ? 0 : K - k >= kTile ? kSegments : div_up(K - k, kSegment);
        const uint32_t inside = segments == kSegments ? ~0u : (1u << (8 * segments)) - 1;
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(scales) + mx_scale_index(K, r, k)) = exponents & inside;
    } else {
        static_cast<float*>(scales)[vector_scale_index(rows, r, k)] = power_of_two(exponent_of(exponents, 0));
    }
}

// Quantizes rows. Threads 2 r and 2 r + 1 take the even and the odd 16 columns, so that together they write 32 bytes at
// a time.
template <Fp8Scaling S>
LLMC_DEVICE void quantize_rows(e4m3* row_codes, void* row_scales, QuantizeTally& tally, const bf16* tile,
                               const TileCorner& corner, int N, int C, QuantizePass pass) {
    const int local = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2;
    const int row = corner.row + local;
    const bf16* values = tile + local * kPitch + half * 16;
    float largest[kSegments];
    LLMC_UNROLL
    for (int s = 0; s < kSegments; s++) {
        float x[8];
        largest[s] = 0.0f;
        LLMC_UNROLL
        for (int part = 0; part < 2; part++) {
            load8(values + s * kSegment + part * 8, x);
            for (int i = 0; i < 8; i++) largest[s] = max_float(largest[s], finite_magnitude(x[i]));
        }
    }
    LLMC_UNROLL
    for (int s = 0; s < kSegments; s++) largest[s] = max_float(largest[s], __shfl_xor_sync(~0u, largest[s], 1));
    const uint32_t exponents = segment_exponents<S>(largest);
    if (row >= N) {
        if (S == Fp8Scaling::mx && half == 0 && row_scales != nullptr)
            store_scales<S>(row_scales, exponents, N, C, row, corner.column);
        return;
    }
    LLMC_NO_UNROLL
    for (int s = 0; s < kSegments; s++) {
        const int column = corner.column + s * kSegment + half * 16;
        if (column >= C) break;
        uint32_t codes[2][2];
        const float scale = power_of_two(-exponent_of(exponents, s));
        for (int part = 0; part < 2; part++) {
            float x[8];
            load8(values + s * kSegment + part * 8, x);
            quantize_8<e4m3>(codes[part], tally, x, scale, pass);
        }
        if (row_codes == nullptr) continue;
        store16(row_codes + static_cast<size_t>(row) * C + column,
                {{codes[0][0], codes[0][1], codes[1][0], codes[1][1]}});
    }
    if (half == 0 && row_scales != nullptr) store_scales<S>(row_scales, exponents, N, C, row, corner.column);
}

// Columns: thread t takes 32 rows (t / 64) of two columns (t % 64), which lie in one word of the tile.
struct ColumnPair {
    int column, segment;
    LLMC_DEVICE ColumnPair()
        : column(static_cast<int>(threadIdx.x) % 64 * 2), segment(static_cast<int>(threadIdx.x) / 64) {}
    LLMC_DEVICE void values(float& first, float& second, const bf16* tile, int row) const {
        const bf16* both = tile + (segment * kSegment + row) * kPitch + column;
        const uint32_t word = *reinterpret_cast<const uint32_t*>(both);
        first = bf16x2_low(word), second = bf16x2_high(word);
    }
};

// Results that the threads of a column exchange, by (segment, column).
struct ColumnNotes {
    float largest[kSegments * kTile];
    float sums[kSegments * kTile];
};

LLMC_DEVICE void note_columns(ColumnNotes& notes, const bf16* tile) {
    const ColumnPair pair;
    float largest[2] = {}, sums[2] = {};
    LLMC_UNROLL
    for (int r = 0; r < kSegment; r++) {
        float x[2];
        pair.values(x[0], x[1], tile, r);
        for (int i = 0; i < 2; i++) {
            largest[i] = max_float(largest[i], finite_magnitude(x[i]));
            sums[i] += x[i];
        }
    }
    for (int i = 0; i < 2; i++) {
        notes.largest[pair.segment * kTile + pair.column + i] = largest[i];
        notes.sums[pair.segment * kTile + pair.column + i] = sums[i];
    }
}

LLMC_DEVICE void store_column_sums(float* parts, const ColumnNotes& notes, const TileCorner& corner, int C) {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= kTile || corner.column + t >= C) return;
    float sum = 0.0f;
    LLMC_UNROLL
    for (int s = 0; s < kSegments; s++) sum += notes.sums[s * kTile + t];
    parts[static_cast<size_t>(corner.row / kTile) * C + corner.column + t] = sum;
}

template <Fp8Scaling S>
LLMC_DEVICE void quantize_column_pair(uint32_t (&codes)[2][8], void* scales, const ColumnNotes& notes, const bf16* tile,
                                      const TileCorner& corner, int N, int C) {
    const ColumnPair pair;
    float scale[2];
    LLMC_UNROLL
    for (int i = 0; i < 2; i++) {
        float largest[kSegments];
        LLMC_UNROLL
        for (int s = 0; s < kSegments; s++) largest[s] = notes.largest[s * kTile + pair.column + i];
        const uint32_t exponents = segment_exponents<S>(largest);
        const int column = corner.column + pair.column + i;
        if (pair.segment == 0 && (column < C || S == Fp8Scaling::mx))
            store_scales<S>(scales, exponents, C, N, column, corner.row);
        scale[i] = power_of_two(-exponent_of(exponents, pair.segment));
    }
    LLMC_UNROLL
    for (int eight = 0; eight < kSegment / 8; eight++) {
        float x[2][8];
        for (int r = 0; r < 8; r++) pair.values(x[0][r], x[1][r], tile, eight * 8 + r);
        LLMC_UNROLL
        for (int i = 0; i < 2; i++) {
            uint32_t words[2];
            for (int r = 0; r < 8; r++) x[i][r] *= scale[i];
            cast_8<e4m3>(words, x[i]);
            codes[i][eight * 2] = words[0], codes[i][eight * 2 + 1] = words[1];
        }
    }
}

LLMC_DEVICE void put_column_codes(uint8_t* staged, const uint32_t (&codes)[2][8]) {
    const ColumnPair pair;
    for (int i = 0; i < 2; i++) {
        uint8_t* to = staged + (pair.column + i) * kCodePitch + pair.segment * kSegment;
        store16(to, {{codes[i][0], codes[i][1], codes[i][2], codes[i][3]}});
        store16(to + 16, {{codes[i][4], codes[i][5], codes[i][6], codes[i][7]}});
    }
}

// Eight neighbouring threads write a column's 128 bytes.
LLMC_DEVICE void store_column_codes(e4m3* transposed, const uint8_t* staged, const TileCorner& corner, int N, int C) {
    LLMC_UNROLL
    for (int i = 0; i < kTile * kTile / 16 / kQuantizeThreads; i++) {
        const int index = i * kQuantizeThreads + static_cast<int>(threadIdx.x);
        const int column = index / (kTile / 16), row = index % (kTile / 16) * 16;
        if (corner.column + column >= C || corner.row + row >= N) continue;
        store16(transposed + static_cast<size_t>(corner.column + column) * N + corner.row + row,
                load16(staged + column * kCodePitch + row));
    }
}

}  // namespace

template <Fp8Scaling S>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_blocks_kernel(e4m3* row, void* row_scales, e4m3* transposed, void* transposed_scales, float* parts,
                           Fp8State* state, const bf16* inp, int N, int C, QuantizePass pass) {
    LLMC_SHARED(bf16, tile, [kTile * kPitch]);
    LLMC_SHARED(QuantizeTally, tallies, [kQuantizeThreads]);
    LLMC_SHARED(ColumnNotes, notes, [1]);
    const TileCorner corner(C);
    load_tile(tile, inp, corner, N, C);
    __syncthreads();
    QuantizeTally tally;
    quantize_rows<S>(row, row_scales, tally, tile, corner, N, C, pass);
    tallies[threadIdx.x] = tally;
    note_columns(notes[0], tile);
    __syncthreads();
    commit_tallies(state, tallies, static_cast<size_t>(N) * C, pass);
    if (parts != nullptr) store_column_sums(parts, notes[0], corner, C);
    if (transposed == nullptr) return;
    uint32_t codes[2][8];
    quantize_column_pair<S>(codes, transposed_scales, notes[0], tile, corner, N, C);
    __syncthreads();
    uint8_t* staged = reinterpret_cast<uint8_t*>(&tile[0]);
    put_column_codes(staged, codes);
    __syncthreads();
    store_column_codes(transposed, staged, corner, N, C);
}

// ---- weights -------------------------------------------------------------------------------------------------------

// Returns the largest finite magnitude of the block's tile to every thread.
template <class Master>
LLMC_DEVICE float tile_amax(const Master* master, int C, float* scratch) {
    const TileCorner corner(C);
    const WeightOwner own;
    float largest = 0.0f;
    constexpr int kAtOnce = 8;  // rows that are loaded together
    LLMC_UNROLL
    for (int first = 0; first < WeightOwner::kRows; first += kAtOnce)
        piece_by_piece([&] {
            LLMC_UNROLL
            for (int i = first; i < first + kAtOnce; i++) {
                const int row = corner.row + own.warp + i * WeightOwner::kWarps;
                float x[4];
                load4(master + static_cast<size_t>(row) * C + corner.column + own.word * 4, x);
                for (int k = 0; k < 4; k++) largest = max_float(largest, finite_magnitude(x[k]));
            }
        });
    return block_max(largest, scratch);
}

template <class Master>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_weight_tiles_kernel(e4m3* row, float* row_scales, e4m3* transposed, float* transposed_scales,
                                 Fp8State* state, const Master* master, int R, int C, QuantizePass pass) {
    LLMC_SHARED(float, scratch, [32]);
    const TileCorner corner(C);
    const int exponent = block_exponent(tile_amax(master, C, scratch));
    if (threadIdx.x == 0) {
        row_scales[tile_scale_index(C, corner.row, corner.column)] = power_of_two(exponent);
        transposed_scales[tile_scale_index(R, corner.column, corner.row)] = power_of_two(exponent);
    }
    quantize_weight_tile(row, transposed, state, power_of_two(-exponent), master, R, C, pass);
}

// ---- launchers -----------------------------------------------------------------------------------------------------

namespace {

void check_blocks(const char* launcher, const Fp8State* state, int N, int C, int multiple) {
    for (const auto& [name, value] : {std::pair{"N", N}, std::pair{"C", C}})
        if (value < multiple || value % multiple != 0)
            throw Error(ExitCode::failure, "{}: {}={} is not a positive multiple of {}, a block of scales", launcher,
                        name, value, multiple);
    if (state == nullptr) throw Error(ExitCode::failure, "{}: the FP8 state is missing", launcher);
}

template <class T = char>
Tensor<T> scales_written(void* scales, ScaleLayout layout, int rows, int K) {
    const size_t bytes = scale_bytes(layout, static_cast<size_t>(rows), static_cast<size_t>(K));
    return out(static_cast<T*>(scales), bytes / sizeof(T));
}

}  // namespace

void quantize_blocks(const Quantized<e4m3>& to, float* dbias, float* scratch, const bf16* inp, int N, int C,
                     Fp8Scaling scaling, bool accumulate, QuantizePass pass, stream_t stream) {
    check_blocks("quantize_blocks", to.state, N, C, scaling == Fp8Scaling::mx ? kMxVector : kScaleVector);
    if (scaling == Fp8Scaling::tensor || pass == QuantizePass::measure || !to.row != !to.row_scales ||
        !to.transposed != !to.transposed_scales)
        throw Error(ExitCode::failure, "quantize_blocks: each layout needs its scales, and blocks need no measuring");
    const QuantizeLaunch<e4m3> l("quantize_blocks", to, dbias, scratch, N, C, pass, stream);
    const ScaleLayout layout = scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors;
    with_one_of<Fp8Scaling::mx, Fp8Scaling::block>(scaling, [&]<Fp8Scaling S>() {
        host::launch_or_loop<quantize_blocks_kernel<S>, host::quantize_blocks<S>>(
            l.config, out(l.row, l.elements), scales_written(to.row_scales, layout, N, C),
            out(l.transposed, l.elements), scales_written(to.transposed_scales, layout, C, N),
            out(l.parts, l.part_elements), state_access(to.state, pass), in(inp, l.elements), N, C, pass);
    });
    l.finish_bias(dbias, C, accumulate);
}

void quantize_weight_tiles(const Quantized<e4m3>& to, const StateArray& masters, int R, int C, QuantizePass pass,
                           stream_t stream) {
    check_blocks("quantize_weight_tiles", to.state, R, C, kScaleVector);
    if (!to.row || !to.transposed || !to.row_scales || !to.transposed_scales || pass == QuantizePass::measure)
        throw Error(ExitCode::failure, "quantize_weight_tiles: both layouts and their scales are needed");
    const QuantizeLaunch<e4m3> l("quantize_weight_tiles", to, nullptr, nullptr, R, C, pass, stream);
    masters.typed([&]<class Master>(const Master* master) {
        host::launch_or_loop<quantize_weight_tiles_kernel<Master>, host::quantize_weight_tiles<Master>>(
            l.config, out(l.row, l.elements), scales_written<float>(to.row_scales, ScaleLayout::tiles, R, C),
            out(l.transposed, l.elements), scales_written<float>(to.transposed_scales, ScaleLayout::tiles, C, R),
            state_access(to.state, pass), in(master, l.elements), R, C, pass);
    });
}

}  // namespace llmc
