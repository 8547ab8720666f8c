// Quantizes an (N, C) matrix in both layouts at once: quantize_tile_kernel() around a producer, which computes the
// values (quantize_producers.cuh), and quantize_weight_tile(), the body of the kernels for FP32 weights. The
// unquantized values never go through memory.
//
// A block owns 128 x 128 values. A thread casts 16 columns of 4 rows, writes 16 bytes per row, and leaves the codes in
// shared memory. After one barrier it takes 16 rows of 4 columns from there and writes 16 bytes per column. So both
// layouts leave in full 128-byte lines. Sums of columns, for a bias gradient, are taken on the way.
#pragma once
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/quantize_producers.cuh"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc {

constexpr int kQuantizeThreads = 256;
constexpr int kTileRows = 128, kTileColumns = 128;
constexpr int kTileWords = kTileColumns / 4;                   // words in a row of codes
constexpr int kTileChunks = kTileColumns / 16;                 // threads next to each other, with 16 columns each
constexpr int kTilePassRows = kQuantizeThreads / kTileChunks;  // rows that a block handles at a time
constexpr int kTilePasses = kTileRows / kTilePassRows;         // rows per thread
static_assert(kTileRows / 16 * kTileWords == kQuantizeThreads, "on the way out a thread has 16 rows of one word");

// Offset of a row's 16-byte chunk in the tile. Chunks are exchanged by (row / 16), which keeps both sides free of bank
// conflicts: eight threads that write a row's chunks, and eight threads that read words of one column 16 rows apart.
LLMC_DEVICE int tile_word(int row, int chunk) { return row * kTileWords + ((chunk ^ (row / 16)) % kTileChunks) * 4; }

// Column in (N, C) of the tile's column `local`; C if it is beyond the edge. With two halves, half of a tile's columns
// lie in the left half of C, and the other half are the columns that belong to them in the right half.
template <int Halves>
LLMC_DEVICE int tile_column(int corner_column, int local, int C) {
    constexpr int width = kTileColumns / Halves;
    const int column = corner_column / Halves + local % width;
    return column < C / Halves ? local / width * (C / Halves) + column : C;
}

struct TileCorner {
    int row, column;
    LLMC_DEVICE explicit TileCorner(int C) {
        const int tiles_per_row = div_up(C, kTileColumns);
        row = static_cast<int>(blockIdx.x) / tiles_per_row * kTileRows;
        column = static_cast<int>(blockIdx.x) % tiles_per_row * kTileColumns;
    }
};

// Stage 1 of a thread: 16 columns of every 32nd row go from the producer to `row`, `tile`, the tally and the sums.
template <class F8, class Producer>
LLMC_DEVICE void quantize_tile_rows(F8* row_codes, uint32_t* tile, QuantizeTally& tally, float (&sums)[2][8],
                                    float scale, const Producer& producer, int N, int C, QuantizePass pass) {
    const TileCorner corner(C);
    const int chunk = static_cast<int>(threadIdx.x) % kTileChunks;
    const int column = tile_column<Producer::kHalves>(corner.column, chunk * 16, C);
    if (column >= C) return;
    constexpr int kAtOnce = 2;  // rows that are loaded together
    LLMC_UNROLL
    for (int pass_index = 0; pass_index < kTilePasses; pass_index += kAtOnce) {
        typename Producer::Inputs inputs[kAtOnce];
        const int first = static_cast<int>(threadIdx.x) / kTileChunks + pass_index * kTilePassRows;
        LLMC_UNROLL
        for (int r = 0; r < kAtOnce; r++) {
            const int row = corner.row + first + r * kTilePassRows;  // past the end, the last row is read and not used
            producer.load(inputs[r], row < N ? row : N - 1, column, C);
        }
        LLMC_UNROLL
        for (int r = 0; r < kAtOnce; r++) {
            const int local = first + r * kTilePassRows, row = corner.row + local;
            if (row >= N) continue;
            float x[2][8];
            uint32_t codes[2][2] = {};
            producer.finish(x, inputs[r]);
            LLMC_UNROLL
            for (int h = 0; h < 2; h++) {
                quantize_8<F8>(codes[h], tally, x[h], scale, pass);
                if constexpr (Producer::kSumsColumns)
                    for (int i = 0; i < 8; i++) sums[h][i] += x[h][i];
            }
            if (!writes_fp8(pass)) continue;
            const Bytes16 bytes{{codes[0][0], codes[0][1], codes[1][0], codes[1][1]}};
            store16(tile + tile_word(local, chunk), bytes);
            if (row_codes != nullptr) store16(row_codes + static_cast<size_t>(row) * C + column, bytes);
        }
    }
}

