// Runs kernels whose threads never wait for each other, as plain loops. The emulator of GPU threads, which test
// programs link instead of this file, runs all kernels.
#include "llmc/device/host/builtins.h"
#include "llmc/device/host/runtime.h"

namespace llmc::host {

void run_grid(dim3 grid, dim3 block, size_t, void (*call)(void*), void* argument, const LaunchSite&) {
    const long blocks = static_cast<long>(grid.x) * grid.y * grid.z;
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (long b = 0; b < blocks; b++) {
        blockDim = {block.x, block.y, block.z};
        gridDim = {grid.x, grid.y, grid.z};
        blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                    static_cast<unsigned>(b / grid.x / grid.y)};
        for (threadIdx.z = 0; threadIdx.z < block.z; threadIdx.z++)
            for (threadIdx.y = 0; threadIdx.y < block.y; threadIdx.y++)
                for (threadIdx.x = 0; threadIdx.x < block.x; threadIdx.x++) call(argument);
    }
}

void fail_kernel(const char*, ...) {}

}  // namespace llmc::host
