// The state of one FP8 tensor on the device: its scale, its amax and counts, and the passes in which kernels use it.
#pragma once
#include <cstdint>

#include "llmc/device/formats.cuh"

namespace llmc {

// A value x is stored as fp8(x * scale), and a stored code means code * scale_inv. Matrix products read scale_inv. It
// leads the record, on 16 bytes of its own, because cuBLASLt 13.1 requires every scale cell to be 16-byte aligned.
struct alignas(64) Fp8State {
    float scale_inv;
    float last_amax;  // that of the last finished optimizer step, for the log
    float reserved[2];
    float scale;
    float amax;      // largest |x| of this optimizer step so far, over its micro-steps; finite values only
    float amax_now;  // largest |x| of the tensor just seen, for current scaling
    uint32_t bad;    // a non-finite value was seen in this optimizer step
    // Counts since they were last read, over all micro-steps. Passes that count losses raise the first three; all
    // passes that write in training raise nonfinite. Elements that were zero before the cast never underflow.
    uint64_t elements;
    uint64_t saturated;    // |x * scale| above the format's largest value
    uint64_t underflowed;  // nonzero values that became zero
    uint64_t nonfinite;    // Inf and NaN: a saturating cast hides them, so they are counted here
};

// The purpose of a pass over a quantizing kernel's values. The losses of the cast (elements, saturated,
// underflowed) are counted only in steps whose counts are read, because counting takes as many instructions as the rest
// of a kernel. Values that are not finite set `bad` in every pass but replay, so that the step is skipped.
//
//                   writes FP8   amax goes to   nonfinite   losses
//   train           yes          amax           yes         no       delayed scaling: one pass, with an earlier scale
//   train_counted   yes          amax           yes         yes
//   measure         no           amax_now       no          no       current scaling, first pass; output is not needed
//   write           yes          -              yes         no       current scaling, second pass, with the scale set
//   write_counted   yes          -              yes         yes
//   replay          yes          -              no          no       evaluation and recomputation: change no state
//
// The values are sets of bits: 1 writes FP8, 2 changes the state, 4 raises an amax, 8 counts losses. (With consecutive
// numbers, nvcc would see that one answer implies another and split a kernel in two.)
enum class QuantizePass : unsigned {
    replay = 1,
    write = 1 + 2,
    write_counted = 1 + 2 + 8,
    measure = 2 + 4,
    train = 1 + 2 + 4,
    train_counted = 1 + 2 + 4 + 8,
};

// The elements that share a scale.
enum class Fp8Scaling {
    tensor,  // the whole tensor: Fp8State::scale
    block,   // 128 elements along the dimension that a product sums over, 128 x 128 of a weight (see quantize_blocks.h)
    mx,      // 32 elements along that dimension (OCP MX)
};

// Output of a quantizing kernel: an (R, C) matrix in the two layouts that products on Hopper need. Either pointer may
// be nullptr. The scales of blocks belong to one layout, because their blocks lie along its rows.
template <class F8>  // e4m3 or e5m2
struct Quantized {
    F8* row = nullptr;         // (R, C)
    F8* transposed = nullptr;  // (C, R)
    Fp8State* state = nullptr;
    void* row_scales = nullptr;  // Fp8Scaling::block and mx
    void* transposed_scales = nullptr;

    // The factors that turn codes into values, for a product's scale pointers.
    const void* row_scale_inv() const { return row_scales ? row_scales : &state->scale_inv; }
    const void* transposed_scale_inv() const { return transposed_scales ? transposed_scales : &state->scale_inv; }
};

}  // namespace llmc
