// Kernel and launcher of global_norm.h.
#include "llmc/kernels/global_norm.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"

namespace llmc {

constexpr int kThreads = 256;
// A block takes at least this many elements, so that its reduction costs little beside reading them...
constexpr size_t kElementsPerBlock = 32768;
// ... and a large tensor gets enough blocks to fill any GPU, and no more parts than one block adds up quickly.
constexpr size_t kMaxBlocks = 1024;

size_t global_norm_blocks(size_t n) { return std::min(div_up(n, kElementsPerBlock), kMaxBlocks); }

static __global__ void __launch_bounds__(kThreads) global_norm_kernel(float* partials, const float* grad, size_t n) {
    LLMC_SHARED(float, scratch, [32]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kThreads * 8;
    float sums[8] = {};
    for (size_t i = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < n; i += stride) {
        if (i + 8 <= n) {
            float g[8];
            load8(grad + i, g);
            LLMC_UNROLL
            for (int k = 0; k < 8; k++) sums[k] += g[k] * g[k];
        } else {
            for (size_t j = i; j < n; j++) sums[0] += grad[j] * grad[j];
        }
    }
    const float mine = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    const float total = block_sum(mine, scratch);
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

void global_norm_partials(float* partials, const float* grad, size_t n, stream_t stream) {
    if (n == 0) return;
    if (reinterpret_cast<uintptr_t>(grad) % 16 != 0)
        throw Error(ExitCode::failure, strprintf("global_norm_partials: gradient pointer %p is not 16-byte aligned",
                                                 static_cast<const void*>(grad)));
    const size_t blocks = global_norm_blocks(n);
    launch<global_norm_kernel>({dim3{static_cast<unsigned>(blocks)}, kThreads, 0, stream},
                               {out(partials, blocks), in(grad, n)}, partials, grad, n);
}

}  // namespace llmc
