// FP8 weights of a rank that owns a slice: a range of elements without rows and columns. What quantize_weight() does to
// a whole matrix, cut in two: the cast of the slice before the bytes travel, and their transposition afterwards.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// Of a matrix whose columns have factors: these, how many columns, and where in it the slice begins.
struct ColumnFactors {
    const float* factors = nullptr;  // nullptr: all 1
    size_t columns = 1, first = 0;
};

// Pass `measure`: state->amax_now = max(it, |master[i]|), state->bad if one is not finite. Pass `write` or `replay`:
// codes[i] = E4M3(master[i] * state->scale), to nearest even, saturating; counts as the pass says. The bits are
// those of quantize_weight(). Any count; pointers are 16-byte aligned. 4 bytes read an element, 1 written.
void quantize_flat(e4m3* codes, const float* master, size_t count, Fp8State* state, QuantizePass pass, stream_t stream,
                   const ColumnFactors& of = {});

// transposed (C, R) = codes (R, C), multiples of 16. Moves 2 bytes an element.
void transpose_codes(e4m3* transposed, const e4m3* codes, int R, int C, stream_t stream);

}  // namespace llmc
