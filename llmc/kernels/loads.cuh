// Loads that are in flight together. A thread that waits for each load before it issues the next one cannot use the
// memory's rate, and ptxas orders instructions so that they need few registers: it moves a load down behind the use of
// the one before. dev/check_kernels.py counts the loads in flight in SASS.
//
//   Packed8<Real> x[4];
//   for (k = 0 to 3) x[k].load(row + k * C);
//   issue_loads_first();
//   for (k = 0 to 3) use x[k].get()
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc {

// Eight values between their load and their use. On the GPU they stay as they are in memory, so bf16 takes half the
// registers.
template <class Real>
struct Packed8 {
#if LLMC_ON_GPU
    static constexpr int kPieces = static_cast<int>(sizeof(Real)) / 2;  // loads of 16 bytes
    Bytes16 raw[kPieces];
    LLMC_DEVICE void load(const Real* p) {
        LLMC_UNROLL
        for (int i = 0; i < kPieces; i++) raw[i] = load16(p + i * (8 / kPieces));
    }
    LLMC_DEVICE void get(float (&x)[8]) const {
        for (int i = 0; i < 8; i++) {
            if constexpr (kPieces == 1)
                x[i] = i % 2 ? bf16x2_high(raw[0].word[i / 2]) : bf16x2_low(raw[0].word[i / 2]);
            else
                x[i] = float_from_bits(raw[i / 4].word[i % 4]);
        }
    }
#else
    float values[8];
    void load(const Real* p) { load8(p, values); }
    void get(float (&x)[8]) const { memcpy(x, values, sizeof values); }
#endif
};

// Separates loads from their uses: ptxas moves no load past a barrier of the warp.
LLMC_DEVICE void issue_loads_first() {
#if LLMC_ON_GPU
    __syncwarp(__activemask());
#endif
}

}  // namespace llmc
