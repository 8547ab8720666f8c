// Matrix products as cuBLASLt computes them, on the host.
#pragma once
#include <cstdint>
#include <vector>

#include "dev/virtual_gpu/cublaslt/descriptors.h"

namespace virtual_gpu {

// Deliberate errors in a result.
enum class Lie {
    none,
    tile,     // one tile of 64 x 64 is off by 1 %, or by one step of an FP8 result
    unsteady  // the lowest bits of some elements change, others each time
};

struct ProductCall {
    Product product;
    const void *a = nullptr, *b = nullptr, *c = nullptr;
    void* d = nullptr;
    float alpha = 1, beta = 0;                           // host values
    const void *alpha_at = nullptr, *beta_at = nullptr;  // on the device, with CUBLASLT_POINTER_MODE_DEVICE
    void* workspace = nullptr;
    size_t workspace_bytes = 0;    // available
    size_t workspace_written = 0;  // used by the algorithm
    std::vector<uint64_t> bounds;  // 0, the places where the sum over k is split, and k
    bool rounds_parts = false;     // true if parts are rounded to D's type
    Lie lie = Lie::none;
};

// Runs the product. All operands must have been written, and the workspace contains NaN afterwards. Throws Fault.
void run_product(ProductCall call);

}  // namespace virtual_gpu
