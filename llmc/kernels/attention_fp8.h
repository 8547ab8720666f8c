// Attention whose results leave in FP8, in the two layouts that the next linear layer's products need.
#pragma once
#include "llmc/kernels/attention.h"
#include "llmc/kernels/quantize.h"

namespace llmc {

// The same values, to the bit, as attention_forward<bf16>() or attention_backward<bf16>() followed by quantize() of
// what it has written. Here they go through shared memory instead: a block's tile of results is cast there and leaves
// in both layouts. Shapes: see attention.h; T % 8 == 0, so that tokens of a head fill whole 8-byte pieces of a
// transposed row (16 bytes at a time if T % 16 == 0), and B * T % 16 == 0. Conventions for `to` and `pass`: see
// quantize.h; `measure` is refused.
constexpr int kQuantizedAttentionTokens = 8;

// to (B * T, NH * HD): O = out + out_low. out and out_low: as in attention_forward, for a backward that follows; both
// may be nullptr.
//
// Moves 12 bytes a (B, T, NH, HD) element (6 read, 6 written), 8 without out and out_low.
void attention_forward_fp8(const Quantized<e4m3>& to, bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B,
                           int T, const AttentionHeads& heads, QuantizePass pass, stream_t stream,
                           const int* documents = nullptr);

// to (B * T, qkv's width): dqkv rounded to BF16, as attention_backward() writes it. dbias (qkv's width): its sums over
// tokens, added to dbias when `accumulate`; scratch: attention_backward_fp8_scratch() floats; both nullptr: not wanted.
// The parts' number depends on the shape alone.
template <class F8>
void attention_backward_fp8(const Quantized<F8>& to, float* dbias, float* scratch, float* delta, const bf16* dout,
                            const bf16* qkv, const bf16* out, const bf16* out_low, const float* lse, int B, int T,
                            const AttentionHeads& heads, bool accumulate, QuantizePass pass, stream_t stream,
                            const int* documents = nullptr);
size_t attention_backward_fp8_scratch(int B, int T, const AttentionHeads& heads);

}  // namespace llmc
