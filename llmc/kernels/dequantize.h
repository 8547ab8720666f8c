// FP8 operands with one scale each made ready for BF16 tensor cores, for products that cuBLASLt does not have in FP8.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out[i] = the value of codes[i], without its scale: every E4M3 and E5M2 number is a BF16 number. F8 = e4m3 or e5m2; n
// is a multiple of 16, pointers are 16-byte aligned. Moves 3 bytes an element.
template <class F8>
void dequantize(bf16* out, const F8* codes, size_t n, stream_t stream);

// What the product of those values is multiplied with and adds to, as it is read on the device: factors[0] =
// first_scale_inv * second_scale_inv, factors[1] = beta.
void product_factors(float* factors, const float* first_scale_inv, const float* second_scale_inv, float beta,
                     stream_t stream);

}  // namespace llmc
