// What accesses cost: sectors of global memory, passes through shared memory. Exact counts of what a multiprocessor
// moves by NVIDIA's documentation (Nsight Compute, "Memory Tables"; CUDA C++ Programming Guide, "Shared Memory"):
// global memory moves in sectors of 32 bytes, shared memory has 32 banks of 4 bytes, of which each gives one word a
// pass; accesses of 8 and 16 bytes a lane are made by half warps and quarters.
#pragma once
#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

void count_global(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts);
void count_shared(const uint64_t (&address)[kLanes], uint32_t mask, uint32_t bytes, OpCounts& counts);

}  // namespace virtual_gpu
