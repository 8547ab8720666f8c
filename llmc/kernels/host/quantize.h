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
// of 8. `random` has one word of random bits for each value, in the layout of `values`: dither() rounds stochastically
// with them. Without `random`, values are rounded to nearest.
template <class F8>
void quantize_rows(const CodeTarget<F8>& to, Tally& tally, const float* values, size_t stride, int rows, int columns,
                   float scale, QuantizePass pass, const uint32_t* random = nullptr);

// part[c] = the sum of column c of a tile whose rows start `stride` elements apart, in the order of kernels whose
// threads take rows `apart` apart. `columns` is a multiple of 16.
void sum_rows_apart(float* part, const float* tile, size_t stride, int rows, int columns, int apart);

constexpr int kTile = 128;  // rows and columns of the kernels' tiles

// Quantizes (rows, columns) tile by tile, over threads: task(first_row, first_column, tally) quantizes a tile.
template <class Task>
void for_each_tile(Fp8State* state, int rows, int columns, QuantizePass pass, const Task& task) {
    const int across = (columns + kTile - 1) / kTile, tasks = (rows + kTile - 1) / kTile * across;
#pragma omp parallel if (tasks > 1)
    {
        Tally tally;
#pragma omp for schedule(static)
        for (int i = 0; i < tasks; i++) task(i / across * kTile, i % across * kTile, tally);
        commit(state, tally, 0, pass);
    }
    commit(state, {}, static_cast<size_t>(rows) * columns, pass);
}

}  // namespace llmc::host
