// Reductions over the ranks' pieces once they lie side by side: in the order of the ranks, so that the result depends
// neither on a library's algorithm nor on who came first.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/comm/comm.h"
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out (count) = ((pieces[0] + pieces[1]) + pieces[2]) + ... in FP32, pieces (world, count), or with `accumulate`
// ((out + pieces[0]) + pieces[1]) + ... T = float or bf16. world * sizeof(T) bytes read and 4 written an element, and 4
// more read to accumulate. `out` is not one of the pieces.
template <class T>
void sum_pieces(float* out, const T* pieces, int world, size_t count, bool accumulate, stream_t stream);

// The same for float, double, int32_t, uint32_t and uint64_t, sum or maximum, without rounding on the way.
template <class T>
void reduce_pieces(T* out, const T* pieces, int world, size_t count, ReduceOp op, stream_t stream);

}  // namespace llmc
