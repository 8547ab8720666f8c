// AdamW on FP32 master weights. Learning rate, clipping factor and bias corrections come from the StepState.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/device/formats.cuh"
#include "llmc/device/random.cuh"
#include "llmc/device/runtime.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

struct AdamWConfig {
    double beta1 = 0.9, beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
};

// Where the random bits come from by which BF16 moments are rounded: those of an element are a function of `key`, of
// the update's number and of the element's place, which is `first` for the first of a call. `key`: of the run's seed
// and of the tensors that count from one place 0.
struct MomentRounding {
    uint64_t key = 0;
    size_t first = 0;  // a multiple of 4
};

// 64 bits for the elements `place` and `place` + 1, an even one, in the update that is the `applied`-th: from the low
// end on 16 each for m and v of the one, and for m and v of the other.
LLMC_HD uint64_t moment_bits(uint64_t key, int64_t applied, uint64_t place) {
    return mix64(mix64(key + static_cast<uint64_t>(applied) * kGolden64) + place / 2 * kGolden64);
}

// One AdamW update of `count` parameters (Loshchilov and Hutter, arXiv 1711.05101, in PyTorch's form):
//
//   g       = grad * grad_scale
//   m       = beta1 * m + (1 - beta1) * g
//   v       = beta2 * v + (1 - beta2) * g^2
//   master -= learning_rate * (weight_decay * master + m * bias_correction1 / (sqrt(v * bias_correction2) + eps))
//   working = master rounded to Real                                         (if not null)
//   fp8->amax_now = max(fp8->amax_now, |master|)                             (if not null)
//
// `fp8` is the state of the FP8 tensor that these parameters are; its scale then needs no pass of its own over them.
// The amax is that of quantize_weight()'s pass `measure`, but infinite if a value is not finite.
//
// The first decay_count parameters decay, the rest do not. With state->skip set nothing is written. Every tensor must
// be 16-byte aligned; any count. An element's result does not depend on where in the range it lies, so that the slices
// of several ranks give the bits of one. Read 16 bytes an element, written 12 and sizeof(Real) for the working copy; 8
// elements a thread at a time.
//
// Moment is float or bf16. In BF16 m and v are used as computed, in FP32, and stored rounded to one of their two
// neighbours, to either with the probability that keeps the mean (to_bf16_stochastic): rounded to nearest, v would
// stand still as soon as (1 - beta2) |g^2 - v| is below half a step of its format. Then 12 bytes an element are read
// and 8 written, beside the working copy. `rounding` matters then alone.
template <class Real, class Moment>
void adamw_update(float* master, Moment* m, Moment* v, Real* working, Fp8State* fp8, const float* grad, size_t count,
                  size_t decay_count, const AdamWConfig& config, const StepState* state, stream_t stream,
                  const MomentRounding& rounding = {});

}  // namespace llmc
