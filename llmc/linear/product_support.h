// The FP8 products that cuBLASLt supports, by its version and the card, as far as known without calling it. This code
// needs no CUDA, so that it is tested without a GPU.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/kernels/fp8_state.h"

namespace llmc {

// Versions of cuBLASLt's header (CUBLAS_VERSION) and library (cublasLtGetVersion()): 120903 is 12.9.3. A feature needs
// both.
struct LtVersions {
    size_t compiled = 0, loaded = 0;
};
std::string lt_version_text(size_t version);

// Why a card of this compute capability (90 for sm_90) has no FP8 products with such scales, and what would help. "" if
// it has them.
std::string why_not_native(Fp8Scaling scaling, const LtVersions& versions, int compute_capability);

}  // namespace llmc
