// Kernels of Smooth-SwiGLU (smooth.h).
#include "llmc/kernels/smooth.h"

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/check_shape.h"

namespace llmc {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kColumns = 32 * 8, kRows = 32 * kWarps;  // per block; a warp takes every eighth row
constexpr int kExponents = 256;

}  // namespace

LLMC_DEVICE void raise_amax(float* amax, const float (&largest)[8]) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i++)
        if (largest[i] > 0.0f) atomicMax(reinterpret_cast<int*>(amax + i), static_cast<int>(float_bits(largest[i])));
}

template <class Real>
static __global__ void __launch_bounds__(kThreads)
    scale_columns_kernel(Real* values, float* amax, const float* factors, bool divide, int N, int C) {
    const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x) % 32 * 8;
    if (column >= C) return;
    float factor[8], largest[8] = {};
    load8(factors + column, factor);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) factor[i] = divide ? 1.0f / factor[i] : factor[i];
    const int first = static_cast<int>(blockIdx.y) * kRows + static_cast<int>(threadIdx.x) / 32;
    const int end = first + kRows < N ? first + kRows : N;
    for (int row = first; row < end; row += kWarps) {
        Real* const at = values + static_cast<size_t>(row) * C + column;
        float x[8];
        load8(at, x);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            const float magnitude = abs_float(x[i]);
            if (magnitude > largest[i] && is_finite(magnitude)) largest[i] = magnitude;
            x[i] *= factor[i];
        }
        store8(at, x);
    }
    if (amax != nullptr) raise_amax(amax + column, largest);
}

template <class Real>
void scale_columns(Real* values, float* amax, const float* factors, bool divide, int N, int C, stream_t stream) {
    check_rows("scale_columns", N, C);
    const size_t columns = static_cast<size_t>(C);
    const dim3 grid(static_cast<unsigned>(div_up(C, kColumns)), static_cast<unsigned>(div_up(N, kRows)));
    launch<scale_columns_kernel<Real>>({grid, dim3(kThreads), 0, stream},
                                       inout(values, static_cast<size_t>(N) * columns), inout(amax, columns),
                                       in(factors, columns), divide, N, C);
}

template void scale_columns(bf16*, float*, const float*, bool, int, int, stream_t);
template void scale_columns(float*, float*, const float*, bool, int, int, stream_t);

// ---- factors -------------------------------------------------------------------------------------------------------

// The biased exponent; 0 if the channel has no amax.
LLMC_DEVICE int exponent_of(float amax) { return static_cast<int>(float_bits(amax) >> 23); }

// One block per layer counts the layer's channels by exponent.
static __global__ void __launch_bounds__(kThreads) smoothing_factors_kernel(float* factors, float* amax, int C) {
    LLMC_SHARED(int, counts, [kExponents]);
    LLMC_SHARED(int, found, [2]);  // E and M
    float* const own_factors = factors + static_cast<size_t>(blockIdx.x) * C;
    float* const own_amax = amax + static_cast<size_t>(blockIdx.x) * C;
    const int thread = static_cast<int>(threadIdx.x);
    counts[thread] = 0;
    __syncthreads();
    for (int c = thread; c < C; c += kThreads) atomicAdd(&counts[exponent_of(own_amax[c])], 1);
    __syncthreads();
    if (thread == 0) {
        const int half = (C - counts[0] + 1) / 2;
        found[0] = found[1] = 0;
        for (int exponent = kExponents - 1, above = 0; exponent > 0 && above < half; exponent--) {
            if (counts[exponent] > 0 && above == 0) found[0] = exponent;
            above += counts[exponent];
            found[1] = exponent;
        }
    }
    __syncthreads();
    for (int c = thread; c < C; c += kThreads) {
        const int exponent = exponent_of(own_amax[c]), middle = found[1];
        const int shift = (found[0] - (exponent > middle ? exponent : middle)) / 2;
        own_amax[c] = 0.0f;
        if (found[0] > 0)
            own_factors[c] =
                float_from_bits(static_cast<uint32_t>(127 - (shift < kMostSmoothing ? shift : kMostSmoothing)) << 23);
    }
}

void smoothing_factors(float* factors, float* amax, int layers, int C, stream_t stream) {
    check_rows("smoothing_factors", layers, C);
    const size_t n = static_cast<size_t>(layers) * static_cast<size_t>(C);
    launch<smoothing_factors_kernel>({dim3(static_cast<unsigned>(layers)), dim3(kThreads), 0, stream},
                                     inout(factors, n), inout(amax, n), C);
}

}  // namespace llmc
