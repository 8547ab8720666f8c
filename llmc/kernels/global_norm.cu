// Kernel and launcher of global_norm.h.
#include "llmc/kernels/global_norm.h"

#include <algorithm>

#include "llmc/device/block_sum.cuh"
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/loops.h"

namespace llmc {

constexpr int kThreads = 256;
// A block takes at least this many elements, so that its reduction costs little beside reading them...
constexpr size_t kElementsPerBlock = 32768;
// ... and a large tensor gets enough blocks to fill any GPU, and no more parts than one block adds up quickly.
constexpr size_t kMaxBlocks = 1024;

size_t global_norm_blocks(size_t n) { return std::min(div_up(n, kElementsPerBlock), kMaxBlocks); }

static __global__ void __launch_bounds__(kThreads) global_norm_kernel(double* partials, const float* grad, size_t n) {
    LLMC_SHARED(double, sums, [kThreads]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kThreads * 8;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp_first = static_cast<int>(threadIdx.x) - lane;
    double sum = 0;
    for (size_t first = (static_cast<size_t>(blockIdx.x) * kThreads + warp_first) * 8; first < n; first += stride) {
        const size_t i = first + lane * 4;
        float g[8];
        if (i + kFoursApart + 4 <= n) {
            load_fours(grad + i, g);
        } else {
            LLMC_UNROLL
            for (int k = 0; k < 8; k++) g[k] = i + place_in_fours(k) < n ? grad[i + place_in_fours(k)] : 0;
        }
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) g[k] *= g[k];
        // Neighbouring lanes have halves of two eights: the even one adds up the first, the odd one the second.
        const float fours[2] = {(g[0] + g[1]) + (g[2] + g[3]), (g[4] + g[5]) + (g[6] + g[7])};
        const bool odd = lane % 2 != 0;
        sum += (odd ? fours[1] : fours[0]) + __shfl_xor_sync(0xffffffffu, odd ? fours[0] : fours[1], 1);
    }
    const unsigned eight = static_cast<unsigned>(warp_first + lane / 2 + lane % 2 * 16);  // in the order of the eights
    sum = block_sum(sums, eight, sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

void global_norm_partials(double* partials, const float* grad, size_t n, stream_t stream) {
    if (n == 0) return;
    if (reinterpret_cast<uintptr_t>(grad) % 16 != 0)
        throw Error(ExitCode::failure, strprintf("global_norm_partials: gradient pointer %p is not 16-byte aligned",
                                                 static_cast<const void*>(grad)));
    const size_t blocks = global_norm_blocks(n);
    host::launch_or_loop<global_norm_kernel, host::global_norm>(
        KernelVariant::host_sums, {dim3{static_cast<unsigned>(blocks)}, kThreads, 0, stream}, out(partials, blocks),
        in(grad, n), n);
}

}  // namespace llmc
