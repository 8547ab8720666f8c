// Updates of master weights, element by element: AdamW, Lion and SGD with momentum. Muon's is in muon.h.
//
// All of them write, for `count` parameters:
//
//   g              = grad * grad_scale
//   master        -= learning_rate * (weight_decay * master + the optimizer's direction for g)
//   working        = master rounded to Real                    unless nullptr
//   fp8->amax_now  = max(fp8->amax_now, |master|)              unless nullptr
//
// Learning rate, grad_scale and bias corrections come from the StepState. With state->skip set, nothing is written.
// The first decay_count parameters get weight decay, the rest do not.
//
// `fp8` is the state of the FP8 tensor that these parameters form; its scale then needs no pass of its own over them.
// The amax is that of quantize_weight()'s pass `measure`, but infinite if a value is not finite.
//
// Gradients are FP32 or BF16. Masters are FP32, or BF16 rounded at random by `rounding` (state_array.h). The working
// copy and the amax are those of the rounded weights.
//
// Tensors are 16-byte aligned; any count. An element's result does not depend on its place in the range, so the slices
// of several ranks give the bits of a single rank. A thread takes 8 elements at a time.
#pragma once
#include <cstddef>

#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/state_array.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

template <class Real>
struct UpdateTensors {
    StateArray master;
    StateArray m, v;  // the moments that the optimizer keeps
    Real* working;    // may be nullptr
    StateArray grad;  // with Muon directions
    StateRounding rounding = {};
};

// ---- AdamW ---------------------------------------------------------------------------------------------------------

struct AdamWConfig {
    double beta1 = 0.9, beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    bool cautious_decay = false, nesterov = false;
};

// Loshchilov and Hutter, arXiv 1711.05101, in PyTorch's form:
//
//   m         = beta1 * m + (1 - beta1) * g
//   v         = beta2 * v + (1 - beta2) * g^2
//   direction = m * bias_correction1 / (sqrt(v * bias_correction2) + eps)
//
// With `nesterov` it is NAdamW in the form of optax.nadamw and AlgoPerf's baselines, without torch.optim.NAdam's
// schedule of beta1. After t updates:
//
//   direction = (beta1 * m / (1 - beta1^(t + 1)) + (1 - beta1) * g * bias_correction1)
//               / (sqrt(v * bias_correction2) + eps)
//
// With `cautious_decay` a weight does not decay if its direction takes it away from 0 (direction * master < 0: cautious
// weight decay, arXiv 2510.12402).
//
// Reads 16 bytes per element, and writes 12 and sizeof(Real) for the working copy.
//
// Moments are FP32 or BF16, and m may be fp8. The step uses them before they are rounded.
template <class Real>
void adamw_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                  const AdamWConfig& config, const StepState* state, stream_t stream);

// ---- Lion ----------------------------------------------------------------------------------------------------------

struct LionConfig {
    double beta1 = 0.9, beta2 = 0.99;
    double weight_decay = 0.1;
};

// Chen et al., arXiv 2302.06675, algorithm 2: one moment, and steps of one size.
//
//   direction = sign(beta1 * m + (1 - beta1) * g)       sign(0) = 0
//   m         = beta2 * m + (1 - beta2) * g
//
// Reads 12 bytes per element, and writes 8 and sizeof(Real) for the working copy.
template <class Real>
void lion_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                 const LionConfig& config, const StepState* state, stream_t stream);

// ---- SGD -----------------------------------------------------------------------------------------------------------

struct SgdConfig {
    double momentum = 0.9;  // 0: no momentum, and no moment is kept
    bool nesterov = false;
    double weight_decay = 0.1;
};

// torch.optim.SGD with dampening 0, except that weight decay is decoupled as in AdamW: it is not added to the gradient,
// and so not to the momentum.
//
//   m         = momentum * m + g                a sum, not an average; nullptr without momentum
//   direction = g + momentum * m                with Nesterov momentum; otherwise m, or g without momentum
//
// Reads 12 bytes per element, and writes 8 and sizeof(Real) for the working copy; 4 less each without momentum.
template <class Real>
void sgd_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                const SgdConfig& config, const StepState* state, stream_t stream);

}  // namespace llmc
