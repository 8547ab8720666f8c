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
    // Counts since they were last read, over all micro-steps. Elements that were zero before the cast never underflow.
    uint64_t elements;
    uint64_t saturated;    // |x * scale| above the format's largest value
    uint64_t underflowed;  // nonzero values that became zero
    uint64_t nonfinite;    // Inf and NaN: a saturating cast hides them, so they are counted here
};

// What a quantizing kernel does with the values that it computes.
//                 writes FP8   amax goes to   counts
//   train         yes          amax           yes      delayed scaling: one pass, with the scale of earlier steps
//   measure       no           amax_now       no       current scaling, first pass: the output may be unallocated
//   write         yes          -              yes      current scaling, second pass, after the scale was set
//   replay        yes          -              no       evaluation and recomputation: leave no trace
enum class QuantizePass { train, measure, write, replay };

// What has a scale of its own.
enum class Fp8Scaling {
    tensor,  // the whole tensor: Fp8State::scale
    block,   // 128 elements along the dimension that a product sums over, 128 x 128 of a weight (see block_scales.h)
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
