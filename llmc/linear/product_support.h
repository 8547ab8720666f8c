// Which FP8 products cuBLASLt has, by its version and the card: what can be known before it is asked. Plain code, so
// that it is tested without a GPU.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/kernels/fp8_state.h"

namespace llmc {

// Versions of cuBLASLt as its CUBLAS_VERSION and cublasLtGetVersion() have them: 120903 is 12.9.3. What the header that
// was compiled with does not name cannot be asked for, and what the library that was loaded does not have, neither.
struct LtVersions {
    size_t compiled = 0, loaded = 0;
};
std::string lt_version_text(size_t version);

// Why a card of this compute capability (90 for sm_90) has no FP8 products with such scales, and what would have; ""
// if it has.
std::string why_not_native(Fp8Scaling scaling, const LtVersions& versions, int compute_capability);

}  // namespace llmc
