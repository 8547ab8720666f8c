// Gradients between ranks in FP8 (--reduce fp8): E4M3 codes with a scale for every 128 elements, and what the cast lost
// kept by the rank that sends, which adds it to what it sends next: error feedback (Seide et al. 2014; Karimireddy et
// al., arXiv 1901.09847). So whatever a gradient has below the smallest step of its block arrives later, and sums over
// steps err by what is still owed at their end alone. E4M3 and not E5M2: a block's own scale already gives it 2^17
// below its largest value, feedback carries the rest, and a third bit of mantissa halves what is owed.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// What a rank sends to one other: its codes, a byte each, then the scales' exponents, a byte b for each block (UE8M0:
// its codes are multiplied by 2^(b - 127)). Both are followed by zeros to a multiple of 16 bytes. The last block of a
// piece may be shorter.
struct Fp8Piece {
    static constexpr size_t kBlock = 128;
    size_t count;  // elements
    LLMC_HD size_t blocks() const { return (count + kBlock - 1) / kBlock; }
    LLMC_HD size_t scales_begin() const { return (count + 15) / 16 * 16; }
    LLMC_HD size_t bytes() const { return scales_begin() + (blocks() + 15) / 16 * 16; }
};

// What a rank keeps of what its casts lost, and how.
struct Feedback {
    // An element for each that is sent; nullptr: nothing is kept. BF16 is exact enough: what it rounds away is 2^-9 of
    // what is owed, which is at most 2^-4 of a value.
    bf16* residual = nullptr;
    // A power of two, or nullptr for 1. Gradients are multiples of it, residuals are not: it may change.
    const float* loss_scale = nullptr;
    // nullptr or *skips == 0: residuals are added. Otherwise they are not, and begin anew: the step before was skipped
    // for what they come from.
    const int32_t* skips = nullptr;
    bool store = true;  // false: residuals stay as they are, and the same values cast again give the same bytes
};

// pieces (world, Fp8Piece{count}.bytes()) = in (world, count) plus residuals, cast: each block's scale is the smallest
// power of two with which none of its finite values saturates. What is not finite becomes NaN, and owes nothing.
// `pieces` is 16-byte aligned. Reads 6 bytes an element with residuals, writes 3.
void cast_pieces(uint8_t* pieces, const float* in, int world, size_t count, const Feedback& feedback, stream_t stream);

// out (count) = ((piece 0 + piece 1) + piece 2) + ... in FP32, or with `accumulate` ((out + piece 0) + piece 1) + ...,
// as sum_pieces() in rank_reduce.h does. Reads world bytes an element, 4 more to accumulate; writes 4.
void sum_fp8_pieces(float* out, const uint8_t* pieces, int world, size_t count, bool accumulate, stream_t stream);

}  // namespace llmc