// Stage 2 of a thread: 16 rows of 4 columns go from `tile` to `transposed` (C, N). Eight neighbours write 128 bytes.
template <int Halves = 1, class F8>
LLMC_DEVICE void quantize_tile_columns(F8* transposed, const uint32_t* tile, int N, int C) {
    const TileCorner corner(C);
    const int piece = static_cast<int>(threadIdx.x) % (kTileRows / 16);
    const int word = static_cast<int>(threadIdx.x) / (kTileRows / 16);
    const int column = tile_column<Halves>(corner.column, word * 4, C);
    if (corner.row + piece * 16 >= N || column >= C) return;
    uint32_t rows[4][4];
    for (int i = 0; i < 16; i++) rows[i / 4][i % 4] = tile[tile_word(piece * 16 + i, word / 4) + word % 4];
    store_columns(transposed + static_cast<size_t>(column) * N + corner.row + piece * 16, N, rows);
}

// Column sums go through shared memory: `put` before the block's barrier; `get` after it writes the tile's row of
// `parts` (row tiles, C). Threads add in a fixed order.
//
// The memory is four planes of 4 floats per thread, (rows, chunks, 4) each, so that neither side has bank conflicts.
constexpr int kColumnSumPlane = kTilePassRows * kTileChunks * 4;
LLMC_DEVICE void put_column_sums(float* shared, const float (&sums)[2][8]) {
    float* mine = shared + threadIdx.x * 4;
    for (int h = 0; h < 2; h++) {
        store4(mine + 2 * h * kColumnSumPlane, sums[h]);
        store4(mine + (2 * h + 1) * kColumnSumPlane, sums[h] + 4);
    }
}
LLMC_DEVICE void get_column_sums(float* parts, const float* shared, int C) {
    const TileCorner corner(C);
    const int slot = static_cast<int>(threadIdx.x) - (kQuantizeThreads - kTileColumns);  // the first warps have tallies
    if (slot < 0) return;
    const int plane = slot / (kTileColumns / 4), place = slot % (kTileColumns / 4);  // each warp has a plane
    const int column = corner.column + place / 4 * 16 + plane * 4 + place % 4;
    if (column >= C) return;
    const float* const first = shared + plane * kColumnSumPlane + place;
    float total = 0.0f;
    LLMC_UNROLL
    for (int r = 0; r < kTilePassRows; r++) total += first[r * kTileChunks * 4];
    parts[static_cast<size_t>(corner.row / kTileRows) * C + column] = total;
}

// Pointers that are nullptr are not written. In pass `measure`, row, transposed and parts must be nullptr.
template <class F8, class Producer>
static __global__ void __launch_bounds__(kQuantizeThreads, Producer::kHalves == 1 ? 3 : 0)
    quantize_tile_kernel(F8* row, F8* transposed, float* parts, Fp8State* state, Producer producer, int N, int C,
                         QuantizePass pass) {
    static_assert(Producer::kHalves == 1 || !Producer::kSumsColumns);
    LLMC_SHARED(uint32_t, tile, [kTileRows * kTileWords]);
    LLMC_SHARED(QuantizeTally, tallies, [kQuantizeThreads]);
    float* shared_sums = nullptr;
    if constexpr (Producer::kSumsColumns) {
        LLMC_SHARED(float, sums_of_rows, [kTilePassRows * kTileColumns]);
        shared_sums = &sums_of_rows[0];
    }
    QuantizeTally tally;
    float sums[2][8] = {};
    quantize_tile_rows(row, tile, tally, sums, state->scale, producer, N, C, pass);
    tallies[threadIdx.x] = tally;
    if (Producer::kSumsColumns && parts != nullptr) put_column_sums(shared_sums, sums);
    __syncthreads();
    commit_tallies(state, tallies, static_cast<size_t>(N) * C, pass);
    if (Producer::kSumsColumns && parts != nullptr) get_column_sums(parts, shared_sums, C);
    if (transposed != nullptr) quantize_tile_columns<Producer::kHalves>(transposed, tile, N, C);
}

// ---- weights -------------------------------------------------------------------------------------------------------

// Shares of a tile of FP32 or BF16 masters: a warp takes a row at a time, a thread 4 columns of it. With sixteen
// columns per thread, every 32-byte sector would be requested twice.
struct WeightOwner {
    static constexpr int kWarps = kQuantizeThreads / 32, kRows = kTileRows / kWarps;  // rows per thread, kWarps apart
    int warp, word;
    LLMC_DEVICE WeightOwner() : warp(static_cast<int>(threadIdx.x) / 32), word(static_cast<int>(threadIdx.x) % 32) {}
};
static_assert(kTileWords == 32 && WeightOwner::kWarps == 8, "a row for a warp; two rows of a thread make sixteen");

