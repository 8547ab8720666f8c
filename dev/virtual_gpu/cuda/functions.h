// The kernels of a program: registered under the addresses of their host functions, and launched within a card's
// limits.
#pragma once
#include <cuda_runtime_api.h>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/ptx/kernel.h"

namespace virtual_gpu {

// Why a card refuses a launch, and the error; cudaSuccess if it accepts. `dynamic_limit` is the value of
// cudaFuncAttributeMaxDynamicSharedMemorySize for the kernel.
struct Refusal {
    cudaError_t error = cudaSuccess;
    std::string why;
};
Refusal check_launch(const Card& card, const Kernel& kernel, const Launch& launch, size_t dynamic_limit);

// The registers that a block uses. They are allocated to whole warps of all four parts of a multiprocessor.
int registers_of_block(int registers_per_thread, uint32_t threads);

}  // namespace virtual_gpu
