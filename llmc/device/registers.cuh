// Tricks that stop nvcc from spilling registers on sm_90a. They never change results and do nothing on the host.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc {

// Keeps the compiler's front half from moving later loads above this point. ptxas may still move them.
LLMC_DEVICE void compiler_fence() {
#if LLMC_ON_GPU
    asm volatile("" ::: "memory");
#endif
}

// Hides a value's origin from the compiler, which otherwise keeps what it computed from the value in registers.
LLMC_DEVICE void forget([[maybe_unused]] int& value) {
#if LLMC_ON_GPU
    asm volatile("" : "+r"(value));
#endif
}

// Calls f(), which loads a piece and uses it. On a GPU this is a loop of one iteration whose count the compiler cannot
// see, so even ptxas leaves the loads inside. The pieces then wait for memory one after the other.
template <class F>
LLMC_DEVICE void piece_by_piece(F&& f) {
#if LLMC_ON_GPU
    int turns = 1;
    asm volatile("" : "+r"(turns));
    LLMC_NO_UNROLL
    for (int turn = 0; turn < turns; turn++) f();
#else
    f();
#endif
}

}  // namespace llmc
