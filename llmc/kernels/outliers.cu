// Kernels that measure outliers and differences, and those of Smooth-SwiGLU (outliers.h).
#include "llmc/kernels/outliers.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"
#include "llmc/device/warp.cuh"
#include "llmc/kernels/check_shape.h"

namespace llmc {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMoments = 2;  // of x^2 and of x^4, or of differences' squares and of values'
// As for the global norm (clip.cu): enough elements for each block, and enough blocks for any GPU.
constexpr size_t kElementsPerBlock = 32768, kMaxBlocks = 1024;

size_t moment_blocks(size_t n) { return std::min(div_up(n, kElementsPerBlock), kMaxBlocks); }

}  // namespace

size_t moment_parts(size_t n) { return kMoments * moment_blocks(n); }

// ---- device functions ----------------------------------------------------------------------------------------------

LLMC_DEVICE void load_values(const bf16* p, float (&x)[8]) { load8(p, x); }
LLMC_DEVICE void load_values(const float* p, float (&x)[8]) { load8(p, x); }
LLMC_DEVICE void load_values(const e4m3* p, float (&x)[8]) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) x[i] = to_float(e4m3{static_cast<uint8_t>(load_word(p + (i & 4)) >> (8 * (i & 3)))});
}

// ---- kurtosis and differences ---------------------------------------------------------------------------------------

// The block's part of two sums over n elements: add(sums, i) adds the terms of the eight elements from i on.
template <class Add>
LLMC_DEVICE void sum_pairs(double* parts, size_t n, const Add& add) {
    LLMC_SHARED(double, shared, [kThreads]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kThreads * 8;
    double sums[kMoments] = {};
    for (size_t i = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < n; i += stride) add(sums, i);
    sums[0] = block_sum(shared, threadIdx.x, sums[0]);
    __syncthreads();
    sums[1] = block_sum(shared, threadIdx.x, sums[1]);
    if (threadIdx.x != 0) return;
    parts[kMoments * blockIdx.x] = sums[0];
    parts[kMoments * blockIdx.x + 1] = sums[1];
}

template <class T>
static __global__ void __launch_bounds__(kThreads) moments_kernel(double* parts, const T* values, size_t n) {
    sum_pairs(parts, n, [=](double(&sums)[kMoments], size_t i) {
        float x[8];
        load_values(values + i, x);
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) {
            const double square = static_cast<double>(x[k]) * static_cast<double>(x[k]);
            sums[0] += square;
            sums[1] += square * square;
        }
    });
}

template <class T>
static __global__ void __launch_bounds__(kThreads)
    differences_kernel(double* parts, const T* actual, const T* expected, size_t n) {
    sum_pairs(parts, n, [=](double(&sums)[kMoments], size_t i) {
        float x[8], y[8];
        load_values(actual + i, x);
        load_values(expected + i, y);
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) {
            const double difference = static_cast<double>(x[k]) - static_cast<double>(y[k]);
            sums[0] += difference * difference;
            sums[1] += static_cast<double>(y[k]) * static_cast<double>(y[k]);
        }
    });
}

static __global__ void __launch_bounds__(kThreads)
    add_moments_kernel(double* sums, const double* parts, int count, size_t n, const Fp8State* state) {
    LLMC_SHARED(double, shared, [kThreads]);
    double squares = 0, fourths = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        squares += parts[kMoments * i];
        fourths += parts[kMoments * i + 1];
    }
    squares = block_sum(shared, threadIdx.x, squares);
    __syncthreads();
    fourths = block_sum(shared, threadIdx.x, fourths);
    if (threadIdx.x != 0) return;
    const double scale = state != nullptr ? static_cast<double>(state->scale_inv) : 1.0, scale2 = scale * scale;
    sums[0] += static_cast<double>(n);
    sums[1] = fma(squares, scale2, sums[1]);
    sums[2] = fma(fourths, scale2 * scale2, sums[2]);
}

static size_t checked_blocks(const char* what, size_t n) {
    if (n % 8 != 0) throw Error(ExitCode::failure, "{}: {} values are not a multiple of 8", what, n);
    return moment_blocks(n);
}

template <class T>
void add_moments(double* sums, double* parts, const T* values, size_t n, const Fp8State* state, stream_t stream) {
    if (n == 0) return;
    const size_t blocks = checked_blocks("add_moments", n);
    launch<moments_kernel<T>>({dim3(blocks), dim3(kThreads), 0, stream}, out(parts, kMoments * blocks), in(values, n),
                              n);
    launch<add_moments_kernel>({dim3(1), dim3(kThreads), 0, stream}, inout(sums, size_t{3}),
                               in(parts, kMoments * blocks), static_cast<int>(blocks), n, in(state, 1));
}

