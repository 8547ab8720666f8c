// Kernels for pieces of gradients that ranks exchange, which lie next to each other in memory: their sums in rank
// order, and their form in FP8 (--reduce fp8).
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// ---- sums and maxima: results depend on neither a library's algorithm nor the order of arrival ----------------------

enum class ReduceOp { sum, max };

// out (count) = ((pieces[0] + pieces[1]) + pieces[2]) + ... in FP32, for pieces (world, count). With `accumulate`:
// ((out + pieces[0]) + pieces[1]) + ... T is float or bf16. Reads world * sizeof(T) bytes per element, 4 more to
// accumulate; writes 4. `out` must not overlap the pieces.
template <class T>
void sum_pieces(float* out, const T* pieces, int world, size_t count, bool accumulate, stream_t stream);

// The same for float, double and int32_t, as sum or maximum, computed in T itself.
template <class T>
void reduce_pieces(T* out, const T* pieces, int world, size_t count, ReduceOp op, stream_t stream);

// ---- FP8: E4M3 codes with a scale for every 128 elements ------------------------------------------------------------
//
// The sending rank keeps what the cast lost and adds it to its next gradients: error feedback (Seide et al. 2014;
// Karimireddy et al., arXiv 1901.09847). So values below the smallest step of their block arrive later, and a sum over
// steps misses only the residual left at the end. E4M3 beats E5M2 here: a block's own scale already reaches 2^17 below
// its largest value, feedback carries the rest, and the third mantissa bit halves the residual.

// The layout of one rank's message to another: one byte per code, then one exponent byte b per block (UE8M0: the
// block's codes are multiplied by 2^(b - 127)). Zeros pad both parts to a multiple of 16 bytes. The last block may be
// shorter.
struct Fp8Piece {
    static constexpr size_t kBlock = 128;
    size_t count;  // elements
    LLMC_HD size_t blocks() const { return (count + kBlock - 1) / kBlock; }
    LLMC_HD size_t scales_begin() const { return (count + 15) / 16 * 16; }
    LLMC_HD size_t bytes() const { return scales_begin() + (blocks() + 15) / 16 * 16; }
};

// Error feedback: the residuals that a rank keeps, and when it uses them.
struct Feedback {
    // One element for each that is sent; nullptr keeps no residuals. BF16 is exact enough: its rounding loses 2^-9 of
    // the residual, which is at most 2^-4 of a value.
    bf16* residual = nullptr;
    // A power of two, or nullptr for 1. Gradients are multiplied by it; residuals are stored without it, so it may
    // change.
    const float* loss_scale = nullptr;
    // Residuals are added if this is nullptr or *skips == 0. Otherwise the last step was skipped, so its residuals are
    // discarded and start at zero.
    const int32_t* skips = nullptr;
    bool store = true;  // false leaves the residuals unchanged, so casting the same values again gives the same bytes
};

// pieces (world, Fp8Piece{count}.bytes()) = in (world, count) plus residuals, cast to FP8. Each block's scale is the
// smallest power of two that keeps all its finite values from saturating. Non-finite values become NaN and leave no
// residual. `pieces` is 16-byte aligned. Reads 6 bytes per element with residuals and writes 3.
void cast_pieces(uint8_t* pieces, const float* in, int world, size_t count, const Feedback& feedback, stream_t stream);

// out (count) = ((piece 0 + piece 1) + piece 2) + ... in FP32; with `accumulate` ((out + piece 0) + piece 1) + ...,
// like sum_pieces(). Reads `world` bytes per element, 4 more to accumulate; writes 4.
void sum_fp8_pieces(float* out, const uint8_t* pieces, int world, size_t count, bool accumulate, stream_t stream);

}  // namespace llmc
