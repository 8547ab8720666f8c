// Causal self-attention: forward, backward, both with quantization to FP8 fused in, and a few queries against cached
// keys and values for generating text.
//
//   out = softmax(Q K^T / sqrt(HD)) V, where each query sees the keys up to its own position
//
//   qkv, dqkv            (B, T, NH + 2 NKV, HD)   queries, keys and values next to each other (AttentionHeads)
//   out, out_low, dout   (B, T, NH, HD)
//   lse, delta           (B, NH, T) float
//   documents            (B, T) int     position in its row at which each token's document begins: at most the token's
//                                       own position, and never decreasing. A query sees only keys of its own document.
//                                       nullptr: each row is one document
//   tickets              one word, 0 before and after each call: Hopper's kernels count in it which work is taken
//                        (hopper/tickets.cuh). Calls that may run at the same time need words of their own
//
// Any T >= 1; B and NH up to 65535; the head dimensions of kHeadDimensions. Tensors start at 16-byte boundaries.
// Deterministic.
#pragma once
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize.h"

namespace llmc {

// --kernels: which of two kernels for the same work runs.
enum class Kernels {
    automatic,  // Hopper's (hopper/) if the card is one and the shape fits, else portable ones
    portable
};

// ---- heads ---------------------------------------------------------------------------------------------------------

// A row of qkv is (NH + 2 NKV, HD), as the qkv product writes it: queries, then keys, then values. With NKV < NH
// (grouped queries, arXiv 2305.13245) query head h reads keys and values of head h / (NH / NKV).
struct AttentionHeads {
    int NH, NKV, HD;
    int window = 0;  // number of keys a query sees, the last of them its own; 0: all
    Kernels kernels = Kernels::automatic;

    int rows() const { return NH + 2 * NKV; }  // heads in a row of qkv
    int width() const { return NH * HD; }      // channels of the output
    int qkv_width() const { return (NH + 2 * NKV) * HD; }
    // The window in a sequence of T tokens: at most T.
    int window_in(int T) const { return window > 0 && window < T ? window : T; }
    float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(HD)); }
};

// The head dimensions of all attention and RoPE kernels. Hopper's kernels have fewer (hopper/attention.h).
constexpr int kHeadDimensions[] = {32, 64, 80, 96, 128, 256};
constexpr const char* kHeadDimensionsText = "32, 64, 80, 96, 128 or 256";

inline bool has_head_dimension(int HD) {
    for (const int supported : kHeadDimensions)
        if (HD == supported) return true;
    return false;
}

// How kernels divide a head, on a GPU and in the loops of a CPU, which sum in the same order: the lanes that share a
// row in FP32, and the tokens whose gradients a block computes in BF16.
constexpr int row_lanes(int HD) { return HD == 256 ? 8 : 4; }
constexpr int owned_tokens(int HD) { return HD == 256 ? 32 : HD > 64 ? 64 : 128; }

// Throws, in a launcher's name, unless the kernels support these heads.
inline void check_heads(const char* launcher, const AttentionHeads& heads) {
    if (!has_head_dimension(heads.HD))
        throw Error(ExitCode::failure,
                    "{}: head dimension {} is not supported; choose the number of heads so that channels / heads is {}",
                    launcher, heads.HD, kHeadDimensionsText);
    if (heads.NH < 1 || heads.NKV < 1 || heads.NH % heads.NKV != 0)
        throw Error(ExitCode::failure,
                    "{}: {} query heads cannot share {} key heads evenly; choose a divisor of the query heads",
                    launcher, heads.NH, heads.NKV);
}

// Calls f.template operator()<HD>(), for a head dimension that check_heads() has accepted.
template <class F>
void with_head_dimension(int HD, F&& f) {
    with_one_of<32, 64, 80, 96, 128, 256>(HD, f);
}
// The same for f.template operator()<HD, kDocuments>(). Only the usual head dimensions have code without documents: of
// all kernels these take nvcc longest.
template <class F>
void with_head_dimension(int HD, const int* documents, F&& f) {
    with_head_dimension(HD, [&]<int D>() {
        if constexpr (D == 64 || D == 128)
            if (!documents) return f.template operator()<D, false>();
        f.template operator()<D, true>();
    });
}

// ---- forward -------------------------------------------------------------------------------------------------------

// lse is the natural logarithm of each row's sum of exp(score). With it the backward recomputes any probability from
// its score alone.
//
// out_low = bf16(O - bf16(O)), so that out + out_low is O to 2^-17. The backward needs it for delta = rowsum(dout * O):
// from a rounded O, delta is biased where rounding is one-sided, and GPT-2 124M diverges after some thousand steps
// (arXiv 2510.04212). out and out_low together are as large as an FP32 copy instead of the BF16 one. nullptr: not
// written (inference).
//
// bf16: flash attention 2 (arXiv 2307.08691) on mma.sync. Scores and probabilities never leave the registers;
// arithmetic is FP32, and probabilities are rounded to BF16 for the second product. With NKV = NH it moves 10 bytes per
// (B, T, NH, HD) element (6 read, 4 written) if a head's keys and values stay in the L2 cache.
//
// float: FP32 throughout, in plain loops; a reference that is not meant to be fast. out_low is ignored, because O is
// not rounded.
template <class Real>
void attention_forward(Real* out, Real* out_low, float* lse, const Real* qkv, int B, int T, const AttentionHeads& heads,
                       unsigned* tickets, stream_t stream, const int* documents = nullptr);
template <>
void attention_forward<bf16>(bf16*, bf16*, float*, const bf16*, int, int, const AttentionHeads&, unsigned*, stream_t,
                             const int*);
