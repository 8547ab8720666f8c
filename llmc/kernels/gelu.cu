// GELU kernels: see gelu.h.
#include "llmc/kernels/gelu.h"

#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/host/loops.h"

namespace llmc {

// ---- forward: 16 elements a thread, in two vectors that are each contiguous over the block -------------------------

constexpr int kGeluVectors = 2;

template <class Real>
static __global__ void __launch_bounds__(256) gelu_forward_kernel(Real* out, const Real* inp, size_t n) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * kGeluVectors * 256 + threadIdx.x) * 8;
    float x[kGeluVectors][8] = {};
    LLMC_UNROLL
    for (int v = 0; v < kGeluVectors; v++) {
        if (first + v * 2048 < n) load8(inp + first + v * 2048, x[v]);
    }
    LLMC_UNROLL
    for (int v = 0; v < kGeluVectors; v++) {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) x[v][i] = gelu(x[v][i]);
        if (first + v * 2048 < n) store8(out + first + v * 2048, x[v]);
    }
}

template <class Real>
void gelu_forward(Real* out, const Real* inp, size_t n, stream_t stream) {
    if (n == 0) return;
    if (n % 8 != 0) {
        throw Error(ExitCode::failure, strprintf("gelu_forward: n=%zu is not a multiple of 8 (16-byte accesses)", n));
    }
    const size_t blocks = div_up<size_t>(n, kGeluVectors * 256 * 8);
    host::launch_or_loop<gelu_forward_kernel<Real>, host::gelu_forward<Real>>(
        KernelVariant::host_activation, {dim3(static_cast<unsigned>(blocks)), dim3(256), 0, stream}, llmc::out(out, n),
        in(inp, n), n);
}

// ---- backward, with the bias gradient ------------------------------------------------------------------------------

template <class Real>
struct GeluBackwardRows {
    Real* dinp;
    const Real *dout, *inp;
    struct Inputs {
        float dout[8], inp[8];
    };
    LLMC_DEVICE void load(Inputs& inputs, size_t at) const {
        load8(dout + at, inputs.dout);
        load8(inp + at, inputs.inp);
    }
    LLMC_DEVICE void finish(float (&values)[8], const Inputs& inputs, size_t at) const {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) values[i] = inputs.dout[i] * gelu_derivative(inputs.inp[i]);
        store8(dinp + at, values);
    }
};

template <class Real>
static __global__ void __launch_bounds__(kColumnSumThreads)
    gelu_backward_kernel(Real* dinp, float* parts, const Real* dout, const Real* inp, int N, int C, int lanes) {
    sum_part_of_columns(parts, N, C, lanes, GeluBackwardRows<Real>{dinp, dout, inp});
}

size_t gelu_backward_scratch(int N, int C) { return ColumnSumPlan(N, C).scratch(C); }

template <class Real>
void gelu_backward(Real* dinp, float* dbias, float* scratch, const Real* dout, const Real* inp, int N, int C,
                   bool accumulate, stream_t stream) {
    check_rows("gelu_backward", N, C);
    const ColumnSumPlan plan(N, C);
    const size_t n = static_cast<size_t>(N) * C;
    host::launch_or_loop<gelu_backward_kernel<Real>, host::gelu_backward<Real>>(
        KernelVariant::host_activation, {plan.grid(), dim3(kColumnSumThreads), 0, stream}, out(dinp, n),
        out(scratch, plan.scratch(C)), in(dout, n), in(inp, n), N, C, plan.lanes);
    if (dbias) reduce_column_parts(dbias, nullptr, scratch, plan.parts, C, C, accumulate, stream);
}

template void gelu_forward(float*, const float*, size_t, stream_t);
template void gelu_forward(bf16*, const bf16*, size_t, stream_t);
template void gelu_backward(float*, float*, float*, const float*, const float*, int, int, bool, stream_t);
template void gelu_backward(bf16*, float*, float*, const bf16*, const bf16*, int, int, bool, stream_t);

}  // namespace llmc
