// Kernels and launchers of dequantize.h.
#include "llmc/kernels/dequantize.h"

#include "llmc/kernels/quantize_values.cuh"

namespace llmc {

namespace {
constexpr int kThreads = 256;
constexpr int kPerThread = 16;
}  // namespace

template <class F8>
static __global__ void __launch_bounds__(kThreads) dequantize_kernel(bf16* out, const F8* codes, size_t n) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
    if (at >= n) return;
    check_aligned16(codes + at);
    const Bytes16 bytes = *reinterpret_cast<const Bytes16*>(codes + at);
    LLMC_UNROLL
    for (int h = 0; h < 2; h++) {
        float x[8];
        uncast_8<F8>(x, bytes.word + h * 2);
        store8(out + at + h * 8, x);
    }
}

template <class F8>
void dequantize(bf16* to, const F8* codes, size_t n, stream_t stream) {
    if (n == 0 || n % kPerThread != 0)
        throw Error(ExitCode::failure, strprintf("dequantize: %zu elements are not a positive multiple of 16", n));
    const unsigned blocks = static_cast<unsigned>(div_up<size_t>(n, size_t{kThreads} * kPerThread));
    launch<dequantize_kernel<F8>>({blocks, kThreads, 0, stream}, out(to, n), in(codes, n), n);
}

template void dequantize<e4m3>(bf16*, const e4m3*, size_t, stream_t);
template void dequantize<e5m2>(bf16*, const e5m2*, size_t, stream_t);

static __global__ void product_factors_kernel(float* factors, const float* first, const float* second, float beta) {
    factors[0] = *first * *second;
    factors[1] = beta;
}

void product_factors(float* factors, const float* first, const float* second, float beta, stream_t stream) {
    launch<product_factors_kernel>({1, 1, 0, stream}, out(factors, 2), in(first, 1), in(second, 1), beta);
}

}  // namespace llmc
