// SwiGLU kernels: see swiglu.h.
#include "llmc/kernels/swiglu.h"

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/check_shape.h"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/swiglu.cuh"

namespace llmc {

constexpr int kThreads = 256;

// Where a thread's eight elements of (N, F) lie, and the same of gate in (N, 2F); up's are F further.
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
    for (int i = 0; i < 8; i++) up[i] *= silu(gate[i]);
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
    for (int i = 0; i < 8; i++) swiglu_gradients(d[i], gate[i], up[i], gate[i], up[i]);
    store8(dinp + at.gate, gate);
    store8(dinp + at.gate + F, up);
}

// Blocks for (N, F), eight elements a thread.
static dim3 swiglu_grid(const char* launcher, int N, int F) {
    check_rows(launcher, N, F);
    const size_t blocks = div_up<size_t>(static_cast<size_t>(N) * F / 8, kThreads);
    if (blocks * kThreads > 0xffffffffu)
        throw Error(ExitCode::failure, strprintf("%s: N=%d rows of F=%d are too many for 32-bit places; use a smaller "
                                                 "micro-batch",
                                                 launcher, N, F));
    return dim3(static_cast<unsigned>(blocks));
}

template <class Real>
void swiglu_forward(Real* out, const Real* inp, int N, int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    host::launch_or_loop<swiglu_forward_kernel<Real>, host::swiglu_forward<Real>>(
        KernelVariant::host_activation, {swiglu_grid("swiglu_forward", N, F), dim3(kThreads), 0, stream},
        llmc::out(out, n), in(inp, 2 * n), N, F);
}

template <class Real>
void swiglu_backward(Real* dinp, const Real* dout, const Real* inp, int N, int F, stream_t stream) {
    const size_t n = static_cast<size_t>(N) * F;
    host::launch_or_loop<swiglu_backward_kernel<Real>, host::swiglu_backward<Real>>(
        KernelVariant::host_activation, {swiglu_grid("swiglu_backward", N, F), dim3(kThreads), 0, stream},
        out(dinp, 2 * n), in(dout, n), in(inp, 2 * n), N, F);
}

template void swiglu_forward(float*, const float*, int, int, stream_t);
template void swiglu_forward(bf16*, const bf16*, int, int, stream_t);
template void swiglu_backward(float*, const float*, const float*, int, int, stream_t);
template void swiglu_backward(bf16*, const bf16*, const bf16*, int, int, stream_t);

}  // namespace llmc
