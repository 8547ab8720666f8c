// Building blocks of the BF16 attention kernels: loading tiles of rows into shared memory, products of tiles, masks,
// and storing a warp's accumulators.
//
// A tile is some rows of a head's (T, HD) matrix in shared memory. Rows are padded by 16 bytes: for every supported HD,
// HD + 8 elements are an odd number of 16-byte pieces. The eight rows that one ldmatrix phase reads then lie in
// different banks, and neighbouring rows are a compile-time distance apart. (An XOR swizzle would save the padding but
// cost address registers.)
//
// Accumulators are arrays [F][N][4]: F fragments of 16 rows, N column tiles of 8 (layout: mma.cuh). With g = lane / 4
// and t = lane % 4, element i of column tile j of fragment f is row 16f + g + 8(i / 2), column 8j + 2t + i % 2.
#pragma once
#include <bit>

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/attention_window.cuh"

namespace llmc::attention {

template <int HD>
constexpr int kStride = HD + 8;  // elements from one row of a tile to the next
template <int HD>
constexpr size_t kRowBytes = kStride<HD> * sizeof(bf16);

// One head of qkv: rows of queries, keys and values, with `stride` elements between rows.
struct Head {
    const bf16 *query, *key, *value;
    size_t stride;
};
// Pointers to query head h, and to head kv of keys and values.
template <int HD>
LLMC_DEVICE Head head_of(const bf16* qkv, int b, int h, int kv, int T, int NH, int NKV) {
    const size_t stride = static_cast<size_t>(NH + 2 * NKV) * HD;
    const bf16* const sequence = qkv + static_cast<size_t>(b) * T * stride;
    const bf16* const key = sequence + static_cast<size_t>(NH + kv) * HD;
    return {sequence + static_cast<size_t>(h) * HD, key, key + static_cast<size_t>(NKV) * HD, stride};
}
// Offsets of head h of sequence b in (B, T, NH, HD), whose rows are NH * HD elements apart, and in (B, NH, T).
template <int HD>
LLMC_DEVICE size_t head_offset(int b, int h, int T, int NH) {
    return (static_cast<size_t>(b) * T * NH + h) * HD;
}
LLMC_DEVICE size_t row_statistics_offset(int b, int h, int T, int NH) { return (static_cast<size_t>(b) * NH + h) * T; }

// ---- delta ---------------------------------------------------------------------------------------------------------

// Adds eight columns of a row to its delta, which is the sum of dout * (out + out_low).
LLMC_DEVICE void add_to_delta(float& delta, const bf16* dout, const bf16* out, const bf16* out_low) {
    float gradient[8], high[8], low[8];
    load8(dout, gradient);
    load8(out, high);
    load8(out_low, low);
    for (int e = 0; e < 8; e++) delta += gradient[e] * (high[e] + low[e]);
}

// ---- load ----------------------------------------------------------------------------------------------------------

// Starts copying the first Columns columns of rows from first_row on of a (T, HD) matrix into a tile, 16 bytes per
// thread at a time. Rows from T on become zeros. The caller commits the group.
template <int HD, int Columns, int Rows, int Threads>
LLMC_DEVICE void load_columns(bf16* tile, const bf16* matrix, size_t stride, int first_row, int T) {
    constexpr int pieces = Columns / 8, rows_at_once = Threads / pieces;
    static_assert(Threads % pieces == 0 && (Rows % rows_at_once == 0 || Rows < rows_at_once));
    const int row = static_cast<int>(threadIdx.x) / pieces, column = static_cast<int>(threadIdx.x) % pieces * 8;
    if (Rows < rows_at_once && row >= Rows) return;
    const bf16* source = matrix + static_cast<size_t>(first_row + row) * stride + column;
    LLMC_UNROLL
    for (int i = 0; i < Rows; i += rows_at_once) {
        const bool valid = first_row + row + i < T;
        cp_async16(tile + (row + i) * kStride<HD> + column, valid ? source : matrix, valid);
        source += rows_at_once * stride;
    }
}
// The same for all columns. 80 and 96 columns do not divide the threads, so they are copied as 64 and the rest.
template <int HD, int Rows, int Threads>
LLMC_DEVICE void load_tile(bf16* tile, const bf16* matrix, size_t stride, int first_row, int T) {
    constexpr int first = static_cast<int>(std::bit_floor(static_cast<unsigned>(HD)));
    load_columns<HD, first, Rows, Threads>(tile, matrix, stride, first_row, T);
    if constexpr (first < HD)
        load_columns<HD, HD - first, Rows, Threads>(tile + first, matrix + first, stride, first_row, T);
}

// ---- multiply and accumulate ---------------------------------------------------------------------------------------

// The row that ldmatrix reads for this lane, as an offset into a tile, so that the four 8x8 matrices become the A
// fragment of 16 rows x 16 columns. Transposed, they are the B fragments of two column tiles of 8 from 16 rows of a
// row-major (k, n) matrix.
template <int HD>
LLMC_DEVICE int lane_offset_a() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    return (lane & 15) * kStride<HD> + (lane >> 4) * 8;
}
// The same for the B fragments of two column tiles from 16 rows of a row-major (n, k) matrix.
template <int HD>
LLMC_DEVICE int lane_offset_b() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    return ((lane & 7) + (lane >> 4) * 8) * kStride<HD> + (lane >> 3 & 1) * 8;
}

