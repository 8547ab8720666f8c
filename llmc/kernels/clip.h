// The norm of gradients, their clipping by value or tensor by tensor, and QK-clip of weights, all in place. Clipping by
// the norm of all gradients needs no kernel: it is a factor of the update (llmc/optim/prepare_step.h).
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/state_array.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

// Gradients are 16-byte aligned, and n is any number of them.

// ---- norm ----------------------------------------------------------------------------------------------------------
//
// Sums of squares are taken in parts: the gradients of every unit add their parts to one array, which the optimizer
// adds up.

// Number of parts for n gradients: a function of n alone, so that the sum has the same bits on every GPU.
size_t global_norm_blocks(size_t n);

// partials[b] = sum of grad[i]^2 over block b's elements, b < global_norm_blocks(n), in a fixed order: every eight
// neighbours in FP32, and those sums in FP64. So for any cut of the gradients into parts, at multiples of eight, the
// sums agree to about 1e-15. A gradient that is not finite, or whose square is beyond FP32 (1.8e19), makes its part
// non-finite. Reads every gradient once. Gradients may be FP32 or BF16.
void global_norm_partials(double* partials, const StateArray& grad, size_t n, stream_t stream);

// *sum = sum of n partials, in a fixed order: each thread's own, then the threads' in a tree.
void add_partials(double* sum, const double* partials, size_t n, stream_t stream);

// ---- clipping ------------------------------------------------------------------------------------------------------

// Limits grad (n) to [-clip, clip] * *loss_scale, a power of two: PyTorch's clip_grad_value_ of the unscaled gradients.
// Moves 8 bytes per element.
void clip_values(float* grad, size_t n, double clip, const float* loss_scale, stream_t stream);

// Factors of n tensors, from the sums of squares of their stored gradients:
//
//   norm   = sqrt(square) / *loss_scale       in double, rounded to FP32, which hides the order of additions
//   factor = norm > clip ? clip / norm : 1    rounded to FP32
void clip_factors(float* factors, const double* squares, size_t n, double clip, const float* loss_scale,
                  stream_t stream);

// grad (n) *= *factor. Moves 8 bytes per element, none if the factor is 1.
void scale_gradient(float* grad, size_t n, const float* factor, stream_t stream);

// ---- QK-clip --------------------------------------------------------------------------------------------------------
//
// MuonClip (Kimi K2, arXiv 2507.20534, algorithm 1): after an optimizer step, the weights that make queries
// and keys are scaled down in heads whose largest attention logit S exceeded a limit, so that logits do not grow
// further.
//
//   gamma             = limit / S if S > limit, else 1
//   queries and keys *= sqrt(gamma)                      if each query head has a key head of its own
//   queries          *= gamma                            if query heads share key heads
//
// The paper leaves a key that heads share untouched and scales queries alone (its k^R and q^R), because scaling the key
// would change the other heads. Grouped queries do the same here. RoPE and sums with a bias are linear: scaling
// weights and biases scales the logits.
//
// master (count) is the part of qkv.weight (NH + 2 NKV, HD, columns) from element `first` on, a multiple of 4, or of
// qkv.bias, with 1 column. maxima (NH) are the S of its layer (attention_max_logits()). `working` and `fp8` may be
// nullptr. The working copy follows the masters that change, and fp8->amax_now is raised to the largest magnitude of
// all masters, as in update.h. With state->skip set, nothing is written. Deterministic. Heads within the limit cost
// nothing, except that an amax takes reading them; others move 8 bytes and sizeof(Real) per element.
template <class Real>
void qk_clip(const StateArray& master, Real* working, Fp8State* fp8, const float* maxima, const AttentionHeads& heads,
             size_t columns, size_t first, size_t count, float limit, const StepState* state, stream_t stream,
             const StateRounding& rounding = {});

}  // namespace llmc
