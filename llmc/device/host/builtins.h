// CUDA's keywords and built-in functions for the host device: everything that a kernel may use beyond plain C++.
//
// Left out on purpose: __shared__ (use LLMC_SHARED, whose arrays can be poisoned, bounded and counted), __activemask,
// clock, cooperative groups and device printf.
#pragma once
#include <algorithm>
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

// The caller's file and line, for messages: the compiler evaluates a default argument at the call.
#define LLMC_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

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
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LLMC_CALLER) {
    const int me = llmc::host::executor().lane_index();
    int source = me + static_cast<int>(delta);
    if (source / width != me / width) source = me;
    return llmc::host::shuffle(mask, value, source, "__shfl_down_sync", file, line);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LLMC_CALLER) {
    const int me = llmc::host::executor().lane_index();
    int source = me - static_cast<int>(delta);
    if (source < me / width * width) source = me;
    return llmc::host::shuffle(mask, value, source, "__shfl_up_sync", file, line);
}
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, LLMC_CALLER) {
    const int me = llmc::host::executor().lane_index();
    return llmc::host::shuffle(mask, value, me / width * width + (lane & (width - 1)), "__shfl_sync", file, line);
}

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, LLMC_CALLER) {
    return llmc::host::executor().exchange(mask, predicate != 0, "__ballot_sync", file, line,
                                           [](uint32_t* value, uint32_t* result, uint32_t lanes) {
                                               uint32_t ballot = 0;
                                               for (uint32_t m = lanes; m; m &= m - 1)
                                                   ballot |= value[__builtin_ctz(m)] << __builtin_ctz(m);
                                               for (uint32_t m = lanes; m; m &= m - 1)
                                                   result[__builtin_ctz(m)] = ballot;
                                           });
}
__forceinline__ int __any_sync(unsigned mask, int predicate, LLMC_CALLER) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate, LLMC_CALLER) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}

template <class T>
T __ldg(const T* p) {
    return *p;
}
template <class T>
T __ldcs(const T* p) {
    return *p;
}
template <class T>
void __stcs(T* p, T value) {
    *p = value;
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
template <class T>
T atomicExch(T* p, T value) {
    return llmc::host::atomic_update(p, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* p, T compare, T value) {
    return llmc::host::atomic_update(p, [=](T old) { return old == compare ? value : old; });
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline uint32_t __float_as_uint(float value) { return llmc::host::to_bits(value); }
inline float __uint_as_float(uint32_t bits) { return llmc::host::from_bits<float>(bits); }
inline int __float_as_int(float value) { return static_cast<int>(llmc::host::to_bits(value)); }
inline float __int_as_float(int bits) { return llmc::host::from_bits<float>(static_cast<uint32_t>(bits)); }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline int __ffs(int u) { return __builtin_ffs(u); }
inline int __clz(int u) { return u ? __builtin_clz(static_cast<unsigned>(u)) : 32; }
[[noreturn]] inline void __trap() { llmc::host::executor().fail("__trap"); }
