// Sums over a block in a fixed order.
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc {

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
