// Bias gradients: see bias.h.
#include "llmc/kernels/bias.h"

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"

namespace llmc {

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
    launch<bias_gradient_kernel<Real>>({plan.grid(), dim3(kColumnSumThreads), 0, stream}, out(scratch, plan.scratch(C)),
                                       in(dout, static_cast<size_t>(N) * C), N, C, plan.lanes);
    reduce_column_parts(dbias, nullptr, scratch, plan.parts, C, C, accumulate, stream);
}

template void bias_gradient(float*, float*, const float*, int, int, bool, stream_t);
template void bias_gradient(float*, float*, const bf16*, int, int, bool, stream_t);

}  // namespace llmc
