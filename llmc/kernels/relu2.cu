// ReLU squared kernels: see relu2.h.
#include "llmc/kernels/relu2.h"

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/relu2.cuh"

namespace llmc {

constexpr int kThreads = 256;

template <class Real>
static __global__ void __launch_bounds__(kThreads) relu2_forward_kernel(Real* out, const Real* inp, size_t n) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
    if (at >= n) return;
    float x[8];
    load8(inp + at, x);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) x[i] = relu2(x[i]);
    store8(out + at, x);
}

template <class Real>
static __global__ void __launch_bounds__(kThreads)
    relu2_backward_kernel(Real* dinp, const Real* dout, const Real* inp, size_t n) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
    if (at >= n) return;
    float x[8], d[8];
    load8(inp + at, x);
    load8(dout + at, d);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) d[i] *= relu2_derivative(x[i]);
    store8(dinp + at, d);
}

static dim3 relu2_grid(const char* launcher, size_t n) {
    if (n == 0 || n % 8 != 0) {
        throw Error(ExitCode::failure,
                    strprintf("%s: n=%zu is not a positive multiple of 8 (16-byte accesses)", launcher, n));
    }
    return dim3(static_cast<unsigned>(div_up<size_t>(n, kThreads * 8)));
}

template <class Real>
void relu2_forward(Real* out, const Real* inp, size_t n, stream_t stream) {
    host::launch_or_loop<relu2_forward_kernel<Real>, host::relu2_forward<Real>>(
        KernelVariant::host_activation, {relu2_grid("relu2_forward", n), dim3(kThreads), 0, stream}, llmc::out(out, n),
        in(inp, n), n);
}

template <class Real>
void relu2_backward(Real* dinp, const Real* dout, const Real* inp, size_t n, stream_t stream) {
    host::launch_or_loop<relu2_backward_kernel<Real>, host::relu2_backward<Real>>(
        KernelVariant::host_activation, {relu2_grid("relu2_backward", n), dim3(kThreads), 0, stream}, out(dinp, n),
        in(dout, n), in(inp, n), n);
}

template void relu2_forward(float*, const float*, size_t, stream_t);
template void relu2_forward(bf16*, const bf16*, size_t, stream_t);
template void relu2_backward(float*, const float*, const float*, size_t, stream_t);
template void relu2_backward(bf16*, const bf16*, const bf16*, size_t, stream_t);

}  // namespace llmc
