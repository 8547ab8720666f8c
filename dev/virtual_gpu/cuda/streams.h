// Streams, events and the thread that runs their work.
//
// The host only enqueues work. One thread of the process, the device thread, runs the work in the streams, in an order
// that VIRTUAL_GPU_STREAMS chooses among those that the program's synchronisation allows.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace virtual_gpu {

// Enqueues work. It runs on the device thread, with no lock held. If it throws a Fault, that becomes the device's
// error, like an illegal address. If `ready` is given, the device thread calls it repeatedly once the work is the first
// of its stream, and runs the work when it returns true; other streams continue meanwhile. Returns the result for the
// enqueueing call: the device's error, if it has one.
cudaError_t submit(cudaStream_t stream, std::string what, std::function<void()> work,
                   std::function<bool()> ready = nullptr);

// Like cudaStreamSynchronize() and cudaDeviceSynchronize(); the latter waits for all devices here.
cudaError_t wait_for_stream(cudaStream_t stream);
cudaError_t wait_for_devices();

// The device of the calling thread.
int current_device();
// True if the process uses other devices than the first, and this thread chose none: CUDA takes the first for it.
bool opens_first_device();

}  // namespace virtual_gpu
