// CUDA's types, keywords and built-in functions for the host device: those that the project's kernels use. A kernel
// that needs another one adds it here.
//
// Where threads of a block share memory or wait for each other, there are declarations alone: test programs link an
// emulator of GPU threads that defines these functions. The CPU program runs such kernels as loops
// (kernels/host/launch.h). If it called one of them as a kernel, it would not link.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "llmc/device/device_errors.h"
#include "llmc/device/keywords.cuh"

#define __global__ __attribute__((unused))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ use_the_LLMC_SHARED_macro

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

inline constinit thread_local uint3 threadIdx{0, 0, 0};
inline constinit thread_local uint3 blockIdx{0, 0, 0};
inline constinit thread_local uint3 blockDim{1, 1, 1};
inline constinit thread_local uint3 gridDim{1, 1, 1};

namespace llmc::host {

// Throws llmc::Error for a launch that CUDA would refuse. `shared_bytes` is the dynamic memory of a block.
void check_launch(dim3 grid, dim3 block, size_t shared_bytes, const LaunchSite& site);
// Calls call(argument) once for every GPU thread of a grid that check_launch() has accepted. Blocks run in parallel
// over OpenMP threads, and the threads of a block one after the other.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, void (*call)(void*), void* argument, const LaunchSite& site);

// Reads, modifies and writes as one atomic step. Returns the old value.
template <class T, class F>
T atomic_update(T* p, F operation) {
    T old, updated;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do updated = operation(old);
    while (!__atomic_compare_exchange(p, &old, &updated, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

// ---- defined by the emulator ----------------------------------------------------------------------------------------

// One LLMC_SHARED array of the source, and its address in the current block.
struct SharedSite {
    uint64_t block = 0;
    void* address = nullptr;
};
void* static_shared(SharedSite& site, size_t bytes);
void* dynamic_shared(const char* file, int line);

// Shuffles stay within segments of `width` lanes. As in CUDA, a source outside the segment means the lane itself.
uint32_t shuffle_xor(unsigned mask, uint32_t value, int lane_mask, int width, const char* file, int line);
uint32_t shuffle(unsigned mask, uint32_t value, int lane, int width, const char* file, int line);

}  // namespace llmc::host

void __syncthreads(LLMC_CALLER);
void __syncwarp(unsigned mask = ~0u, LLMC_CALLER);

// ---- templates around functions of the emulator, and functions without it ------------------------------------------

template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, LLMC_CALLER) {
    return std::bit_cast<T>(
        llmc::host::shuffle_xor(mask, std::bit_cast<uint32_t>(value), lane_mask, width, file, line));
}
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, LLMC_CALLER) {
    return std::bit_cast<T>(llmc::host::shuffle(mask, std::bit_cast<uint32_t>(value), lane, width, file, line));
}

template <class T>
T atomicAdd(T* p, T value) {
    return llmc::host::atomic_update(p, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* p, T value) {
    return llmc::host::atomic_update(p, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* p, T value) {
    return llmc::host::atomic_update(p, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicOr(T* p, T value) {
    return llmc::host::atomic_update(p, [=](T old) { return static_cast<T>(old | value); });
}
