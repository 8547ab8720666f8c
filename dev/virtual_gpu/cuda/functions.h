// The kernels of a program: registered under the addresses of their host functions, launched within a card's limits.
#pragma once
#include <cuda_runtime_api.h>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/ptx/kernel.h"

namespace virtual_gpu {

// Why a card does not take a launch, and with which error; cudaSuccess where it does. `dynamic_limit` is what
// cudaFuncAttributeMaxDynamicSharedMemorySize allows the kernel.
struct Refusal {
    cudaError_t error = cudaSuccess;
    std::string why;
};
Refusal check_launch(const Card& card, const Kernel& kernel, const Launch& launch, size_t dynamic_limit);

// Registers that a block takes, which are given out to whole warps of all four parts of a multiprocessor.
int registers_of_block(int registers_per_thread, uint32_t threads);

}  // namespace virtual_gpu
