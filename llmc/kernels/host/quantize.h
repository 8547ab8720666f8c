// From rows of FP32 values to FP8 codes in both layouts: what all quantizing loops share.
#pragma once
#include <vector>

#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc::host {

// What is noted about the values of a part of a tensor. Magnitudes of floats order like their bits.
struct Tally {
    uint32_t amax = 0;  // finite values only
    uint64_t nonfinite = 0, saturated = 0, underflowed = 0;
};

// Adds a part's tally to the state; any thread may. `elements`: how many the tensor gains by it.
void commit(Fp8State* state, const Tally& tally, size_t elements, QuantizePass pass);

// A rectangle of a quantized matrix: the row codes of its corner and the distance of rows, and the same of the
// transposed codes. Pointers may be nullptr.
template <class F8>
struct CodeTarget {
    F8* row;
    size_t row_pitch;
    F8* transposed;
    size_t transposed_pitch;
};

// Codes of the values (rows, columns), columns a multiple of 16 and rows of 8, at `stride` from each other.
template <class F8>
void quantize_rows(const CodeTarget<F8>& to, Tally& tally, const float* values, size_t stride, int rows, int columns,
                   float scale, QuantizePass pass);

}  // namespace llmc::host