template <>
void attention_forward<float>(float*, float*, float*, const float*, int, int, const AttentionHeads&, unsigned*,
                              stream_t, const int*);

// ---- backward ------------------------------------------------------------------------------------------------------

// Overwrites dqkv. delta is scratch, and holds rowsum(dout * (out + out_low)) afterwards. out, out_low and lse come
// from attention_forward.
//
// bf16: three kernels and no atomics: delta; one that owns key tiles (dK, dV); one that owns query tiles (dQ). Both
// recompute scores and dP: 7 products (11 for HD 256) instead of the 5 of a single kernel that adds dQ up in FP32
// atomics, and the same bits on every run. Scores, P, dP and dS stay in registers, and so do the FP32 sums of a key
// tile, which takes its group's queries head by head. Hopper's kernels run instead where they can
// (hopper/attention.h).
template <class Real>
void attention_backward(Real* dqkv, float* delta, const Real* dout, const Real* qkv, const Real* out,
                        const Real* out_low, const float* lse, int B, int T, const AttentionHeads& heads,
                        unsigned* tickets, stream_t stream, const int* documents = nullptr);
template <>
void attention_backward<bf16>(bf16*, float*, const bf16*, const bf16*, const bf16*, const bf16*, const float*, int, int,
                              const AttentionHeads&, unsigned*, stream_t, const int*);
template <>
void attention_backward<float>(float*, float*, const float*, const float*, const float*, const float*, const float*,
                               int, int, const AttentionHeads&, unsigned*, stream_t, const int*);

// ---- with quantization ---------------------------------------------------------------------------------------------
//
// These give the bits of attention_forward<bf16>() or attention_backward<bf16>() followed by quantize() of the result.
// A block's tile of results is cast in shared memory and leaves in both layouts. quantize.h explains `to` and `pass`;
// `measure` is refused.
//
// B * T % 16 == 0, and T % 8 == 0, so that the tokens of a head fill whole 8-byte pieces of a transposed row (16 bytes
// at a time if T % 16 == 0).
constexpr int kQuantizedAttentionTokens = 8;

// to (B * T, NH * HD): O = out + out_low. out and out_low: as in attention_forward(), for the backward; both may be
// nullptr. Moves 12 bytes per (B, T, NH, HD) element (6 read, 6 written), 8 without out and out_low.
void attention_forward_fp8(const Quantized<e4m3>& to, bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B,
                           int T, const AttentionHeads& heads, QuantizePass pass, unsigned* tickets, stream_t stream,
                           const int* documents = nullptr);

// to (B * T, qkv's width): dqkv rounded to BF16, as attention_backward() writes it. dbias (qkv's width): sums of dqkv
// over tokens, added to dbias if `accumulate`. scratch: attention_backward_fp8_scratch() floats. dbias and scratch may
// both be nullptr. The number of partial sums depends on the shape and the kernels alone.
void attention_backward_fp8(const Quantized<e5m2>& to, float* dbias, float* scratch, float* delta, const bf16* dout,
                            const bf16* qkv, const bf16* out, const bf16* out_low, const float* lse, int B, int T,
                            const AttentionHeads& heads, bool accumulate, QuantizePass pass, unsigned* tickets,
                            stream_t stream, const int* documents = nullptr);
size_t attention_backward_fp8_scratch(int B, int T, const AttentionHeads& heads);

// ---- decoding ------------------------------------------------------------------------------------------------------

// The queries first to first + rows - 1 of one sequence, each over the keys up to its own position.
//
//   qkv           (first + rows, NH + 2 NKV, HD)  the whole sequence; keys and values of the earlier rows are the cache
//   out, out_low  (rows, NH, HD)                  as in attention_forward(); out_low is for bf16, and may be nullptr
//
// A row's bits depend only on its position and the rows before it, not on `first` or `rows`. The arithmetic is that of
// attention_forward(). A block owns 16 queries of a head and walks over all of their keys; with few heads that leaves a
// GPU mostly idle. Moves 4 bytes (bf16) per (first + rows, NH, HD) element for every 16 queries.
template <class Real>
void attention_decode(Real* out, Real* out_low, const Real* qkv, int first, int rows, const AttentionHeads& heads,
                      stream_t stream);

// ---- largest logits ------------------------------------------------------------------------------------------------

// Attention's logits are its scores as softmax reads them: scaled, and only of keys that a query sees.
//
//   maxima (NH) = max(maxima, the largest logit of each head in qkv)
//
// Computes Q K^T once more, which is one of the two products of attention_forward(). Reads queries and keys, and writes
// nothing else. The maximum does not depend on the order. A NaN may be lost. Before the first call all bits of `maxima`
// are set, which is below every number.
template <class Real>
void attention_max_logits(float* maxima, const Real* qkv, int B, int T, const AttentionHeads& heads, stream_t stream,
                          const int* documents = nullptr);

// ---- shared by the launchers ---------------------------------------------------------------------------------------

namespace attention {

// Throws unless the attention kernels can run this shape.
inline void check_shape(int B, int T, const AttentionHeads& heads) {
    check_heads("attention", heads);
    if (B < 1 || B > 65535 || heads.NH > 65535 || T < 1)
        throw Error(
            ExitCode::failure,
            "attention: batch {}, heads {}, length {}: batch and heads must be 1 to 65535, the length at least 1", B,
            heads.NH, T);
    if (heads.window < 0) throw Error(ExitCode::failure, "attention: a window of {} keys", heads.window);
}

// Elements of (B, T, heads, HD).
inline size_t elements(int B, int T, int heads, int HD) { return static_cast<size_t>(B) * T * heads * HD; }

inline size_t tokens(int B, int T) { return static_cast<size_t>(B) * T; }

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace attention
}  // namespace llmc
