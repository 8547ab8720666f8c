// Attention on Hopper (compute capability 9.0): variants of attention_forward() and attention_forward_fp8() on TMA and
// wgmma. Same arguments, same rules, other orders of sums: results agree with the portable kernels within the bounds of
// the FP64 reference, not to the bit. Each gives the same bits on every run.
#pragma once
#include "llmc/kernels/attention.h"

namespace llmc::attention {
template <class Out>
struct Gradients;  // attention_quantize.cuh
}

namespace llmc::hopper {

// True if these kernels can run such heads; other shapes take the portable kernel.
inline bool can_run(const AttentionHeads& heads) { return heads.HD == 64 || heads.HD == 128; }

// Forward; see attention_forward() and attention_forward_fp8(). `to.state` is nullptr if no FP8 output is wanted.
void attention_forward(const Quantized<e4m3>& to, bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B, int T,
                       const AttentionHeads& heads, QuantizePass pass, stream_t stream, const int* documents);

// ---- backward ------------------------------------------------------------------------------------------------------

// The longest T that the backward kernel runs with such heads; 0 if it cannot run them. A block needs T x 64 FP32 sums
// for each query head of a group, which all blocks together should keep in L2.
inline int longest_backward(const AttentionHeads& heads) { return heads.HD == 64 ? 2048 / (heads.NH / heads.NKV) : 0; }
inline bool can_run_backward(int T, const AttentionHeads& heads) { return T <= longest_backward(heads); }

// Blocks of the backward kernel, at most: a block for each multiprocessor of an H100 or H200 SXM.
constexpr int kBackwardBlocks = 132;

// True if the backward kernel is faster than the portable ones (predicted). A block owns a head of keys, so with fewer
// heads than half of the blocks most of a card would idle.
inline bool backward_is_faster(int B, int T, const AttentionHeads& heads) {
    return can_run_backward(T, heads) && int64_t{2} * B * heads.NKV >= kBackwardBlocks;
}

// Floats that the backward kernel needs for sums of dQ. A block's rows are rounded up to whole tiles of 128.
inline size_t attention_backward_partials(int B, int T, const AttentionHeads& heads) {
    if (!can_run_backward(T, heads)) return 0;
    const size_t work = static_cast<size_t>(B) * heads.NKV, blocks = work < kBackwardBlocks ? work : kBackwardBlocks;
    return blocks * (heads.NH / heads.NKV) * ((static_cast<size_t>(T) + 127) / 128 * 128) * heads.HD;
}

// Backward; see attention_backward() and attention_backward_fp8(). delta is an input here. partials:
// attention_backward_partials() floats, 16-byte aligned.
template <class Out>
void attention_backward(const attention::Gradients<Out>& to, float* partials, const bf16* dout, const bf16* qkv,
                        const float* lse, const float* delta, int B, int T, const AttentionHeads& heads,
                        stream_t stream, const int* documents);

}  // namespace llmc::hopper
