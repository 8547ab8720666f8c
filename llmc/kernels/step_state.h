// The numbers of an optimizer step on the device. prepare_step() (llmc/optim/prepare_step.h) computes them and every
// update of the step reads them there, so that the host never waits for a step.
#pragma once
#include <cstdint>

namespace llmc {

// One per run, in device memory; all bytes are zero at the start. Checkpoints save `applied`, `skipped` and
// `consecutive_skips`; every prepare_step() writes the other fields.
struct StepState {
    int64_t applied;            // updates applied, including this step's: drives bias correction
    int64_t skipped;            // steps skipped: the loss, a gradient or a value cast to FP8 was not finite, or a spike
    double norm;                // of the unscaled gradients, before clipping, rounded to FP32
    double learning_rate;       // of this step
    float loss_sum;             // over the step's targets, in nats
    float grad_scale;           // clipping factor / loss scale: every stored gradient is multiplied by it
    float bias_correction1;     // 1 / (1 - beta1^applied)
    float bias_correction2;     // 1 / (1 - beta2^applied)
    int32_t skip;               // 1: this step changes nothing
    int32_t consecutive_skips;  // up to and including this step; 0 if it was applied
    int32_t spike;              // kLossSpike | kNormSpike: the values above their limits (llmc/optim/prepare_step.h)
    int32_t bad_tensor;         // 1 + index of the first FP8 tensor that held a non-finite value, or 0
    float loss_limit;           // limits for loss_sum and norm; infinite if spikes are not looked for
    float norm_limit;
};

constexpr int32_t kLossSpike = 1, kNormSpike = 2;

}  // namespace llmc
