// FP8 products on the CPU with the sums of Hopper's tensor cores (--fp8-arithmetic hopper), to study what those cost.
#pragma once
#include "llmc/linear/matmul.h"

namespace llmc::host {

// Computes any FP8 product, except with mx scales, which Hopper does not have. fast: see accumulates_fast().
//
// One instruction (wgmma with k = 32) aligns its 32 products and the accumulator to the largest exponent among them,
// truncates each towards zero to 13 fraction bits, adds them exactly, and truncates the result to 13 fraction bits. The
// exponent of a product is the sum of its factors' exponents, even if the product of the mantissas is 2 or more;
// subnormal codes have the exponent of the smallest normal code. Experiments on cards found this: Microsoft's MMA-Sim;
// Khattak and Mikaitis, arXiv 2512.07004; the 13 bits also DeepSeek-V3, arXiv 2412.19437, section 3.3.2.
//
// Assumed, because cuBLASLt does not document it: with fast accumulation the accumulator takes the whole sum. Without,
// it starts at zero every 128 terms, as in DeepSeek-V3 and by default in CUTLASS, and these partial sums are added up
// in FP32. Partial sums are multiplied by block scales first; a tensor's scales multiply the total. No sum is split
// between blocks of threads.
//
// A row or column of the result is NaN if its operand's row has a code that is not finite.
void multiply_as_hopper(const Product& product, const ProductTensors& tensors, bool fast);

}  // namespace llmc::host
