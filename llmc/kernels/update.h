// Updates of FP32 master weights, element by element: AdamW, Lion and SGD with momentum. Muon's is in muon.h.
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
// Tensors are 16-byte aligned; any count. An element's result does not depend on its place in the range, so the slices
// of several ranks give the bits of a single rank. A thread takes 8 elements at a time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/math.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

// ---- AdamW ---------------------------------------------------------------------------------------------------------

struct AdamWConfig {
    double beta1 = 0.9, beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
};

// Source of the random bits that round BF16 moments. The bits of an element are a function of `key`, of the update's
// number and of the element's place.
struct MomentRounding {
    uint64_t key = 0;  // a function of the run's seed and of the group of tensors whose places count from 0
    size_t first = 0;  // place of the call's first element, a multiple of 4
};

// 64 bits for the elements `place`, which is even, and `place` + 1 in the `applied`-th update. From the low end on: 16
// bits each for m and v of the first, then for m and v of the second.
LLMC_HD uint64_t moment_bits(uint64_t key, int64_t applied, uint64_t place) {
    return mix64(mix64(key + static_cast<uint64_t>(applied) * kGolden64) + place / 2 * kGolden64);
}

// Loshchilov and Hutter, arXiv 1711.05101, in PyTorch's form:
//
//   m         = beta1 * m + (1 - beta1) * g
//   v         = beta2 * v + (1 - beta2) * g^2
//   direction = m * bias_correction1 / (sqrt(v * bias_correction2) + eps)
//
// Reads 16 bytes per element, and writes 12 and sizeof(Real) for the working copy.
//
// Moment is float or bf16. In BF16, m and v are used as computed, in FP32, and stored rounded to one of their two
// neighbours, at random so that the mean is kept (to_bf16_stochastic). Rounded to nearest, v would stand still as soon
// as (1 - beta2) |g^2 - v| is below half a step of its format. Then 12 bytes per element are read and 8 written, next
// to the working copy. `rounding` is used only for bf16.
template <class Real, class Moment>
void adamw_update(float* master, Moment* m, Moment* v, Real* working, Fp8State* fp8, const float* grad, size_t count,
                  size_t decay_count, const AdamWConfig& config, const StepState* state, stream_t stream,
                  const MomentRounding& rounding = {});

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
void lion_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                 size_t decay_count, const LionConfig& config, const StepState* state, stream_t stream);

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
void sgd_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                size_t decay_count, const SgdConfig& config, const StepState* state, stream_t stream);

}  // namespace llmc
