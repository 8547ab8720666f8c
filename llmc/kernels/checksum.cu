// Kernel and launcher of checksums (checksum.h).
#include "llmc/kernels/checksum.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/warp.cuh"

namespace llmc {

constexpr int kThreads = 256;
// A block takes at least this many words, so that its sum costs little next to reading them. A large tensor gets enough
// blocks to fill any GPU.
constexpr size_t kWordsPerBlock = 16 * kThreads;
constexpr size_t kMaxBlocks = 1024;

LLMC_DEVICE uint64_t mix(uint64_t word, size_t place) { return mix64(word + (place + 1) * kGolden64); }

static __global__ void __launch_bounds__(kThreads, 8)
    checksum_kernel(uint64_t* sum, const uint8_t* data, size_t bytes) {
    LLMC_SHARED(uint64_t, sums, [kThreads]);
    const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
    const size_t whole = bytes / 8, stride = static_cast<size_t>(gridDim.x) * kThreads;
    const size_t first = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
    uint64_t mine = 0;
    for (size_t i = first; i < whole; i += stride) mine += mix(words[i], i);
    if (first == 0 && bytes % 8 != 0) {
        uint64_t last = 0;
        for (size_t i = 0; i < bytes % 8; i++) last |= static_cast<uint64_t>(data[whole * 8 + i]) << (8 * i);
        mine += mix(last, whole);
    }
    mine = block_sum(sums, threadIdx.x, mine);
    if (threadIdx.x == 0) atomic_add(sum, mine);
}

void checksum(uint64_t* sum, const void* data, size_t bytes, stream_t stream) {
    if (bytes == 0) return;
    if (reinterpret_cast<uintptr_t>(data) % 8 != 0)
        throw Error(ExitCode::failure, strprintf("checksum: pointer %p is not 8-byte aligned", data));
    const size_t blocks = std::clamp<size_t>(bytes / 8 / kWordsPerBlock, 1, kMaxBlocks);
    launch<checksum_kernel>({dim3{static_cast<unsigned>(blocks)}, kThreads, 0, stream}, inout(sum, 1),
                            in(static_cast<const uint8_t*>(data), bytes), bytes);
}

}  // namespace llmc
