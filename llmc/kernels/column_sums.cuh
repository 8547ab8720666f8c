// Sums over the rows of an (N, C) matrix in a fixed order: the part that bias gradients, the gradients of layer norm's
// weights and the fused GELU backward have in common.
//
// Two kernels. The first cuts the rows into parts: each block sums its part in registers and writes one row of the
// scratch array (parts, C). The second (reduce_column_parts) adds the parts. No atomics; the number of parts is a
// function of N and C alone, never of the card, so that the same numbers give the same bits everywhere.
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc {

constexpr int kColumnSumThreads = 256;
constexpr int kColumnSumRows = 4;  // rows that a thread loads before it uses the first

// How many blocks of so many warps run at once on an H100, whose 132 multiprocessors have room for 16 warps of kernels
// that use up to 128 registers a thread. More would be a second, nearly empty wave; and with as many, every
// multiprocessor has the same work. Grids follow this card whatever runs them: sums must not depend on the card.
constexpr int blocks_at_once(int warps) { return 132 * (warps < 16 ? 16 / warps : 1); }

// How column_sum blocks tile (N, C): 8 columns a thread, `lanes` threads side by side, 256 / lanes rows at a time.
struct ColumnSumPlan {
    int lanes;  // power of two, at most 32: narrow matrices leave few threads idle
    int slabs;  // ranges of 8 * lanes columns: grid.x
    int parts;  // grid.y

    ColumnSumPlan(int N, int C);
    dim3 grid() const { return {static_cast<unsigned>(slabs), static_cast<unsigned>(parts), 1}; }
    size_t scratch(int C) const { return static_cast<size_t>(parts) * C; }  // floats
};

// Sums the block's part of the rows into parts[blockIdx.y]. `rows` says what is summed:
//
//   rows.load(inputs, at)             reads what the 8 elements from flat index `at` need into an Inputs
//   rows.finish(values, inputs, at)   computes the 8 values to be summed, and stores what else is wanted
//
// Loads of several rows come before the first finish, which may store: the compiler could not move them there itself.
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
                LLMC_UNROLL
                for (int i = 0; i < 8; i++) sum[i] += values[i];
            }
        } else {
            for (int r = 0; row + r * rows_per_pass < N && r < kColumnSumRows; r++) {
                typename Rows::Inputs inputs;
                float values[8];
                rows.load(inputs, at + r * step);
                rows.finish(values, inputs, at + r * step);
                LLMC_UNROLL
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

// first[c] = sum over p of parts[p][c] for c < split, second[c - split] likewise for the other columns (second may be
// nullptr when split == columns); added to what is there when `accumulate`. split and columns are multiples of 8.
// Reads 4 bytes per element of parts (count, columns), which the first kernel has left in the L2 cache.
void reduce_column_parts(float* first, float* second, const float* parts, int count, int columns, int split,
                         bool accumulate, stream_t stream);

}  // namespace llmc
