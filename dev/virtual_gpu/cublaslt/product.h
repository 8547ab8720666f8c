// Matrix products as cuBLASLt computes them, on the host.
#pragma once
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/cublaslt/descriptors.h"

namespace virtual_gpu {

// What is wrong with a result on purpose.
enum class Lie {
    none,
    element,  // one is another number
    tile,     // one tile of 64 x 64 is off by 1 %, or a step of an FP8 result
    unsteady  // the lowest bits of some elements, of others each time
};

struct ProductCall {
    Product product;
    const void *a = nullptr, *b = nullptr, *c = nullptr;
    void* d = nullptr;
    float alpha = 1, beta = 0;                           // of the host
    const void *alpha_at = nullptr, *beta_at = nullptr;  // on the device, with CUBLASLT_POINTER_MODE_DEVICE
    void* workspace = nullptr;
    size_t workspace_bytes = 0;    // that there are
    size_t workspace_written = 0;  // that the algorithm takes
    std::vector<uint64_t> bounds;  // of the parts that the sum over k is taken apart into
    bool rounds_parts = false;     // to D's type
    Lie lie = Lie::none;
};

// Runs it: every operand must have been written, and the workspace holds NaN afterwards. Throws Fault.
void run_product(ProductCall call);

}  // namespace virtual_gpu
