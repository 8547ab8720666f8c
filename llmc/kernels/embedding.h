// Token and position embeddings, forward and (deterministic) backward.
#pragma once
#include <cstddef>

#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"

namespace llmc {

// out[b][t] = wte[tokens[b][t]] + wpe[t]; without the second term if wpe is nullptr
//
//   out       (B, T, C) Real, float or bf16; C % 8 == 0
//   tokens    (B, T) int in [0, V); any other token makes its row NaN, which the loss then shows
//   wte       (V, C) Real
//   wpe       (T or more, C) Real
//
// Moves 2 sizeof(Real) bytes per element (4 in bf16): rows of wte are read, out is written, and wpe stays in the cache.
template <class Real>
void embedding_forward(Real* out, const int* tokens, const Real* wte, const Real* wpe, int B, int T, int C, int V,
                       stream_t stream);

// The tokens of a batch grouped by value, in one int array, so that the backward needs no atomics:
//
//   [0]                 D, the number of distinct tokens
//   [1, 1 + n)          their ids, ascending; -1 after the first D
//   [1 + n, 2 + 2n)     starts: token i fills places starts[i] to starts[i + 1] - 1; n after the first D
//   [2 + 2n, 2 + 3n)    rows: the places' positions in `tokens`, ascending within a token
size_t token_sort_size(int n);  // ints in the array

// Host code, which the data loader or trainer runs before the batch is uploaded: a stable radix sort that does not
// allocate. Tokens must not be negative.
void sort_tokens(int* packed, const int* tokens, int n);

// dwte[tokens[b][t]] += dout[b][t],   dwpe[t] += sum over b of dout[b][t]; only dwte if dwpe is nullptr
//
//   dwte, dwpe  (V, C) and (T, C) float: added to, because dwte holds the tied head's gradient. The caller clears
//   sorted      sort_tokens' array for the B * T tokens, on the device
//   dout        (B, T, C) Real
//
// Reads 2 sizeof(Real) bytes per element (4 in bf16), and reads and writes 4 bytes per element of the distinct tokens'
// rows. Deterministic: one warp per token and 256 columns adds rows in order; above 64 occurrences, eight warps do. The
// grid depends on B * T alone (blocks past D end at once). Ids outside [0, V) are left out.
template <class Real>
void embedding_backward(float* dwte, float* dwpe, const int* sorted, const Real* dout, int B, int T, int C, int V,
                        stream_t stream);

}  // namespace llmc
