// The numbers of one FP8 tensor on the device, which the quantizing kernels read and write.
#pragma once
#include <cstdint>

#include "llmc/device/formats.cuh"

namespace llmc {

// A value x is stored as fp8(x * scale) and means stored * scale_inv. scale_inv is what matrix products are given; it
// leads the record, on 16 bytes of its own (cuBLASLt 13.1 wants every scale cell 16-byte aligned).
struct alignas(64) Fp8State {
    float scale_inv;
    float last_amax;  // of the last finished optimizer step; for the log
    float reserved[2];
    float scale;
    float amax;      // largest |x| of this optimizer step so far, over its micro-steps; finite values only
    float amax_now;  // largest |x| of the tensor just seen, for current scaling
    uint32_t bad;    // a non-finite value was seen in this optimizer step
    // Counts since they were last read, over all micro-steps: of passes that count losses, and nonfinite of all that
    // write in training. Elements that were zero before the cast never underflow.
    uint64_t elements;
    uint64_t saturated;    // |x * scale| above the format's largest value
    uint64_t underflowed;  // nonzero values that became zero
    uint64_t nonfinite;    // Inf and NaN: a saturating cast hides them, so they are counted here
};

// What a quantizing kernel does with the values that it computes. What the cast loses (elements, saturated,
// underflowed) is counted only where somebody will read it: that takes as many instructions as all the rest of a
// kernel. Values that are not finite set `bad` in every pass but replay, because a step is skipped by it.
//                   writes FP8   amax goes to   nonfinite   losses
//   train           yes          amax           yes         no       delayed scaling: one pass, with an earlier scale
//   train_counted   yes          amax           yes         yes
//   measure         no           amax_now       no          no       current scaling, first pass: the output may be
//                                                                    unallocated
//   write           yes          -              yes         no       current scaling, second pass, with the scale set
//   write_counted   yes          -              yes         yes
//   replay          yes          -              no          no       evaluation and recomputation: leave no trace
//
// The values are sets of bits: 1 writes FP8, 2 changes the state, 4 raises an amax, 8 counts losses. (Were they numbers
// to compare with, nvcc would see that one answer implies another and make two kernels of one.)
enum class QuantizePass : unsigned {
    replay = 1,
    write = 1 + 2,
    write_counted = 1 + 2 + 8,
    measure = 2 + 4,
    train = 1 + 2 + 4,
    train_counted = 1 + 2 + 4 + 8,
};

// What has a scale of its own.
enum class Fp8Scaling {
    tensor,  // the whole tensor: Fp8State::scale
    block,   // 128 elements along the dimension that a product sums over, 128 x 128 of a weight (see quantize_blocks.h)
    mx,      // 32 elements along that dimension (OCP MX)
};

// Where a quantized (R, C) matrix goes. Products on Hopper need both layouts; either pointer may be null. The scales of
// blocks belong to one layout, because their blocks lie along its rows.
template <class F8>  // e4m3 or e5m2
struct Quantized {
    F8* row = nullptr;         // (R, C)
    F8* transposed = nullptr;  // (C, R)
    Fp8State* state = nullptr;
    void* row_scales = nullptr;  // Fp8Scaling::block and mx
    void* transposed_scales = nullptr;

    // What a product is given: what a stored value is multiplied with.
    const void* row_scale_inv() const { return row_scales ? row_scales : &state->scale_inv; }
    const void* transposed_scale_inv() const { return transposed_scales ? transposed_scales : &state->scale_inv; }
};

}  // namespace llmc
