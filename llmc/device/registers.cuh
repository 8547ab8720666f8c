// What keeps nvcc from holding more in registers than there are, where it would spill. Nothing of it changes a result;
// on the host all of it is nothing.
#pragma once
#include "llmc/device/keywords.cuh"

namespace llmc {

// Loads that come later in the source are not taken to before it, as far as the compiler's first half goes: ptxas may
// still do so.
LLMC_DEVICE void compiler_fence() {
#if LLMC_ON_GPU
    asm volatile("" ::: "memory");
#endif
}

// nvcc for sm_100 and later keeps what it could compute again: in layer norm x - mean beside x from the variance to the
// normalisation, and from one group of rows to the next where each vector's codes lie. forget() makes it lose sight of
// a value there, forget_always() everywhere.
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

// And it takes loads to the front beyond what there is room for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kLoadsTooEarly = true;
#else
constexpr bool kLoadsTooEarly = false;
#endif

// f(), which loads a piece and uses it: on a GPU a loop of one turn, of which the compiler does not see that it is one,
// so that ptxas too leaves the loads where they are. Pieces wait for memory one after the other.
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

// f() after a fence; as a piece where nvcc spills around the fence but not around the loop: for sm_90a it is the other
// way round.
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
