// The second half of deterministic column sums: choosing the number of parts, and adding them.
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"

#include <algorithm>

namespace llmc {

ColumnSumPlan::ColumnSumPlan(int N, int C) {
    constexpr int kTargetBlocks = 3 * 132;  // the GELU's backward, at 80 registers, has three on each multiprocessor
    constexpr int kRowsPerThread = 16;      // below this, starting a block and writing its part would dominate
    lanes = 1;
    while (lanes < 32 && lanes * 8 < C) lanes *= 2;
    slabs = div_up(C, 8 * lanes);
    const int by_rows = div_up(N, kColumnSumThreads / lanes * kRowsPerThread);
    parts = std::max(1, std::min(by_rows, kTargetBlocks / slabs));
}

namespace {
constexpr int kReduceLanes = 16;                  // threads side by side, 4 columns each
constexpr int kReduceColumns = kReduceLanes * 4;  // columns of a block
constexpr int kReduceRows = 256 / kReduceLanes;   // threads on top of each other
constexpr int kReduceParts = 2 * kReduceRows;     // parts read at a time: two by each thread, into two sums
}  // namespace

static __global__ void __launch_bounds__(256)
    reduce_column_parts_kernel(float* first, float* second, const float* parts, int count, int columns, int split,
                               bool accumulate) {
    LLMC_SHARED(float, sums, [kReduceParts * kReduceColumns]);
    const int slab = blockIdx.x * kReduceColumns, own_column = threadIdx.x % kReduceLanes * 4;
    const int row = threadIdx.x / kReduceLanes, column = slab + own_column;
    float sum[2][4] = {};
    if (column < columns) {
        for (int p = row; p < count; p += kReduceParts) {
            float values[2][4] = {};
            load4(parts + static_cast<size_t>(p) * columns + column, values[0]);
            if (p + kReduceRows < count)
                load4(parts + static_cast<size_t>(p + kReduceRows) * columns + column, values[1]);
            LLMC_UNROLL
            for (int half = 0; half < 2; half++) {
                LLMC_UNROLL
                for (int i = 0; i < 4; i++) sum[half][i] += values[half][i];
            }
        }
    }
    store4(&sums[row * kReduceColumns + own_column], sum[0]);
    store4(&sums[(row + kReduceRows) * kReduceColumns + own_column], sum[1]);
    __syncthreads();
    const int c = slab + threadIdx.x;
    if (threadIdx.x >= kReduceColumns || c >= columns) return;
    float total = 0.0f;
    LLMC_UNROLL
    for (int p = 0; p < kReduceParts; p++) total += sums[p * kReduceColumns + threadIdx.x];
    float* target = c < split ? first + c : second + (c - split);
    *target = accumulate ? *target + total : total;
}

void reduce_column_parts(float* first, float* second, const float* parts, int count, int columns, int split,
                         bool accumulate, stream_t stream) {
    const size_t first_size = split, second_size = columns - split;
    host::launch_or_loop<reduce_column_parts_kernel, host::reduce_column_parts>(
        KernelVariant::host_sums, {dim3(div_up(columns, kReduceColumns)), dim3(256), 0, stream},
        accumulate ? inout(first, first_size) : out(first, first_size),
        accumulate ? inout(second, second_size) : out(second, second_size),
        in(parts, static_cast<size_t>(count) * columns), count, columns, split, accumulate);
}

}  // namespace llmc
