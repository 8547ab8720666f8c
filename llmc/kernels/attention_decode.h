// Attention of a few queries against cached keys and values: what generating text needs, where all but the last rows of
// a sequence have been through the model before.
#pragma once
#include "llmc/kernels/attention.h"

namespace llmc {

// out = softmax(Q K^T / sqrt(HD)) V of the queries first to first + rows - 1 of one sequence, each over the keys up to
// its own position.
//
//   qkv           (first + rows, NH + 2 NKV, HD)  the whole sequence (attention_heads.h): keys and values of the
//   earlier
//                                                 rows are the cache
//   out, out_low  (rows, NH, HD)                  as in attention_forward(); out_low is for bf16, and may be nullptr
//
// A row's bits depend on its position and the rows before it alone: neither on `first` nor on `rows`. The arithmetic is
// attention_forward()'s. A block owns 16 queries of a head, and walks over all of their keys; with few heads that
// leaves a GPU mostly idle. Moves 4 bytes (bf16) a (first + rows, NH, HD) element for every 16 queries. Deterministic.
template <class Real>
void attention_decode(Real* out, Real* out_low, const Real* qkv, int first, int rows, const AttentionHeads& heads,
                      stream_t stream);

template <>
void attention_decode<bf16>(bf16*, bf16*, const bf16*, int, int, const AttentionHeads&, stream_t);
template <>
void attention_decode<float>(float*, float*, const float*, int, int, const AttentionHeads&, stream_t);

}  // namespace llmc
