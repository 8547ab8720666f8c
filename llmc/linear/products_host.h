// Products on the host device by oneDNN: of FP32 matrices on CPUs with AVX-512, and of BF16 matrices on CPUs that have
// instructions for them (AVX512-BF16, AMX).
#pragma once
#include <compare>
#include <cstddef>
#include <memory>
#include <string>

#include "llmc/device/formats.cuh"
#include "llmc/linear/matmul.h"

namespace llmc::host {

// result (rows, columns) = scale * op(first) * op(second) + bias + kept * result, summed in FP32 and rounded once.
struct OnednnProduct {
    int rows, columns, inner;
    bool transpose_first, transpose_second;
    bool fp32, fp32_result;  // the operands and the bias are FP32, not BF16; so is the result
    bool scaled = false;     // each multiply() gives a scale
    bool bias = false;       // a row of numbers
    float kept = 0.0f;
    auto operator<=>(const OnednnProduct&) const = default;
};

// oneDNN's primitives, one for each kind and shape of product, created at the product's first run, and their workspace.
// The bits of a product do not depend on the number of threads.
class OnednnProducts {
public:
    OnednnProducts();
    ~OnednnProducts();
    // True if the build has oneDNN and this CPU has the instructions, which ONEDNN_MAX_CPU_ISA may hide.
    static bool has_fp32();
    static bool has_bf16();
    static std::string version();  // the library's version and instructions; "" if it is not used
    // A BF16 product's workspace. For FP32 products, oneDNN keeps a few MiB of its own, and those that scale a product
    // and add it to the result take FP32 sums of its size.
    static size_t workspace_bytes(const OnednnProduct& product);
    // The names of oneDNN's code for this product, "brg:avx512_core_amx_bf16"; "ref:any" is its slow reference code.
    static std::string implementation(const OnednnProduct& product);
    void reserve(const OnednnProduct& product);  // reserves its workspace
    size_t reserved_bytes() const;
    void multiply(const OnednnProduct& product, void* result, const void* first, const void* second, const void* bias,
                  float scale);

private:
    struct Primitives;
    std::unique_ptr<Primitives> primitives_;
};

}  // namespace llmc::host
