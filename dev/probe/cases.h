// What the probe asks of a GPU: every product of the layers' shapes, in every type, epilogue and scaling that a GPT
// could want. A case is a product with a name; its name is its key in the file of results, so a run can be continued.
#pragma once
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"

namespace llmc::probe {

struct Case {
    std::string model, layer;  // "124M", "qkv"
    Product product;
    bool fast = false;  // FP8: sums with fewer bits (CUBLASLT_MATMUL_DESC_FAST_ACCUM)
    bool used = false;  // train_gpt makes this product, with one of its recipes, in a micro-batch of N tokens

    std::string key() const;      // e.g. "124M qkv forward e4m3 N=16384 C=768 OC=2304 bias beta=0 fast tensor"
    const char* mode() const;     // fast, split, or - of BF16 operands
    const char* scaling() const;  // tensor, block, or -
    const char* kind() const;     // forward, dgrad, wgrad
    double flops() const;
    // Whether llmc::Matmul has this product. What it lacks is asked of cuBLASLt directly.
    bool in_matmul() const;
    // Largest relative error (Frobenius norm over the sample) of a right result: one rounding to BF16; or what sums in
    // FP32 cost; in FP8 what partial sums of 14 bits cost: 1e-3 when they are promoted every 128 elements, and with
    // fast accumulation the 2 % that DeepSeek-V3 reports (arXiv 2412.19437).
    double error_limit() const;
};

// Of a bias added in the epilogue: FP8 products take BF16 alone.
Product::Element bias_element(const Product& product);

enum class Shapes {
    layers,  // GPT-2 124M to 1558M, GPT-3 6.7B, each with five numbers of tokens; and 8192 cubed
    tiny,    // two small layers, for a test of the probe itself
};
Shapes shapes_from_name(const std::string& name);

// All cases, those first that training needs: every combination of product, types, epilogue, beta, accumulation and
// scaling, and for some numbers of tokens what training uses alone.
std::vector<Case> all_cases(Shapes shapes);

}  // namespace llmc::probe