// Stage 1 of a thread: values go from `master` (R, C) to `row`, `tile` and the tally.
template <class Master>
LLMC_DEVICE void quantize_weight_rows(e4m3* row_codes, uint32_t* tile, QuantizeTally& tally, float scale,
                                      const Master* master, int R, int C, QuantizePass pass) {
    const TileCorner corner(C);
    const WeightOwner own;
    const int column = corner.column + own.word * 4;
    if (column >= C) return;
    constexpr int kAtOnce = 8;  // rows that are loaded together
    LLMC_UNROLL
    for (int i = 0; i < WeightOwner::kRows; i += kAtOnce) {
        const int first = own.warp + i * WeightOwner::kWarps;
        float x[kAtOnce / 2][8];
        LLMC_UNROLL
        for (int r = 0; r < kAtOnce; r++) {
            const int row = corner.row + first + r * WeightOwner::kWarps;  // past the end, reads the last row
            load4(master + static_cast<size_t>(row < R ? row : R - 1) * C + column, x[r / 2] + r % 2 * 4);
        }
        LLMC_UNROLL
        for (int pair = 0; pair < kAtOnce / 2; pair++) {
            const int local = first + 2 * pair * WeightOwner::kWarps;
            if (corner.row + local >= R) continue;  // R is a multiple of 16: both rows or none
            uint32_t codes[2] = {};
            quantize_8<e4m3>(codes, tally, x[pair], scale, pass);
            if (!writes_fp8(pass)) continue;
            for (int half = 0; half < 2; half++) {
                const int local_row = local + half * WeightOwner::kWarps;
                tile[tile_word(local_row, own.word / 4) + own.word % 4] = codes[half];
                if (row_codes == nullptr) continue;
                e4m3* target = row_codes + static_cast<size_t>(corner.row + local_row) * C + column;
                *reinterpret_cast<uint32_t*>(target) = codes[half];
            }
        }
    }
}

// The body of a weight's kernel. Pointers are as in quantize_tile_kernel().
template <class Master>
LLMC_DEVICE void quantize_weight_tile(e4m3* row, e4m3* transposed, Fp8State* state, float scale, const Master* master,
                                      int R, int C, QuantizePass pass) {
    LLMC_SHARED(uint32_t, tile, [kTileRows * kTileWords]);
    LLMC_SHARED(QuantizeTally, tallies, [kQuantizeThreads]);
    QuantizeTally tally;
    quantize_weight_rows(row, tile, tally, scale, master, R, C, pass);
    tallies[threadIdx.x] = tally;
    __syncthreads();
    commit_tallies(state, tallies, static_cast<size_t>(R) * C, pass);
    if (transposed != nullptr) quantize_tile_columns(transposed, tile, R, C);
}

// ---- launch --------------------------------------------------------------------------------------------------------

// The part that launchers of tile kernels share: checks, the grid, and the outputs that the pass writes.
template <class F8>
struct QuantizeLaunch {
    F8 *row, *transposed;
    float* parts;
    size_t elements, part_elements;
    int part_count;
    LaunchConfig config;

    QuantizeLaunch(const char* launcher, const Quantized<F8>& to, float* dbias, float* scratch, int N, int C,
                   QuantizePass pass, stream_t stream)
        : row(writes_fp8(pass) ? to.row : nullptr),
          transposed(writes_fp8(pass) ? to.transposed : nullptr),
          parts(writes_fp8(pass) && dbias != nullptr ? scratch : nullptr),
          elements(static_cast<size_t>(N) * C),
          part_count(div_up(N, kTileRows)),
          config(dim3(part_count * div_up(C, kTileColumns)), dim3(kQuantizeThreads), 0, stream) {
        check_quantize(launcher, to.state, N, C);
        if (dbias != nullptr && scratch == nullptr) {
            throw Error(ExitCode::failure, "{}: a bias gradient needs scratch", launcher);
        }
        part_elements = static_cast<size_t>(part_count) * C;
    }
    void finish_bias(float* dbias, int C, bool accumulate) const {
        if (parts != nullptr) {
            reduce_column_parts(dbias, nullptr, parts, part_count, C, C, accumulate, config.stream);
        }
    }
};

// Quantizes the producer's values, and computes the bias gradient if dbias is given.
template <class F8, class Producer>
void quantize_tiles(const char* launcher, const Quantized<F8>& to, float* dbias, float* scratch,
                    const Producer& producer, int N, int C, bool accumulate, QuantizePass pass, stream_t stream) {
    const QuantizeLaunch<F8> l(launcher, to, dbias, scratch, N, C, pass, stream);
    const auto [first, second] = producer.inputs(l.elements);
    host::launch_or_loop<quantize_tile_kernel<F8, Producer>, host::quantize_tile<F8, Producer>>(
        l.config,
        {out(l.row, l.elements), out(l.transposed, l.elements), out(l.parts, l.part_elements),
         state_access(to.state, pass), first, second},
        l.row, l.transposed, l.parts, to.state, producer, N, C, pass);
    l.finish_bias(dbias, C, accumulate);
}

}  // namespace llmc
