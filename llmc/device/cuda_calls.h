// Helpers for the files that call CUDA's runtime. No other file includes CUDA's headers, so every other file is the
// same for both devices.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

#include "llmc/device/device_errors.h"

namespace llmc {

// Throws an Error that names the call if the call failed.
void check_cuda(cudaError_t status, const char* what, const char* file, int line);
#define LLMC_CHECK_CUDA(call) ::llmc::check_cuda((call), #call, __FILE__, __LINE__)

// Before a launch of `kernel`: asks the driver for its shared memory. Throws if the card has less.
void provide_shared_memory(const void* kernel, size_t dynamic_bytes, const LaunchSite& site);

}  // namespace llmc
