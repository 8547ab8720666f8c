// CUDA's keywords and built-in functions for the host device: those that the project's kernels use. A kernel that needs
// another one adds it here. __shared__ is left out on purpose: LLMC_SHARED arrays can be poisoned, bounded and counted.
#pragma once
#include <cmath>
#include <cstring>

#include "llmc/device/host/executor.h"

#define __global__ __attribute__((unused))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ use_the_LLMC_SHARED_macro

namespace llmc::host {

template <class T>
uint32_t to_bits(T value) {
    static_assert(sizeof(T) == 4, "warp exchanges move 32-bit values");
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
template <class T>
T from_bits(uint32_t bits) {
    T value;
    std::memcpy(&value, &bits, 4);
    return value;
}
template <class T>
__forceinline__ T shuffle(unsigned mask, T value, int source, const char* what, const char* file, int line) {
    return from_bits<T>(executor().shuffle(mask, to_bits(value), source, what, file, line));
}

// Reads, modifies and writes as one atomic step. Returns the old value.
template <class T, class F>
T atomic_update(T* p, F operation) {
    T old, updated;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do updated = operation(old);
    while (!__atomic_compare_exchange(p, &old, &updated, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

}  // namespace llmc::host

inline void __syncthreads(LLMC_CALLER) { llmc::host::executor().barrier(file, line); }
inline void __syncwarp(unsigned mask = ~0u, LLMC_CALLER) { llmc::host::executor().sync_warp(mask, file, line); }

// Functions that wait are inlined into the kernel: a `ret` after a switch to another stack would be mispredicted.

// Shuffles stay within segments of `width` lanes. As in CUDA, a source outside the segment means the lane itself.
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, LLMC_CALLER) {
    const int me = llmc::host::executor().lane_index();
    int source = me ^ lane_mask;
    if (source / width > me / width) source = me;
    return llmc::host::shuffle(mask, value, source & 31, "__shfl_xor_sync", file, line);
}
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, LLMC_CALLER) {
    const int me = llmc::host::executor().lane_index();
    return llmc::host::shuffle(mask, value, me / width * width + (lane & (width - 1)), "__shfl_sync", file, line);
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

inline uint32_t __float_as_uint(float value) { return llmc::host::to_bits(value); }
inline float __uint_as_float(uint32_t bits) { return llmc::host::from_bits<float>(bits); }
[[noreturn]] inline void __trap() { llmc::host::executor().fail("__trap"); }