template <int F, int N>
LLMC_DEVICE void set_zero(float (&c)[F][N][4]) {
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        LLMC_UNROLL
        for (int j = 0; j < N; j++) c[f][j][0] = c[f][j][1] = c[f][j][2] = c[f][j][3] = 0.0f;
    }
}

// Loads the A fragments of a warp's 16 F rows, which stay in registers.
template <int HD, int F>
LLMC_DEVICE void load_fragments(uint32_t (&a)[F][HD / 16][4], const bf16* rows) {
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        LLMC_UNROLL
        for (int k = 0; k < HD / 16; k++)
            ldmatrix_x4<false>(a[f][k], rows + f * 16 * kStride<HD> + k * 16 + lane_offset_a<HD>());
    }
}

// c = A B^T over the head dimension, where B is 8 N rows of a tile.
template <int HD, int F, int N>
LLMC_DEVICE void multiply(float (&c)[F][N][4], const uint32_t (&a)[F][HD / 16][4], const bf16* b_rows) {
    set_zero(c);
    LLMC_UNROLL
    for (int k = 0; k < HD / 16; k++) {
        uint32_t b[N][2];
        ldmatrix_tiles<false>(b, b_rows + k * 16 + lane_offset_b<HD>(), 16 * kRowBytes<HD>);
        LLMC_UNROLL
        for (int f = 0; f < F; f++) mma_row(c[f], a[f][k], b);
    }
}

// The same with A in shared memory too, for kernels in which its fragments would take too many registers.
template <int HD, int F, int N>
LLMC_DEVICE void multiply(float (&c)[F][N][4], const bf16* a_rows, const bf16* b_rows) {
    set_zero(c);
    LLMC_UNROLL
    for (int k = 0; k < HD / 16; k++) {
        uint32_t b[N][2];
        ldmatrix_tiles<false>(b, b_rows + k * 16 + lane_offset_b<HD>(), 16 * kRowBytes<HD>);
        LLMC_UNROLL
        for (int f = 0; f < F; f++) {
            uint32_t a[4];
            ldmatrix_x4<false>(a, a_rows + f * 16 * kStride<HD> + k * 16 + lane_offset_a<HD>());
            mma_row(c[f], a, b);
        }
    }
}

