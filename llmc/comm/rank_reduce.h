// Reductions over the ranks' pieces, which lie next to each other in memory. They sum in the order of the ranks, so
// results depend on neither a library's algorithm nor the order of arrival.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/comm/comm.h"
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out (count) = ((pieces[0] + pieces[1]) + pieces[2]) + ... in FP32, for pieces (world, count). With `accumulate`:
// ((out + pieces[0]) + pieces[1]) + ... T is float or bf16. Reads world * sizeof(T) bytes per element, 4 more to
// accumulate; writes 4. `out` must not overlap the pieces.
template <class T>
void sum_pieces(float* out, const T* pieces, int world, size_t count, bool accumulate, stream_t stream);

// The same for float, double, int32_t, uint32_t and uint64_t, as sum or maximum, computed in T itself.
template <class T>
void reduce_pieces(T* out, const T* pieces, int world, size_t count, ReduceOp op, stream_t stream);

}  // namespace llmc
