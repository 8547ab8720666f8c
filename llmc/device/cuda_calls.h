// What files that call CUDA's runtime share. No other file knows CUDA's headers, so that it is the same for both
// devices.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

#include "llmc/device/faults.h"

namespace llmc {

// Throws an Error that names the call if it failed.
void check_cuda(cudaError_t status, const char* what, const char* file, int line);
#define LLMC_CHECK_CUDA(call) ::llmc::check_cuda((call), #call, __FILE__, __LINE__)

// Before a launch of `kernel`: asks for the shared memory that it needs (shared_memory.h). Throws if the card has less.
void provide_shared_memory(const void* kernel, size_t dynamic_bytes, const LaunchSite& site);

}  // namespace llmc
