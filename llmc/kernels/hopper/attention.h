// Attention on Hopper (compute capability 9.0), on TMA and wgmma, which the launchers in llmc/kernels/attention.h take
// where they can. Same arguments, same rules, other orders of sums: results agree with the portable kernels within the
// bounds of the FP64 reference, not to the bit. Each gives the same bits on every run.
#pragma once
#include "llmc/kernels/attention.h"

namespace llmc::attention {
template <class Out>
struct Gradients;  // attention_quantize.cuh
struct BackwardInputs;
}  // namespace llmc::attention

namespace llmc::hopper {

// True if these kernels may run such heads on a Hopper card. Other shapes take the portable kernels.
inline bool can_run(const AttentionHeads& heads) {
    return heads.kernels == Kernels::automatic && (heads.HD == 64 || heads.HD == 128);
}
// True if they run them here.
inline bool runs(const AttentionHeads& heads) { return can_run(heads) && is_hopper(); }

// Forward; see attention_forward() and attention_forward_fp8(). `to.state` is nullptr if no FP8 output is wanted.
void attention_forward(const Quantized<e4m3>& to, bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B, int T,
                       const AttentionHeads& heads, QuantizePass pass, unsigned* tickets, stream_t stream,
                       const int* documents);

// ---- backward ------------------------------------------------------------------------------------------------------

// Keys and queries in a tile of the backward kernels, and tokens that share a partial sum of the bias gradient.
constexpr int kBackwardTile = 128;

// Backward in two kernels, of which one owns keys and one queries; see attention_backward() and
// attention_backward_fp8(). The one that owns queries runs first, and computes delta as well.
template <class Out>
void attention_backward_split(const attention::Gradients<Out>& to, float* delta,
                              const attention::BackwardInputs& inputs, int B, int T, const AttentionHeads& heads,
                              unsigned* tickets, stream_t stream);

}  // namespace llmc::hopper
