// The cost of accesses: sectors of global memory, and passes through shared memory. These are exact counts by NVIDIA's
// documentation (Nsight Compute, "Memory Tables"; CUDA C++ Programming Guide, "Shared Memory"). Global memory moves in
// sectors of 32 bytes. Shared memory has 32 banks of 4 bytes, each of which delivers one word per pass; half warps make
// accesses of 8 bytes per lane, and quarter warps those of 16.
#pragma once
#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

void count_global(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts);
void count_shared(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts);

}  // namespace virtual_gpu
