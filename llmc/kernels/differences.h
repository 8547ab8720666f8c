// How far two arrays are apart: the FP8 probe compares a product's result with that of the same product in BF16. For
// records only, so it is not fused with another kernel.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// sums[0..2] += n, sum of (actual[i] - expected[i])^2, sum of expected[i]^2. Sums are in FP64, in an order that depends
// on n alone. n is a multiple of 8. Values are 16-byte aligned. parts: difference_parts(n) doubles, contents
// irrelevant. Reads both arrays once.
template <class T>  // bf16 or float
void add_differences(double* sums, double* parts, const T* actual, const T* expected, size_t n, stream_t stream);
size_t difference_parts(size_t n);

}  // namespace llmc
