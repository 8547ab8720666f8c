// What calls of the CUDA runtime return: errors of the call, which are the host thread's last error, and errors of work
// that ran, which are the device's and stay.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {

// For the end of a call: an error is kept for cudaGetLastError().
cudaError_t returned(cudaError_t status);

// For the begin of a call that needs the device: its error if it has one; whether the thread may call at all.
cudaError_t entered();

// The error of work that has failed; cudaSuccess as long as none has. Set once.
cudaError_t device_error();
void set_device_error(cudaError_t error);
cudaError_t error_of(const Fault& fault);

// No more calls: the process ends.
void set_unloading();
// Within a function that a stream calls on the host, which must not call CUDA.
void set_in_host_function(bool inside);

// One line on stderr.
[[gnu::format(printf, 1, 2)]] void report(const char* text, ...);

}  // namespace virtual_gpu
