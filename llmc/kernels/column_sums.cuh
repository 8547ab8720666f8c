// Sums over the rows of an (N, C) matrix in a fixed order, for bias gradients, the gradients of a norm's weights and
// the fused GELU backward.
//
// Two kernels. The first cuts the rows into parts: each block sums its part in registers and writes one row of the
// scratch array (parts, C). The second (reduce_column_parts, in bias.cu) adds the parts. There are no atomics, and the
// number of parts is a function of N and C alone, never of the card, so the same numbers give the same bits everywhere.
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc {

constexpr int kColumnSumThreads = 256;
constexpr int kColumnSumRows = 4;  // rows that a thread loads before it uses the first

// Number of blocks of `warps` warps that run at once on an H100, whose 132 multiprocessors have room for 16 warps of
// kernels with up to 128 registers per thread. More blocks would be a second, nearly empty wave; with exactly as many,
// every multiprocessor has the same work. Grids follow this card on every card, because sums must not depend on the
// card.
constexpr int blocks_at_once(int warps) { return 132 * (warps < 16 ? 16 / warps : 1); }

// Tiling of (N, C) by blocks: 8 columns per thread, `lanes` threads next to each other, 256 / lanes rows at a time.
struct ColumnSumPlan {
    int lanes;  // a power of two, at most 32, so that narrow matrices leave few threads idle
    int slabs;  // ranges of 8 * lanes columns: grid.x
    int parts;  // grid.y

    ColumnSumPlan(int N, int C);
    dim3 grid() const { return {static_cast<unsigned>(slabs), static_cast<unsigned>(parts), 1}; }
    size_t scratch(int C) const { return static_cast<size_t>(parts) * C; }  // floats
};

// Sums the block's part of the rows into parts[blockIdx.y]. `rows` defines the terms:
//
//   rows.load(inputs, at)             reads what the 8 elements from flat index `at` need into an Inputs
//   rows.finish(values, inputs, at)   computes the 8 values to be summed, and may store other results
//
// Several rows are loaded before the first finish. The compiler could not move loads there itself, because finish may
// store.
template <class Rows>
LLMC_DEVICE void sum_part_of_columns(float* parts, int N, int C, int lanes, const Rows& rows) {
    LLMC_SHARED(float, memory, [Eights<kColumnSumThreads>::size]);
    const Eights<kColumnSumThreads> sums{memory};
    const int row_in_pass = threadIdx.x / lanes, rows_per_pass = kColumnSumThreads / lanes;
    const int slab = blockIdx.x * lanes * 8, column = slab + threadIdx.x % lanes * 8;
    const int group = rows_per_pass * kColumnSumRows;
    float sum[8] = {};
    for (int first = blockIdx.y * group; first < N && column < C; first += gridDim.y * group) {
        const int row = first + row_in_pass;
        const size_t at = static_cast<size_t>(row) * C + column, step = static_cast<size_t>(rows_per_pass) * C;
        if (first + group <= N) {
            typename Rows::Inputs inputs[kColumnSumRows];
            LLMC_UNROLL
            for (int r = 0; r < kColumnSumRows; r++) rows.load(inputs[r], at + r * step);
            LLMC_UNROLL
            for (int r = 0; r < kColumnSumRows; r++) {
                float values[8];
                rows.finish(values, inputs[r], at + r * step);
                for (int i = 0; i < 8; i++) sum[i] += values[i];
            }
        } else {
            for (int r = 0; row + r * rows_per_pass < N && r < kColumnSumRows; r++) {
                typename Rows::Inputs inputs;
                float values[8];
                rows.load(inputs, at + r * step);
                rows.finish(values, inputs, at + r * step);
                for (int i = 0; i < 8; i++) sum[i] += values[i];
            }
        }
    }
    // Thread order is row-major, so `sums` is a (rows_per_pass, 8 * lanes) matrix.
    sums.store(threadIdx.x, sum);
    __syncthreads();
    const int offset = threadIdx.x;
    if (offset < 8 * lanes && slab + offset < C) {
        float total = 0.0f;
        for (int r = 0; r < rows_per_pass; r++) total += sums.at(r * 8 * lanes + offset);
        parts[static_cast<size_t>(blockIdx.y) * C + slab + offset] = total;
    }
}

// first[c] = sum over p of parts[p][c] for c < split, and second[c - split] likewise for the other columns; second may
// be nullptr if split == columns. Added to the old values if `accumulate`. split and columns are multiples of 8. Reads
// 4 bytes per element of parts (count, columns), which the first kernel has left in the L2 cache.
void reduce_column_parts(float* first, float* second, const float* parts, int count, int columns, int split,
                         bool accumulate, stream_t stream);

}  // namespace llmc
