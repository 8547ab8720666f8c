// The kernels of add_differences(). See differences.h.
#include "llmc/kernels/differences.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"
#include "llmc/device/warp.cuh"

namespace llmc {
namespace {

constexpr int kThreads = 256;
constexpr int kSums = 2;  // each block sums the squares of the differences and of the expected values
// As for the global norm (clip.cu): enough elements for each block, and enough blocks for any GPU.
constexpr size_t kElementsPerBlock = 32768, kMaxBlocks = 1024;

size_t blocks_of(size_t n) { return std::min(div_up(n, kElementsPerBlock), kMaxBlocks); }

}  // namespace

size_t difference_parts(size_t n) { return kSums * blocks_of(n); }

// The block's part of the sums.
template <class T>
static __global__ void __launch_bounds__(kThreads)
    differences_kernel(double* parts, const T* actual, const T* expected, size_t n) {
    LLMC_SHARED(double, shared, [kThreads]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kThreads * 8;
    double sums[kSums] = {};
    for (size_t i = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < n; i += stride) {
        float x[8], y[8];
        load8(actual + i, x);
        load8(expected + i, y);
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) {
            const double difference = static_cast<double>(x[k]) - static_cast<double>(y[k]);
            sums[0] += difference * difference;
            sums[1] += static_cast<double>(y[k]) * static_cast<double>(y[k]);
        }
    }
    sums[0] = block_sum(shared, threadIdx.x, sums[0]);
    __syncthreads();
    sums[1] = block_sum(shared, threadIdx.x, sums[1]);
    if (threadIdx.x != 0) return;
    parts[kSums * blockIdx.x] = sums[0];
    parts[kSums * blockIdx.x + 1] = sums[1];
}

static __global__ void __launch_bounds__(kThreads)
    add_differences_kernel(double* sums, const double* parts, int count, size_t n) {
    LLMC_SHARED(double, shared, [kThreads]);
    double differences = 0, values = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        differences += parts[kSums * i];
        values += parts[kSums * i + 1];
    }
    differences = block_sum(shared, threadIdx.x, differences);
    __syncthreads();
    values = block_sum(shared, threadIdx.x, values);
    if (threadIdx.x != 0) return;
    sums[0] += static_cast<double>(n);
    sums[1] += differences;
    sums[2] += values;
}

template <class T>
void add_differences(double* sums, double* parts, const T* actual, const T* expected, size_t n, stream_t stream) {
    if (n == 0) return;
    if (n % 8 != 0) throw Error(ExitCode::failure, "add_differences: {} values are not a multiple of 8", n);
    const size_t blocks = blocks_of(n);
    launch<differences_kernel<T>>({dim3(blocks), dim3(kThreads), 0, stream}, out(parts, kSums * blocks), in(actual, n),
                                  in(expected, n), n);
    launch<add_differences_kernel>({dim3(1), dim3(kThreads), 0, stream}, inout(sums, size_t{3}),
                                   in(parts, kSums * blocks), static_cast<int>(blocks), n);
}
template void add_differences(double*, double*, const float*, const float*, size_t, stream_t);
template void add_differences(double*, double*, const bf16*, const bf16*, size_t, stream_t);

}  // namespace llmc
