// Sums over a block in a fixed order.
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc {

// The sum of what each of a block's kThreads threads has for its place (a permutation of 0 to kThreads - 1), in the
// order of a tree over these places; every thread gets it. `shared` holds them, and is free again behind a barrier.
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
