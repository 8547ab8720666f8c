// Plain activation kernels (activation.h). A thread has eight elements at a time, in 16-byte accesses.
#include "llmc/kernels/activation.h"

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {

// ---- forward: GELU and ReLU squared --------------------------------------------------------------------------------

// A thread has kVectors vectors of eight elements; each is contiguous over the block.
template <class Formula, int kVectors, class Real>
LLMC_DEVICE void activate(Real* out, const Real* inp, size_t n) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * kVectors * kBlockThreads + threadIdx.x) * 8;
    if (first >= n) return;
    float x[kVectors][8] = {};
    LLMC_UNROLL
    for (int v = 0; v < kVectors; v++) {
        if (v == 0 || first + v * kBlockThreads * 8 < n) load8(inp + first + v * kBlockThreads * 8, x[v]);
    }
    LLMC_UNROLL
    for (int v = 0; v < kVectors; v++) {
        for (int i = 0; i < 8; i++) x[v][i] = Formula::value(x[v][i]);
        if (v == 0 || first + v * kBlockThreads * 8 < n) store8(out + first + v * kBlockThreads * 8, x[v]);
    }
}

constexpr int kGeluVectors = 2;
template <class Real>
static __global__ void __launch_bounds__(kBlockThreads) gelu_forward_kernel(Real* out, const Real* inp, size_t n) {
    activate<Gelu, kGeluVectors>(out, inp, n);
}

template <class Real>
static __global__ void __launch_bounds__(kBlockThreads) relu2_forward_kernel(Real* out, const Real* inp, size_t n) {
    activate<Relu2, 1>(out, inp, n);
}

// n = N F elements, each thread with this many vectors.
static LaunchConfig element_blocks(const char* launcher, int N, int F, int vectors, stream_t stream) {
    check_rows(launcher, N, F);
    return {dim3(div_up<size_t>(static_cast<size_t>(N) * F, vectors * kBlockThreads * 8)), dim3(kBlockThreads), 0,
            stream};
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
        for (int i = 0; i < 8; i++) values[i] = inputs.dout[i] * Gelu::derivative(inputs.inp[i]);
        store8(dinp + at, values);
    }
};

template <class Real>
static __global__ void __launch_bounds__(kColumnSumThreads)
    gelu_backward_kernel(Real* dinp, float* parts, const Real* dout, const Real* inp, int N, int C, int lanes) {
    sum_part_of_columns(parts, N, C, lanes, GeluBackwardRows<Real>{dinp, dout, inp});
}

size_t activation_scratch(int N, int F) { return ColumnSumPlan(N, F).scratch(F); }

template <class Real>
static void gelu_backward(Real* dinp, const BiasGradient& bias, const Real* dout, const Real* inp, int N, int F,
                          stream_t stream) {
    check_rows("gelu_backward", N, F);
    const ColumnSumPlan plan(N, F);
    const size_t n = static_cast<size_t>(N) * F;
    host::launch_or_loop<gelu_backward_kernel<Real>, host::gelu_backward<Real>>(
        {plan.grid(), dim3(kColumnSumThreads), 0, stream}, out(dinp, n), out(bias.scratch, plan.scratch(F)),
        in(dout, n), in(inp, n), N, F, plan.lanes);
    if (bias.dbias) reduce_column_parts(bias.dbias, nullptr, bias.scratch, plan.parts, F, F, bias.accumulate, stream);
}

// ---- backward without a bias: ReLU squared -------------------------------------------------------------------------

template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    relu2_backward_kernel(Real* dinp, const Real* dout, const Real* inp, size_t n) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * 8;
    if (at >= n) return;
    float x[8], d[8];
    load8(inp + at, x);
    load8(dout + at, d);
    for (int i = 0; i < 8; i++) d[i] *= Relu2::derivative(x[i]);
    store8(dinp + at, d);
}

// ---- SwiGLU --------------------------------------------------------------------------------------------------------

