// Streams, events and the thread that runs their work.
//
// The host only enqueues; one thread of the process, the device thread, runs what streams hold, in an order that
// VIRTUAL_GPU_STREAMS chooses among those that the program's synchronisation allows.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace virtual_gpu {

// Enqueues work. It runs on the device thread, with no lock held; a Fault that it throws is the device's error from
// then on, as an illegal address is. `ready`, if given, is asked on the device thread, again and again, once the work
// is the first of its stream: it runs when that says true, and other streams go on meanwhile. Returns what the call
// that enqueues should return: the device's error, if it has one.
cudaError_t submit(cudaStream_t stream, std::string what, std::function<void()> work,
                   std::function<bool()> ready = nullptr);

// As cudaStreamSynchronize() and cudaDeviceSynchronize(), which wait for all devices here.
cudaError_t wait_for_stream(cudaStream_t stream);
cudaError_t wait_for_devices();

// The device of the calling thread.
int current_device();

}  // namespace virtual_gpu
