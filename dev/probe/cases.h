// The products that the probe runs on a GPU: every product of the layers' shapes, in every type, epilogue and scaling
// that a GPT could want. A case is a product with a name. The name is its key in the result file, so a run can be
// continued.
#pragma once
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc::probe {

struct Case {
    std::string model, layer;  // "124M", "qkv"
    Product product;
    bool fast = false;  // FP8: sums with fewer bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM)
    bool used = false;  // train_gpt makes this product in one of its recipes, in a micro-batch of N tokens

    std::string key() const;      // for example "124M qkv forward e4m3 N=16384 C=768 OC=2304 bias beta=0 fast tensor"
    const char* mode() const;     // fast, split, or - for BF16 operands
    const char* scaling() const;  // tensor, block, or -
    const char* kind() const;     // forward, dgrad, wgrad
    double flops() const;
    // True if llmc::Matmul supports this product. Otherwise cuBLASLt is called directly.
    bool in_matmul() const;
    // The largest relative error (Frobenius norm over the sample) of a correct result. It allows one rounding to BF16,
    // or the error of sums in FP32. FP8 adds the error of partial sums of 14 bits: 1e-3 if they are promoted every 128
    // elements, and with fast accumulation the 2 % that DeepSeek-V3 reports (arXiv 2412.19437).
    double error_limit() const;
};

// The type of a bias added in the epilogue: FP8 products only accept BF16.
Product::Element bias_element(const Product& product);

enum class Shapes {
    layers,  // GPT-2 124M to 1558M and GPT-3 6.7B, each with five numbers of tokens; and 8192 cubed
    tiny,    // two small layers, for testing the probe itself
};
Shapes shapes_from_name(const std::string& name);

// All cases, with those that training needs first: every combination of product, types, epilogue, beta, accumulation
// and scaling. For some numbers of tokens it has only those that training uses.
std::vector<Case> all_cases(Shapes shapes);

}  // namespace llmc::probe
