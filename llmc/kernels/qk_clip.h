// QK-clip (MuonClip, Kimi K2, arXiv 2507.20534, algorithm 1): after an optimizer step, the weights that make queries
// and keys are scaled down in heads whose largest attention logit S exceeded a limit, by which logits cannot grow
// further.
//
//   gamma             = limit / S if S > limit, else 1
//   queries and keys *= sqrt(gamma)                      if each query head has a key head of its own
//   queries          *= gamma                            if query heads share key heads
//
// The paper leaves a key that heads share untouched and scales queries alone (its k^R and q^R), because scaling the key
// would change the other heads. So it is with grouped queries here. RoPE and sums with a bias are linear: scaling
// weights and biases scales the logits.
//
// master (count) is the part of qkv.weight (NH + 2 NKV, HD, columns) from element `first` on, a multiple of 4, or of
// qkv.bias, with 1 column. maxima (NH) are the S of its layer (attention_max_logits()). `working` and `fp8` may be
// nullptr. The working copy follows the masters that change, and fp8->amax_now is raised to the largest magnitude of
// all masters, as in update.h. With state->skip set, nothing is written. Deterministic. Heads within the limit cost
// nothing, except that an amax takes reading them; others move 8 bytes and sizeof(Real) per element.
#pragma once
#include "llmc/kernels/attention.h"
#include "llmc/kernels/state_array.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

template <class Real>
void qk_clip(const StateArray& master, Real* working, Fp8State* fp8, const float* maxima, const AttentionHeads& heads,
             size_t columns, size_t first, size_t count, float limit, const StepState* state, stream_t stream,
             const StateRounding& rounding = {});

}  // namespace llmc
