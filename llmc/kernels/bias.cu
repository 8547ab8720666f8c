// Gradients of biases (bias.h), and the second half of deterministic column sums (column_sums.cuh).
#include "llmc/kernels/bias.h"

#include <algorithm>

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {

// ---- sums of columns: the number of parts, and their sum -----------------------------------------------------------

ColumnSumPlan::ColumnSumPlan(int N, int C) {
    constexpr int kTargetBlocks = 3 * 132;  // GELU's backward has 80 registers, so a multiprocessor holds three blocks
    constexpr int kRowsPerThread = 16;      // below this, starting a block and writing its part would dominate
    lanes = 1;
    while (lanes < 32 && lanes * 8 < C) lanes *= 2;
    slabs = div_up(C, 8 * lanes);
    const int by_rows = div_up(N, kColumnSumThreads / lanes * kRowsPerThread);
    parts = std::max(1, std::min(by_rows, kTargetBlocks / slabs));
}

constexpr int kReduceLanes = 16;                  // threads side by side, 4 columns each
constexpr int kReduceColumns = kReduceLanes * 4;  // columns of a block
constexpr int kReduceRows = 256 / kReduceLanes;   // threads below each other
constexpr int kReduceParts = 2 * kReduceRows;     // parts read at a time: each thread reads two, into two sums

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
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 4; i++) sum[half][i] += values[half][i];
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
        {dim3(div_up(columns, kReduceColumns)), dim3(256), 0, stream},
        accumulate ? inout(first, first_size) : out(first, first_size),
        accumulate ? inout(second, second_size) : out(second, second_size),
        in(parts, static_cast<size_t>(count) * columns), count, columns, split, accumulate);
}

// ---- gradient ------------------------------------------------------------------------------------------------------

template <class Real>
struct BiasGradientRows {
    const Real* dout;
    struct Inputs {
        float dout[8];
    };
    LLMC_DEVICE void load(Inputs& inputs, size_t at) const { load8(dout + at, inputs.dout); }
    LLMC_DEVICE void finish(float (&values)[8], const Inputs& inputs, size_t) const {
        for (int i = 0; i < 8; i++) values[i] = inputs.dout[i];
    }
};

template <class Real>
static __global__ void __launch_bounds__(kColumnSumThreads)
    bias_gradient_kernel(float* parts, const Real* dout, int N, int C, int lanes) {
    sum_part_of_columns(parts, N, C, lanes, BiasGradientRows<Real>{dout});
}

size_t bias_gradient_scratch(int N, int C) { return ColumnSumPlan(N, C).scratch(C); }

template <class Real>
void bias_gradient(float* dbias, float* scratch, const Real* dout, int N, int C, bool accumulate, stream_t stream) {
    check_rows("bias_gradient", N, C);
    const ColumnSumPlan plan(N, C);
    host::launch_or_loop<bias_gradient_kernel<Real>, host::bias_gradient<Real>>(
        {plan.grid(), dim3(kColumnSumThreads), 0, stream}, out(scratch, plan.scratch(C)),
        in(dout, static_cast<size_t>(N) * C), N, C, plan.lanes);
    reduce_column_parts(dbias, nullptr, scratch, plan.parts, C, C, accumulate, stream);
}

LLMC_INSTANTIATE_BOTH(bias_gradient, float, bf16);

}  // namespace llmc
