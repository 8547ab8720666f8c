// Plain activation kernels (activation.h). A thread has eight elements at a time, in 16-byte accesses.
#include "llmc/kernels/activation.h"

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"

namespace llmc {

constexpr int kThreads = 256;

// ---- forward: GELU and ReLU squared --------------------------------------------------------------------------------

// A thread has kVectors vectors of eight elements; each is contiguous over the block.
template <class Activation, int kVectors, class Real>
LLMC_DEVICE void activate(Real* out, const Real* inp, size_t n) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * kVectors * kThreads + threadIdx.x) * 8;
    if (first >= n) return;
    float x[kVectors][8] = {};
    LLMC_UNROLL
    for (int v = 0; v < kVectors; v++) {
        if (v == 0 || first + v * kThreads * 8 < n) load8(inp + first + v * kThreads * 8, x[v]);
    }
    LLMC_UNROLL
    for (int v = 0; v < kVectors; v++) {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) x[v][i] = Activation::value(x[v][i]);
        if (v == 0 || first + v * kThreads * 8 < n) store8(out + first + v * kThreads * 8, x[v]);
    }
}

constexpr int kGeluVectors = 2;
template <class Real>
static __global__ void __launch_bounds__(kThreads) gelu_forward_kernel(Real* out, const Real* inp, size_t n) {
    activate<Gelu, kGeluVectors>(out, inp, n);
}

template <class Real>
static __global__ void __launch_bounds__(kThreads) relu2_forward_kernel(Real* out, const Real* inp, size_t n) {
    activate<Relu2, 1>(out, inp, n);
}

static LaunchConfig element_blocks(const char* launcher, size_t n, int vectors, stream_t stream) {
    if (n == 0 || n % 8 != 0) {
        throw Error(ExitCode::failure, "{}: n={} is not a positive multiple of 8 (16-byte accesses)", launcher, n);
    }
    return {dim3(div_up<size_t>(n, vectors * kThreads * 8)), dim3(kThreads), 0, stream};
}

template <class Real>
void gelu_forward(Real* out, const Real* inp, size_t n, stream_t stream) {
    host::launch_or_loop<gelu_forward_kernel<Real>, host::gelu_forward<Real>>(
        KernelVariant::host_activation, element_blocks("gelu_forward", n, kGeluVectors, stream), llmc::out(out, n),
        in(inp, n), n);
}

template <class Real>
void relu2_forward(Real* out, const Real* inp, size_t n, stream_t stream) {
    host::launch_or_loop<relu2_forward_kernel<Real>, host::relu2_forward<Real>>(
        KernelVariant::host_activation, element_blocks("relu2_forward", n, 1, stream), llmc::out(out, n), in(inp, n),
        n);
}

// ---- backward with a bias gradient: GELU ---------------------------------------------------------------------------

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
        for (int i = 0; i < 8; i++) values[i] = inputs.dout[i] * Gelu::derivative(inputs.inp[i]);
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

// ---- backward without a bias: ReLU squared -------------------------------------------------------------------------

template <class Activation, class Real>
LLMC_DEVICE void activate_backward(Real* dinp, const Real* dout, const Real* inp, size_t n) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
    if (at >= n) return;
    float x[8], d[8];
    load8(inp + at, x);
    load8(dout + at, d);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) d[i] *= Activation::derivative(x[i]);
    store8(dinp + at, d);
}

template <class Real>
static __global__ void __launch_bounds__(kThreads)
    relu2_backward_kernel(Real* dinp, const Real* dout, const Real* inp, size_t n) {
    activate_backward<Relu2>(dinp, dout, inp, n);
}

template <class Real>
void relu2_backward(Real* dinp, const Real* dout, const Real* inp, size_t n, stream_t stream) {
    host::launch_or_loop<relu2_backward_kernel<Real>, host::relu2_backward<Real>>(
        KernelVariant::host_activation, element_blocks("relu2_backward", n, 1, stream), out(dinp, n), in(dout, n),
        in(inp, n), n);
}

// ---- SwiGLU --------------------------------------------------------------------------------------------------------

// Offsets of a thread's eight elements in (N, F), and of their gate in (N, 2F). Their up lies F after the gate.
struct SwigluPlace {
    size_t out, gate;
    bool inside;
    LLMC_DEVICE SwigluPlace(int N, int F) {
        const unsigned piece = blockIdx.x * kThreads + threadIdx.x, pieces_per_row = static_cast<unsigned>(F) / 8;
        const unsigned row = piece / pieces_per_row;
        out = static_cast<size_t>(piece) * 8;
        gate = out + static_cast<size_t>(row) * F;
        inside = row < static_cast<unsigned>(N);
    }
};

template <class Real>
static __global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(Real* out, const Real* inp, int N, int F) {
    const SwigluPlace at(N, F);
    if (!at.inside) return;
    float gate[8], up[8];
    load8(inp + at.gate, gate);
    load8(inp + at.gate + F, up);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) up[i] = Swiglu::value(gate[i], up[i]);
    store8(out + at.out, up);
}

template <class Real>
static __global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(Real* dinp, const Real* dout, const Real* inp, int N, int F) {
    const SwigluPlace at(N, F);
    if (!at.inside) return;
    float gate[8], up[8], d[8];
    load8(inp + at.gate, gate);
    load8(inp + at.gate + F, up);
    load8(dout + at.out, d);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) Swiglu::gradients(d[i], gate[i], up[i], gate[i], up[i]);
    store8(dinp + at.gate, gate);
    store8(dinp + at.gate + F, up);
}

static LaunchConfig swiglu_blocks(const char* launcher, int N, int F, stream_t stream) {
    check_rows(launcher, N, F);
    const size_t blocks = div_up<size_t>(static_cast<size_t>(N) * F / 8, kThreads);
    if (blocks * kThreads > 0xffffffffu)
        throw Error(ExitCode::failure,
                    "{}: N={} rows of F={} are too many for 32-bit places; use a smaller micro-batch", launcher, N, F);
    return {dim3(blocks), dim3(kThreads), 0, stream};
}

template <class Real>
void swiglu_forward(Real* out, const Real* inp, int N, int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    host::launch_or_loop<swiglu_forward_kernel<Real>, host::swiglu_forward<Real>>(
        KernelVariant::host_activation, swiglu_blocks("swiglu_forward", N, F, stream), llmc::out(out, n),
        in(inp, 2 * n), N, F);
}

template <class Real>
void swiglu_backward(Real* dinp, const Real* dout, const Real* inp, int N, int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    host::launch_or_loop<swiglu_backward_kernel<Real>, host::swiglu_backward<Real>>(
        KernelVariant::host_activation, swiglu_blocks("swiglu_backward", N, F, stream), out(dinp, 2 * n), in(dout, n),
        in(inp, 2 * n), N, F);
}

#define LLMC_INSTANTIATE(Real)                                                                              \
    template void gelu_forward(Real*, const Real*, size_t, stream_t);                                       \
    template void gelu_backward(Real*, float*, float*, const Real*, const Real*, int, int, bool, stream_t); \
    template void relu2_forward(Real*, const Real*, size_t, stream_t);                                      \
    template void relu2_backward(Real*, const Real*, const Real*, size_t, stream_t);                        \
    template void swiglu_forward(Real*, const Real*, int, int, stream_t);                                   \
    template void swiglu_backward(Real*, const Real*, const Real*, int, int, stream_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
#undef LLMC_INSTANTIATE

}  // namespace llmc
