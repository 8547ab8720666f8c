// Arrays for codes and state, and comparisons, for tests of quantizing kernels besides the specifications.
#pragma once
#include "llmc/check/reference.h"
#include "llmc/check/reference_quantize.h"
#include "llmc/kernels/fp8_state.h"
#include "test/helpers.h"
#include "test/kernels/row_shapes.h"

namespace llmc::test {

using reference::column_sums, reference::nearest_code;
using reference::to_floats, reference::used_state, reference::wide_values;

// How many elements of `columns` (C, N) differ from the transpose of `row` (N, C).
template <class F8>
size_t not_transposed(const std::vector<F8>& row, const std::vector<F8>& columns, int N, int C) {
    if (row.size() != columns.size()) return row.size() + 1;
    size_t wrong = 0;
    for (size_t n = 0; n < static_cast<size_t>(N); n++)
        for (size_t c = 0; c < static_cast<size_t>(C); c++) wrong += row[n * C + c].bits != columns[c * N + n].bits;
    return wrong;
}

template <class F8>
struct QuantizedArrays {
    DeviceArray<F8> row, transposed;
    DeviceArray<Fp8State> state;
    QuantizedArrays(size_t n, const Fp8State& initial) : row(n), transposed(n), state(std::vector<Fp8State>{initial}) {}
    Quantized<F8> both() { return {row.get(), transposed.get(), state.get()}; }
};

}  // namespace llmc::test
