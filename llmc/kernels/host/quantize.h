// Casts rows of FP32 values to FP8 codes in both layouts, for all quantizing loops.
#pragma once
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc::host {

// Statistics of the values in one part of a tensor. `amax` holds the bits of a float; magnitudes order like their bits.
struct Tally {
    uint32_t amax = 0;  // the largest magnitude of the finite values, as bits
    uint64_t nonfinite = 0, saturated = 0, underflowed = 0;
};

// Adds a part's tally, and `elements` to the count of elements, to the state. Threads may call it at the same time.
void commit(Fp8State* state, const Tally& tally, size_t elements, QuantizePass pass);

// Output of a rectangle's codes: the first code in the row-major and in the transposed matrix, each with the distance
// between rows. Either pointer may be nullptr.
template <class F8>
struct CodeTarget {
    F8* row;
    size_t row_pitch;
    F8* transposed;
    size_t transposed_pitch;
};

// Quantizes values (rows, columns), whose rows start `stride` elements apart. `columns` is a multiple of 16, `rows`
// of 8.
template <class F8>
void quantize_rows(const CodeTarget<F8>& to, Tally& tally, const float* values, size_t stride, int rows, int columns,
                   float scale, QuantizePass pass);

}  // namespace llmc::host
