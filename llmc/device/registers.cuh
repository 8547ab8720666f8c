// Tricks that stop nvcc from spilling registers. They never change results and do nothing on the host.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc {

// Keeps the compiler's front half from moving later loads above this point. ptxas may still move them.
LLMC_DEVICE void compiler_fence() {
#if LLMC_ON_GPU
    asm volatile("" ::: "memory");
#endif
}

// nvcc for sm_100 and later keeps values in registers that it could compute again. In layer norm it keeps x - mean next
// to x, and the addresses of codes across groups of rows. forget() hides a value's origin from the compiler on those
// architectures; forget_always() does so everywhere.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kKeepsTooMuch = true;
LLMC_DEVICE void forget(float& value) { asm volatile("" : "+f"(value)); }
LLMC_DEVICE void forget(int& value) { asm volatile("" : "+r"(value)); }
#else
constexpr bool kKeepsTooMuch = false;
template <class T>
LLMC_DEVICE void forget(T&) {}
#endif
LLMC_DEVICE void forget_always([[maybe_unused]] int& value) {
#if LLMC_ON_GPU
    asm volatile("" : "+r"(value));
#endif
}

// The same compilers move loads to the front until the registers run out.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kLoadsTooEarly = true;
#else
constexpr bool kLoadsTooEarly = false;
#endif

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

// Calls f() after a fence, or as a piece on sm_89, where nvcc spills around the fence but not around the loop. On
// sm_90a it is the other way round.
template <class F>
LLMC_DEVICE void in_turn(F&& f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 890
    piece_by_piece(f);
#else
    compiler_fence();
    f();
#endif
}

}  // namespace llmc
