// Causal self-attention, forward and backward: out = softmax(Q K^T / sqrt(HD)) V, each query seeing the keys up to its
// own position.
//
//   qkv, dqkv            (B, T, NH + 2 NKV, HD)   queries, keys and values side by side: see attention_heads.h
//   out, out_low, dout   (B, T, NH, HD)
//   lse, delta           (B, NH, T) float
//   documents            (B, T) int     where each token's document begins: a place in its row, never behind the
//                                       token's own, and never going back. A query sees its document's keys alone.
//                                       nullptr: a row is one document
//
// Scores have another factor than HD^-0.5, and queries see a window of the last keys alone, where the heads say so. Any
// T >= 1; B and NH up to 65535; head dimensions 32, 64 and 128. Tensors start at 16-byte boundaries. Deterministic.
#pragma once
#include "llmc/device/formats.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/attention_heads.h"

namespace llmc {

// Forward. lse is the natural logarithm of each row's sum of exp(score): with it the backward recomputes any
// probability from a score alone.
//
// out_low = bf16(O - bf16(O)), so that out + out_low is O to 2^-17. The backward needs it for delta = rowsum(dout * O):
// from a rounded O, delta is biased wherever rounding is one-sided, and GPT-2 124M diverges after some thousand steps
// (arXiv 2510.04212). out and out_low together are as large as an FP32 copy kept in place of the BF16 one. nullptr: not
// written (inference).
//
// bf16: flash attention 2 (arXiv 2307.08691) on mma.sync: scores and probabilities never leave the registers; FP32
// arithmetic, the probabilities rounded to BF16 for the second product. With NKV = NH moves 10 bytes a (B, T, NH, HD)
// element (6 read, 4 written) when a head's keys and values stay in L2.
//
// float: FP32 throughout, in plain loops; the reference, not meant to be fast. out_low is ignored (O is not rounded).
template <class Real>
void attention_forward(Real* out, Real* out_low, float* lse, const Real* qkv, int B, int T, const AttentionHeads& heads,
                       stream_t stream, const int* documents = nullptr);

// Backward. dqkv is overwritten; delta is scratch, rowsum(dout * (out + out_low)) afterwards. out, out_low and lse come
// from attention_forward.
//
// bf16: three kernels and no atomics. delta; then a kernel that owns key tiles (dK, dV) and one that owns query tiles
// (dQ), each recomputing scores and dP: 7 products instead of the 5 of a single kernel that adds dQ up in FP32 atomics,
// and identical bits on every run. Scores, P, dP and dS stay in registers. A key tile goes through the queries of its
// group head by head: their sums meet in FP32, in registers too.
template <class Real>
void attention_backward(Real* dqkv, float* delta, const Real* dout, const Real* qkv, const Real* out,
                        const Real* out_low, const float* lse, int B, int T, const AttentionHeads& heads,
                        stream_t stream, const int* documents = nullptr);

template <>
void attention_forward<bf16>(bf16*, bf16*, float*, const bf16*, int, int, const AttentionHeads&, stream_t, const int*);
template <>
void attention_forward<float>(float*, float*, float*, const float*, int, int, const AttentionHeads&, stream_t,
                              const int*);
template <>
void attention_backward<bf16>(bf16*, float*, const bf16*, const bf16*, const bf16*, const bf16*, const float*, int, int,
                              const AttentionHeads&, stream_t, const int*);
template <>
void attention_backward<float>(float*, float*, const float*, const float*, const float*, const float*, const float*,
                               int, int, const AttentionHeads&, stream_t, const int*);

namespace attention {

// Throws unless the attention kernels can run this shape.
inline void check_shape(int B, int T, const AttentionHeads& heads) {
    check_heads("attention", heads);
    if (B < 1 || B > 65535 || heads.NH > 65535 || T < 1)
        throw Error(ExitCode::failure,
                    strprintf("attention: batch %d, heads %d, length %d: batch and heads must be 1 to 65535, the "
                              "length at least 1",
                              B, heads.NH, T));
    if (!(heads.scale >= 0.0f && heads.window >= 0))
        throw Error(ExitCode::failure,
                    strprintf("attention: scale %g and window %d must be positive, or 0 for the usual", heads.scale,
                              heads.window));
}

// Elements of (B, T, rows of heads, HD).
inline size_t elements(int B, int T, int heads, int HD) {
    return static_cast<size_t>(B) * static_cast<size_t>(T) * static_cast<size_t>(heads) * static_cast<size_t>(HD);
}

inline size_t tokens(int B, int T) { return static_cast<size_t>(B) * static_cast<size_t>(T); }

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace attention
}  // namespace llmc
