// The plainest kernels: convert and add arrays. Eight elements a thread in 16-byte accesses; they run
// at the speed of memory and have no other purpose.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// All pointers here must be 16-byte aligned; any n, zero included.

// out[i] = inp[i], rounded to nearest even. (To, From) = (bf16, float) or (float, bf16); 6 bytes moved an element.
template <class To, class From>
void cast(To* out, const From* inp, size_t n, stream_t stream);

// out[i] = a[i] + b[i], added in FP32 and rounded once. `out` may be a or b. 3 * sizeof(Real) bytes moved an element.
template <class Real>
void add(Real* out, const Real* a, const Real* b, size_t n, stream_t stream);

}  // namespace llmc