// sums += bf16(weights) B. The weights are accumulators (16 F rows, 8 W columns), packed here into A fragments without
// leaving the registers; B is 8 W rows of a tile, N column tiles of them. With N = HD / 8 + 1, B gets a column tile of
// ones, so the last accumulators receive the row sums of the rounded weights.
template <int HD, int F, int W, int N>
LLMC_DEVICE void accumulate(float (&sums)[F][N][4], const float (&weights)[F][W][4], const bf16* b_rows) {
    static_assert(N <= HD / 8 + 1);
    constexpr uint32_t ones = 0x3f803f80u;  // two bf16
    LLMC_UNROLL
    for (int k = 0; k < W / 2; k++) {
        uint32_t b[N][2];
        ldmatrix_tiles<true>(b, b_rows + k * 16 * kStride<HD> + lane_offset_a<HD>(), 16 * sizeof(bf16));
        if constexpr (N > HD / 8) b[N - 1][0] = b[N - 1][1] = ones;
        LLMC_UNROLL
        for (int f = 0; f < F; f++) {
            const auto& left = weights[f][2 * k];
            const auto& right = weights[f][2 * k + 1];
            const uint32_t a[4] = {pack_bf16x2(left[0], left[1]), pack_bf16x2(left[2], left[3]),
                                   pack_bf16x2(right[0], right[1]), pack_bf16x2(right[2], right[3])};
            mma_row(sums[f], a, b);
        }
    }
}

// ---- mask ----------------------------------------------------------------------------------------------------------

// Writes -infinity to the scores of a masked tile that documents and windows exclude. Rows are the block's own, queries
// or keys. `diagonal` is (a lane's first query) - (its first key), and `windows` begin with its first row. This is a
// pass of its own, row by row, because softmax leaves no registers for all windows at once.
template <bool kOwnKeys, int F, int N>
LLMC_DEVICE void mask_rows(float (&scores)[F][N][4], int diagonal, const RowWindows<true>& windows) {
    LLMC_UNROLL
    for (int row = 0; row < 2 * F; row++) {
        const int place = 16 * (row >> 1) + 8 * (row & 1), window = windows[place];
        LLMC_UNROLL
        for (int column = 0; column < 2 * N; column++) {
            const int other = 8 * (column >> 1) + (column & 1);
            const int distance = diagonal + (kOwnKeys ? other - place : place - other);
            if (!in_window(distance, window))
                scores[row >> 1][column >> 1][2 * (row & 1) + (column & 1)] = float_from_bits(0xff800000u);
        }
    }
    __syncwarp();  // keeps the compiler from mixing later code with it
}

// ---- store ---------------------------------------------------------------------------------------------------------

// Rounds a warp's accumulators, times `factor`, into 8 N columns of its 16 F rows of a tile. Free of bank conflicts
// (see the top).
template <int HD, int F, int N>
LLMC_DEVICE void round_to_rows(bf16* rows, const float (&c)[F][N][4], float factor) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        bf16* corner = rows + (f * 16 + (lane >> 2)) * kStride<HD> + (lane & 3) * 2;
        LLMC_UNROLL
        for (int j = 0; j < N; j++) {
            store_word(corner + j * 8, pack_bf16x2(c[f][j][0] * factor, c[f][j][1] * factor));
            store_word(corner + 8 * kStride<HD> + j * 8, pack_bf16x2(c[f][j][2] * factor, c[f][j][3] * factor));
        }
    }
}

// Copies 16 bytes. nvcc writes a struct that comes from memory in words of four bytes, a vector at once.
LLMC_DEVICE void copy16(bf16* to, const bf16* from) {
#if LLMC_ON_GPU
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#else
    store16(to, load16(from));
#endif
}

// Copies a warp's rows of a tile to rows from first_row on of a (T, HD) matrix, 16 bytes per lane. Rows from T on are
// left out.
template <int HD, int Rows>
LLMC_DEVICE void store_rows(bf16* matrix, size_t stride, const bf16* rows, int first_row, int T) {
    constexpr int pieces = HD / 8;
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int i = 0; i < Rows * pieces / 32; i++) {
        const int piece = i * 32 + lane, row = piece / pieces, column = piece % pieces * 8;
        if (first_row + row < T)
            copy16(matrix + static_cast<size_t>(first_row + row) * stride + column, rows + row * kStride<HD> + column);
    }
}

}  // namespace llmc::attention
