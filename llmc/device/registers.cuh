// Tricks that stop nvcc from spilling registers on sm_90a, or ptxas from waiting for each load before it issues the
// next one. They never change results and do nothing on the host.
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

// Separates loads from their uses, so that they are in flight together: ptxas moves no load past a barrier of the warp.
// Otherwise it orders instructions so that they need few registers, and moves a load down behind the use of the one
// before. A thread that waits for each load cannot use the memory's rate. dev/check_kernels.py counts the loads in
// flight in SASS.
//
//   Packed8<Real> x[4];
//   for (k = 0 to 3) x[k].load(row + k * C);
//   issue_loads_first();
//   for (k = 0 to 3) use x[k].get()
LLMC_DEVICE void issue_loads_first() {
#if LLMC_ON_GPU
    __syncwarp(__activemask());
#endif
}

}  // namespace llmc
