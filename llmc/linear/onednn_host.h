// Products of BF16 matrices on the host device by oneDNN, for CPUs that have instructions for them (AVX512-BF16, AMX).
#pragma once
#include <compare>
#include <cstddef>
#include <memory>
#include <string>

#include "llmc/device/formats.cuh"

namespace llmc::host {

// result (rows, columns) = scale * op(first) * op(second) + bias + kept * result, summed in FP32 and rounded once.
struct Bf16Product {
    int rows, columns, inner;
    bool transpose_first, transpose_second;
    bool fp32_result;
    bool scaled = false;  // each multiply() gives a scale
    bool bias = false;    // a row of BF16 numbers
    float kept = 0.0f;
    auto operator<=>(const Bf16Product&) const = default;
};

// oneDNN's primitives, one for each kind and shape of product, created at the product's first run, and their workspace.
// The bits of a product do not depend on the number of threads.
class Bf16Products {
public:
    Bf16Products();
    ~Bf16Products();
    // True if the build has oneDNN and this CPU has BF16 instructions, which ONEDNN_MAX_CPU_ISA may hide.
    static bool available();
    static std::string version();  // the library's version and instructions; "" if it is not available
    static size_t workspace_bytes(const Bf16Product& product);
    void reserve(const Bf16Product& product);  // reserves its workspace
    size_t reserved_bytes() const;
    void multiply(const Bf16Product& product, void* result, const bf16* first, const bf16* second, const bf16* bias,
                  float scale);

private:
    struct Primitives;
    std::unique_ptr<Primitives> primitives_;
};

}  // namespace llmc::host
