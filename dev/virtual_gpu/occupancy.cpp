// The occupancy calculation of NVIDIA's cuda_occupancy.h.
#include "dev/virtual_gpu/occupancy.h"

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/cuda/functions.h"

namespace virtual_gpu {
namespace {

constexpr uint32_t kWarp = 32;
constexpr int kQuarters = 4;
constexpr uint64_t kSharedUnit = 128;  // cuda_occupancy.h, "cudaOccSMemAllocationGranularity": for 8.0 and newer

}  // namespace

// cuda_occupancy.h, "cudaOccMaxActiveBlocksPerMultiprocessor". The driver gives shared memory the largest share.
Occupancy occupancy_of(int registers_per_thread, uint32_t threads, uint64_t shared_bytes) {
    const Card& c = card();
    const uint32_t warps = (threads + kWarp - 1) / kWarp;
    Occupancy o{c.blocks_per_multiprocessor, "blocks"};
    const auto at_most = [&](uint64_t blocks, const char* limit) {
        if (blocks < static_cast<uint64_t>(o.blocks)) o = {static_cast<int>(blocks), limit};
    };
    at_most(static_cast<uint32_t>(c.threads_per_multiprocessor) / kWarp / warps, "threads");
    if (registers_of_block(registers_per_thread, threads) > kRegistersPerMultiprocessor) {
        at_most(0, "registers");
    } else if (registers_per_thread > 0) {
        // Each quarter of the multiprocessor holds whole warps.
        const int a_warp = registers_of_block(registers_per_thread, kWarp) / kQuarters;
        const int fit = kRegistersPerMultiprocessor / kQuarters / a_warp * kQuarters;
        at_most(static_cast<uint32_t>(fit) / warps, "registers");
    }
    const uint64_t shared = (shared_bytes + kSharedReserved + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
    at_most(static_cast<uint64_t>(c.shared_per_multiprocessor) / shared, "shared");
    return o;
}

uint64_t Occupancy::waves(uint64_t grid) const {
    const uint64_t at_once = static_cast<uint64_t>(blocks) * static_cast<uint64_t>(card().multiprocessors);
    return at_once ? (grid + at_once - 1) / at_once : 0;
}

}  // namespace virtual_gpu
