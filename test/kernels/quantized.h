// Arrays for codes and state, and comparisons, for tests of quantizing kernels besides the specifications.
#pragma once
#include "llmc/kernels/fp8_state.h"
#include "test/helpers.h"
#include "test/kernel_test.h"
#include "test/kernels/specifications/reference.h"
#include "test/kernels/specifications/reference_quantize.h"

namespace llmc::test {

using reference::column_sums, reference::nearest_code;
using reference::to_floats, reference::used_state, reference::wide_values;

template <class F8>
struct QuantizedArrays {
    DeviceArray<F8> row, transposed;
    DeviceArray<Fp8State> state;
    QuantizedArrays(size_t n, const Fp8State& initial) : row(n), transposed(n), state(std::vector<Fp8State>{initial}) {}
    Quantized<F8> both() { return {row.get(), transposed.get(), state.get()}; }
};

}  // namespace llmc::test
