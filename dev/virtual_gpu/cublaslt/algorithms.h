// The algorithms of matrix products: ways to split the sum over k, each with its own bits. They are deterministic, and
// serialized like cuBLASLt's.
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dev/virtual_gpu/cublaslt/descriptors.h"

namespace virtual_gpu {

struct Way {
    int32_t id;  // CUBLASLT_ALGO_CONFIG_ID
    uint32_t tile, stages;
    int32_t parts;       // the number of partial sums over k, if k is long enough
    uint32_t reduction;  // NONE: one block adds up the parts, one after the other

    int32_t splits() const { return reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 1 : parts; }
};

// The content of a cublasLtMatmulAlgo_t: everything that another process needs.
struct Algorithm {
    uint64_t magic, shape;  // shape is a fingerprint of the product for which it was found
    uint64_t workspace;
    int32_t version, capability;  // of the library and the card
    uint32_t alignment[4];        // promised for A, B, C and D
    int32_t id;                   // identifies its entry in the table
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t serialized(const Algorithm& algorithm);
Algorithm deserialized(const cublasLtMatmulAlgo_t& bytes);
const Way* way_of(const Algorithm& algorithm);  // nullptr if the bytes are not an algorithm

// The heuristic's proposals, in the order that VIRTUAL_GPU_HEURISTIC sets.
std::vector<Algorithm> proposals(const Product& product, const Preference& preference);
// The algorithm of a call that names none.
Algorithm default_algorithm(const Product& product);

// Restores the algorithm from a caller's bytes. If it is not valid for this product and card, returns INVALID_VALUE or
// ARCH_MISMATCH and the reason.
cublasStatus_t restore(const cublasLtMatmulAlgo_t& bytes, const Product& product, Algorithm& algorithm,
                       std::string& why);

// The places where the parts of the sum begin, and k.
std::vector<uint64_t> part_bounds(const Product& product, const Way& way);

// For VIRTUAL_GPU_FAULT: describe() gives m x n x k, the operands' layouts and types, D's type, and the bias.
// number_of() numbers the shapes in the order in which they first occur.
std::string describe(const Product& product);
uint64_t number_of(const Product& product);

}  // namespace virtual_gpu
