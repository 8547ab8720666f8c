// Reductions over a warp, a quad and a block, and an atomic sum.
//
// Reductions are butterflies in a fixed order, so a sum has the same bits on every lane, on every run, and on both
// devices.
#pragma once
#include "llmc/device/launch.cuh"
#include "llmc/device/math.cuh"

namespace llmc {

struct SumOp {
    LLMC_HD float operator()(float a, float b) const { return a + b; }
};
struct MaxOp {
    LLMC_HD float operator()(float a, float b) const { return max_float(a, b); }
};

#if !LLMC_ON_GPU
namespace host {
// group_reduce() of n values, defined by the emulator of GPU threads.
void group_reduce(float* values, int n, int lanes, bool maximum, const char* what, const char* file, int line);
}  // namespace host
#endif

// Atomic sum for integers only, because their sum does not depend on the order. Adding zero costs nothing.
LLMC_DEVICE void atomic_add(uint64_t* to, uint64_t count) {
    if (count == 0) return;
#if LLMC_ON_GPU
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
#else
    atomicAdd(to, count);
#endif
}

// A butterfly over groups of `Lanes` neighbouring lanes, for N values at once.
template <int Lanes, class Op, int N>
LLMC_DEVICE void group_reduce(float (&values)[N], [[maybe_unused]] Op op, [[maybe_unused]] const char* what,
                              [[maybe_unused]] const char* file, [[maybe_unused]] int line) {
#if LLMC_ON_GPU
    LLMC_UNROLL
    for (int offset = Lanes / 2; offset > 0; offset /= 2) {
        LLMC_UNROLL
        for (int i = 0; i < N; i++) values[i] = op(values[i], __shfl_xor_sync(~0u, values[i], offset));
    }
#else
    host::group_reduce(values, N, Lanes, std::is_same_v<Op, MaxOp>, what, file, line);
#endif
}

// Reduce over all 32 lanes, which must all call them.
LLMC_DEVICE float warp_sum(float value, LLMC_CALLER) {
    float values[1] = {value};
    group_reduce<32>(values, SumOp{}, "warp_sum", file, line);
    return values[0];
}
LLMC_DEVICE float warp_max(float value, LLMC_CALLER) {
    float values[1] = {value};
    group_reduce<32>(values, MaxOp{}, "warp_max", file, line);
    return values[0];
}
template <int N>
LLMC_DEVICE void warp_sum_each(float (&values)[N], LLMC_CALLER) {
    group_reduce<32>(values, SumOp{}, "warp_sum_each", file, line);
}
// Sums over groups of `Lanes` neighbouring lanes. All 32 lanes must call it.
template <int Lanes, int N>
LLMC_DEVICE void group_sum_each(float (&values)[N], LLMC_CALLER) {
    group_reduce<Lanes>(values, SumOp{}, "group_sum_each", file, line);
}
template <int Lanes, int N>
LLMC_DEVICE void group_max_each(float (&values)[N], LLMC_CALLER) {
    group_reduce<Lanes>(values, MaxOp{}, "group_max_each", file, line);
}
// Reduce over the four lanes of a quad (lane / 4), which hold one row of an mma accumulator.
template <int N>
LLMC_DEVICE void quad_sum_each(float (&values)[N], LLMC_CALLER) {
    group_reduce<4>(values, SumOp{}, "quad_sum_each", file, line);
}
template <int N>
LLMC_DEVICE void quad_max_each(float (&values)[N], LLMC_CALLER) {
    group_reduce<4>(values, MaxOp{}, "quad_max_each", file, line);
}

// Returns the largest value of the block to every thread. The block is one-dimensional and a multiple of 32 threads.
// `scratch` is 32 floats of shared memory; because of the first barrier, the next call can reuse it.
LLMC_DEVICE float block_max(float value, float* scratch) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    float values[1] = {value};
    group_reduce<32>(values, MaxOp{}, "block_max", __FILE__, __LINE__);
    __syncthreads();
    if (lane == 0) scratch[warp] = values[0];
    __syncthreads();
    values[0] = lane < warps ? scratch[lane] : float_from_bits(0xff800000u);
    group_reduce<32>(values, MaxOp{}, "block_max", __FILE__, __LINE__);
    return values[0];
}

// Returns to every thread the sum of `mine` over the block's kThreads threads. `place` is a permutation of 0 to
// kThreads - 1; the additions follow a binary tree over it, so the order is fixed. `shared` is scratch memory, free
// again after the next barrier.
template <class T, int kThreads>
LLMC_DEVICE T block_sum(T (&shared)[kThreads], unsigned place, T mine) {
    static_assert((kThreads & (kThreads - 1)) == 0);
    shared[place] = mine;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

}  // namespace llmc
