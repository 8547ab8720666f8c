// Kernels that convert and add arrays. A thread takes eight elements in 16-byte accesses, so they run at the speed of
// memory.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// All pointers are 16-byte aligned. Any n, including 0.

// out[i] = inp[i], rounded to nearest even. (To, From) = (bf16, float) or (float, bf16). Moves 6 bytes per element.
template <class To, class From>
void cast(To* out, const From* inp, size_t n, stream_t stream);

// out[i] = a[i] + b[i], added in FP32 and rounded once. `out` may be a or b. Moves 3 * sizeof(Real) bytes per element.
template <class Real>
void add(Real* out, const Real* a, const Real* b, size_t n, stream_t stream);

}  // namespace llmc