// Offsets of a thread's eight elements in (N, F), and of their gate in (N, 2F). Their up lies F after the gate.
struct SwigluPlace {
    size_t out, gate;
    bool inside;
    LLMC_DEVICE SwigluPlace(int N, int F) {
        const unsigned piece = blockIdx.x * kBlockThreads + threadIdx.x, pieces_per_row = static_cast<unsigned>(F) / 8;
        const unsigned row = piece / pieces_per_row;
        out = static_cast<size_t>(piece) * 8;
        gate = out + static_cast<size_t>(row) * F;
        inside = row < static_cast<unsigned>(N);
    }
};

template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    swiglu_forward_kernel(Real* out, const Real* inp, int N, int F) {
    const SwigluPlace at(N, F);
    if (!at.inside) return;
    float gate[8], up[8];
    load8(inp + at.gate, gate);
    load8(inp + at.gate + F, up);
    for (int i = 0; i < 8; i++) up[i] = Swiglu::value(gate[i], up[i]);
    store8(out + at.out, up);
}

template <class Real>
static __global__ void __launch_bounds__(kBlockThreads)
    swiglu_backward_kernel(Real* dinp, const Real* dout, const Real* inp, int N, int F) {
    const SwigluPlace at(N, F);
    if (!at.inside) return;
    float gate[8], up[8], d[8];
    load8(inp + at.gate, gate);
    load8(inp + at.gate + F, up);
    load8(dout + at.out, d);
    for (int i = 0; i < 8; i++) Swiglu::gradients(d[i], gate[i], up[i], gate[i], up[i]);
    store8(dinp + at.gate, gate);
    store8(dinp + at.gate + F, up);
}

static LaunchConfig swiglu_blocks(const char* launcher, int N, int F, stream_t stream) {
    check_rows(launcher, N, F);
    const size_t blocks = div_up<size_t>(static_cast<size_t>(N) * F / 8, kBlockThreads);
    if (blocks * kBlockThreads > 0xffffffffu)
        throw Error(ExitCode::failure,
                    "{}: N={} rows of F={} are too many for 32-bit indices; use a smaller micro-batch", launcher, N, F);
    return {dim3(blocks), dim3(kBlockThreads), 0, stream};
}

// ---- launchers -----------------------------------------------------------------------------------------------------

template <class Real>
void activation_forward(Activation f, Real* out_pointer, const Real* inp, int N, int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    switch (f) {
        case Activation::gelu:
            return host::launch_or_loop<gelu_forward_kernel<Real>, host::activate<Gelu, Real>>(
                element_blocks("gelu_forward", N, F, kGeluVectors, stream), out(out_pointer, n), in(inp, n), n);
        case Activation::relu2:
            return host::launch_or_loop<relu2_forward_kernel<Real>, host::activate<Relu2, Real>>(
                element_blocks("relu2_forward", N, F, 1, stream), out(out_pointer, n), in(inp, n), n);
        case Activation::swiglu:
            return host::launch_or_loop<swiglu_forward_kernel<Real>, host::swiglu_forward<Real>>(
                swiglu_blocks("swiglu_forward", N, F, stream), out(out_pointer, n), in(inp, 2 * n), N, F);
    }
}

template <class Real>
void activation_backward(Activation f, Real* dinp, const BiasGradient& bias, const Real* dout, const Real* inp, int N,
                         int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    switch (f) {
        case Activation::gelu:
            return gelu_backward(dinp, bias, dout, inp, N, F, stream);
        case Activation::relu2:
            return host::launch_or_loop<relu2_backward_kernel<Real>, host::activate_backward<Relu2, Real>>(
                element_blocks("relu2_backward", N, F, 1, stream), out(dinp, n), in(dout, n), in(inp, n), n);
        case Activation::swiglu:
            return host::launch_or_loop<swiglu_backward_kernel<Real>, host::swiglu_backward<Real>>(
                swiglu_blocks("swiglu_backward", N, F, stream), out(dinp, 2 * n), in(dout, n), in(inp, 2 * n), N, F);
    }
}

LLMC_INSTANTIATE_BOTH(activation_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(activation_backward, float, bf16);

}  // namespace llmc
