// Holds some of the GPU's multiprocessors for half of the time, as NCCL's kernels do while a collective runs. It is
// part of libkernel_times.so (kernel_times.cpp), whose times show how much longer the program's own kernels take
// meanwhile. Unlike a collective's, these kernels move no bytes, so they leave the program all of the memory's
// bandwidth.
#include "hold_multiprocessors.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

namespace {

constexpr unsigned kMilliseconds = 20;  // a hold, and the pause after it; a step of 124M takes 90 ms
constexpr int kHolds = 1 << 14;         // more than fit into a session

__device__ unsigned long long ends[kHolds];  // globaltimer at which each hold ends; 0 until its first block has started

__device__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

// All blocks of a hold leave at the same time. A block that has found no free multiprocessor by then leaves at once.
__global__ void hold_multiprocessors_kernel(int hold) {
    const unsigned long long mine = now() + kMilliseconds * 1'000'000ull;
    const unsigned long long first = atomicCAS(&ends[hold], 0ull, mine);
    const unsigned long long end = first == 0 ? mine : first;
    while (now() < end) __nanosleep(1000);
}

std::atomic<bool> stopped = false;
std::thread holder;

// A block takes all of a multiprocessor's shared memory, and every block needs some, so no other block fits next to it.
// High priority places it before blocks of kernels that start later.
void keep_holding(int multiprocessors) {
    int least = 0, greatest = 0, shared = 0;
    cudaStream_t stream = nullptr;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    cudaFuncSetAttribute(hold_multiprocessors_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    for (int hold = 0; hold < kHolds && !stopped; hold++) {
        hold_multiprocessors_kernel<<<multiprocessors, 1, shared, stream>>>(hold);
        const cudaError_t status = cudaStreamSynchronize(stream);
        if (status == cudaErrorCudartUnloading) return;
        if (status != cudaSuccess || cudaPeekAtLastError() != cudaSuccess) {
            std::fprintf(stderr, "no multiprocessors are held: %s\n", cudaGetErrorString(cudaGetLastError()));
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(kMilliseconds));
    }
}

}  // namespace

void start_holding(int multiprocessors) {
    if (multiprocessors > 0) holder = std::thread(keep_holding, multiprocessors);
}

void stop_holding() {
    stopped = true;
    if (holder.joinable()) holder.join();
}
