// Attention on Hopper (compute capability 9.0): variants of the launchers in llmc/kernels/attention.h, on TMA and
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

// Keys and queries in a tile of the backward kernels, and tokens that share a partial sum of the bias gradient.
constexpr int kBackwardTile = 128;

// One kernel: a block owns a whole head of keys and values, and adds up dQ in global memory. The longest T that it runs
// with such heads; 0 if it cannot run them. A block needs T x 64 FP32 sums for each query head of a group, which all
// blocks together should keep in L2.
inline int longest_backward(const AttentionHeads& heads) { return heads.HD == 64 ? 2048 / (heads.NH / heads.NKV) : 0; }
inline bool can_run_backward(int T, const AttentionHeads& heads) { return T <= longest_backward(heads); }

// Two kernels, of which one owns keys and one queries: seven products instead of five, but nothing is added up in
// global memory, so that any T and any group runs.
inline bool can_run_split_backward(const AttentionHeads& heads) { return can_run(heads); }

// Blocks of the one kernel, at most: a block for each multiprocessor of an H100 or H200 SXM.
constexpr int kBackwardBlocks = 132;

// True if the one kernel is faster than the two (predicted): unless its blocks wait for those that have one head more,
// or have no head, for 40 % of the time.
inline bool backward_is_faster(int B, int T, const AttentionHeads& heads) {
    const int64_t work = int64_t{1} * B * heads.NKV, turns = (work + kBackwardBlocks - 1) / kBackwardBlocks;
    return can_run_backward(T, heads) && 5 * work >= 3 * turns * kBackwardBlocks;
}

// Floats that the one kernel needs for sums of dQ. A block's rows are rounded up to whole tiles of 128.
inline size_t attention_backward_partials(int B, int T, const AttentionHeads& heads) {
    if (!can_run_backward(T, heads)) return 0;
    const size_t work = static_cast<size_t>(B) * heads.NKV, blocks = work < kBackwardBlocks ? work : kBackwardBlocks;
    const size_t rows = (static_cast<size_t>(T) + kBackwardTile - 1) / kBackwardTile * kBackwardTile;
    return blocks * (heads.NH / heads.NKV) * rows * heads.HD;
}

// Backward in one kernel; see attention_backward() and attention_backward_fp8(). delta is an input here. partials:
// attention_backward_partials() floats, 16-byte aligned.
template <class Out>
void attention_backward(const attention::Gradients<Out>& to, float* partials, const bf16* dout, const bf16* qkv,
                        const float* lse, const float* delta, int B, int T, const AttentionHeads& heads,
                        stream_t stream, const int* documents);

// The same in two kernels.
template <class Out>
void attention_backward_split(const attention::Gradients<Out>& to, const bf16* dout, const bf16* qkv, const float* lse,
                              const float* delta, int B, int T, const AttentionHeads& heads, stream_t stream,
                              const int* documents);

}  // namespace llmc::hopper