template <class T>
void add_differences(double* sums, double* parts, const T* actual, const T* expected, size_t n, stream_t stream) {
    if (n == 0) return;
    const size_t blocks = checked_blocks("add_differences", n);
    launch<differences_kernel<T>>({dim3(blocks), dim3(kThreads), 0, stream}, out(parts, kMoments * blocks),
                                  in(actual, n), in(expected, n), n);
    launch<add_moments_kernel>({dim3(1), dim3(kThreads), 0, stream}, inout(sums, size_t{3}),
                               in(parts, kMoments * blocks), static_cast<int>(blocks), n,
                               in(static_cast<const Fp8State*>(nullptr), 1));
}

// ---- alignment -----------------------------------------------------------------------------------------------------

// A warp takes one row of gate and the same row of up.
template <class T>
static __global__ void __launch_bounds__(kThreads) cosines_kernel(float* cosines, const T* weight, int F, int C) {
    const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (row >= F) return;
    const T* const gate = weight + static_cast<size_t>(row) * C;
    const T* const up = gate + static_cast<size_t>(F) * C;
    float sums[3] = {};  // gate up, gate^2, up^2
    for (int c = lane * 8; c < C; c += 32 * 8) {
        float g[8], u[8];
        load_values(gate + c, g);
        load_values(up + c, u);
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) {
            sums[0] = fmaf(g[i], u[i], sums[0]);
            sums[1] = fmaf(g[i], g[i], sums[1]);
            sums[2] = fmaf(u[i], u[i], sums[2]);
        }
    }
    warp_sum_each(sums);
    if (lane != 0) return;
    const float norms = sqrtf(sums[1]) * sqrtf(sums[2]);
    cosines[row] = norms > 0.0f ? sums[0] / norms : 0.0f;
}

static __global__ void __launch_bounds__(kThreads) alignment_kernel(float* alignment, const float* cosines, int F) {
    LLMC_SHARED(double, shared, [kThreads]);
    LLMC_SHARED(float, scratch, [32]);
    double sum = 0;
    float largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < F; i += kThreads) {
        const float magnitude = abs_float(cosines[i]);
        sum += static_cast<double>(magnitude);
        largest = max_float(largest, magnitude);
    }
    sum = block_sum(shared, threadIdx.x, sum);
    largest = block_max(largest, scratch);
    if (threadIdx.x != 0) return;
    alignment[0] = static_cast<float>(sum / static_cast<double>(F));
    alignment[1] = largest;
}

template <class T>
void gate_alignment(float* alignment, float* cosines, const T* weight, int F, int C, stream_t stream) {
    check_rows("gate_alignment", F, C);
    const size_t rows = static_cast<size_t>(F), elements = 2 * rows * static_cast<size_t>(C);
    launch<cosines_kernel<T>>({dim3(div_up(F, kWarps)), dim3(kThreads), 0, stream}, out(cosines, rows),
                              in(weight, elements), F, C);
    launch<alignment_kernel>({dim3(1), dim3(kThreads), 0, stream}, out(alignment, size_t{2}), in(cosines, rows), F);
}

// ---- smoothing -----------------------------------------------------------------------------------------------------

constexpr int kColumns = 32 * 8, kRows = 32 * kWarps;  // per block; a warp takes every eighth row

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
    const dim3 grid(div_up(C, kColumns), div_up(N, kRows));
    launch<scale_columns_kernel<Real>>({grid, dim3(kThreads), 0, stream},
                                       inout(values, static_cast<size_t>(N) * columns), inout(amax, columns),
                                       in(factors, columns), divide, N, C);
}

constexpr int kExponents = 256;

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
    const size_t n = static_cast<size_t>(layers) * C;
    launch<smoothing_factors_kernel>({dim3(layers), dim3(kThreads), 0, stream}, inout(factors, n), inout(amax, n), C);
}

template void add_moments(double*, double*, const e4m3*, size_t, const Fp8State*, stream_t);
template void add_moments(double*, double*, const bf16*, size_t, const Fp8State*, stream_t);
template void gate_alignment(float*, float*, const e4m3*, int, int, stream_t);
#define LLMC_INSTANTIATE(Real)                                                                   \
    template void add_differences(double*, double*, const Real*, const Real*, size_t, stream_t); \
    template void gate_alignment(float*, float*, const Real*, int, int, stream_t);               \
    template void scale_columns(Real*, float*, const float*, bool, int, int, stream_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
#undef LLMC_INSTANTIATE

}  // namespace llmc
