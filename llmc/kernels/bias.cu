// Biases and their gradients: see bias.h.
#include "llmc/kernels/bias.h"

#include <algorithm>

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"

namespace llmc {

// ---- forward: a thread has eight columns, and every gridDim.y-th row of them ---------------------------------------

constexpr int kRowsOfThread = 8;

template <class Real>
static __global__ void __launch_bounds__(256) add_bias_kernel(Real* out, const Real* bias, int N, int OC) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (column >= OC) return;
    float add[8];
    load8(bias + column, add);
    for (int row = static_cast<int>(blockIdx.y); row < N; row += static_cast<int>(gridDim.y)) {
        Real* const at = out + static_cast<size_t>(row) * OC + column;
        float x[8];
        load8(at, x);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) x[i] += add[i];
        store8(at, x);
    }
}

template <class Real>
void add_bias(Real* out, const Real* bias, int N, int OC, stream_t stream) {
    check_rows("add_bias", N, OC);
    constexpr int kMostBlocks = 2048;  // one above the other: fills any card
    const int threads = std::min(256, div_up(OC / 8, 32) * 32);
    const dim3 grid(static_cast<unsigned>(div_up(OC / 8, threads)),
                    static_cast<unsigned>(std::min(div_up(N, kRowsOfThread), kMostBlocks)));
    launch<add_bias_kernel<Real>>({grid, dim3(static_cast<unsigned>(threads)), 0, stream},
                                  inout(out, static_cast<size_t>(N) * OC), in(bias, static_cast<size_t>(OC)), N, OC);
}

template void add_bias(float*, const float*, int, int, stream_t);
template void add_bias(bf16*, const bf16*, int, int, stream_t);

// ---- backward ------------------------------------------------------------------------------------------------------

template <class Real>
struct BiasGradientRows {
    const Real* dout;
    struct Inputs {
        float dout[8];
    };
    LLMC_DEVICE void load(Inputs& inputs, size_t at) const { load8(dout + at, inputs.dout); }
    LLMC_DEVICE void finish(float (&values)[8], const Inputs& inputs, size_t) const {
        LLMC_UNROLL
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
        KernelVariant::host_sums, {plan.grid(), dim3(kColumnSumThreads), 0, stream}, out(scratch, plan.scratch(C)),
        in(dout, static_cast<size_t>(N) * C), N, C, plan.lanes);
    reduce_column_parts(dbias, nullptr, scratch, plan.parts, C, C, accumulate, stream);
}

template void bias_gradient(float*, float*, const float*, int, int, bool, stream_t);
template void bias_gradient(float*, float*, const bf16*, int, int, bool, stream_t);

}  // namespace llmc
