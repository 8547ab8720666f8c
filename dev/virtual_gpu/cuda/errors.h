// Errors of the CUDA runtime: those of a call, which become the host thread's last error, and those of work that ran,
// which become the device's and stay.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {

// Called at the end of a call: stores an error for cudaGetLastError() and returns it.
cudaError_t returned(cudaError_t status);

// Called at the beginning of a call that needs the device. Returns the device's error, or an error if the thread must
// not call CUDA.
cudaError_t entered();

// The error of the first work that failed, or cudaSuccess. Set only once.
cudaError_t device_error();
void set_device_error(cudaError_t error);
cudaError_t error_of(const Fault& fault);

// Called when the process ends: later calls fail.
void set_unloading();
// Marks that a stream is calling a function on the host, which must not call CUDA.
void set_in_host_function(bool inside);

// Prints one line on stderr.
[[gnu::format(printf, 1, 2)]] void report(const char* text, ...);

}  // namespace virtual_gpu
