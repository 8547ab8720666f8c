// The algorithms that products have: the ways in which a sum over k is taken apart, each with bits of its own. They are
// deterministic, and serialized as cuBLASLt's are.
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
    int32_t parts;       // sums over k, if k is long enough
    uint32_t reduction;  // NONE: the parts are added up one behind the other, by the same block

    int32_t splits() const { return reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 1 : parts; }
};

// What is in a cublasLtMatmulAlgo_t: all that another process needs.
struct Algorithm {
    uint64_t magic, shape;  // shape: a fingerprint of that of the product it was found for
    uint64_t workspace;
    int32_t version, capability;  // of the library and the card
    uint32_t alignment[4];        // that was promised of A, B, C and D
    int32_t id;                   // of its way
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t serialized(const Algorithm& algorithm);
Algorithm deserialized(const cublasLtMatmulAlgo_t& bytes);
const Way* way_of(const Algorithm& algorithm);  // null: the bytes were no algorithm's

// What the heuristic proposes, in the order of VIRTUAL_GPU_HEURISTIC.
std::vector<Algorithm> proposals(const Product& product, const Preference& preference);
// The one of a call that names none.
Algorithm default_algorithm(const Product& product);

// The algorithm of a caller's bytes; INVALID_VALUE or ARCH_MISMATCH, and why, where it is none for this product and
// card.
cublasStatus_t restore(const cublasLtMatmulAlgo_t& bytes, const Product& product, Algorithm& algorithm,
                       std::string& why);

// Where the parts of the sum begin, and k.
std::vector<uint64_t> part_bounds(const Product& product, const Way& way);

// For VIRTUAL_GPU_FAULT: m x n x k, the operands' layouts and types, D's type, the bias; and shapes, counted as they
// come.
std::string describe(const Product& product);
uint64_t number_of(const Product& product);

}  // namespace virtual_gpu
