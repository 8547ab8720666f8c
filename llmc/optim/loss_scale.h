// Loss scaling (Micikevicius et al., arXiv 1710.03740): the loss is multiplied by a power of two before the backward
// pass, so that small gradients do not underflow on their way, and the optimizer divides by it. The scale lives and
// changes on the device; the host never waits for it.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/device/runtime.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

// All scales are powers of two: multiplying and dividing by them is exact, and a run in which nothing overflows or
// underflows has the same bits at any scale.
struct LossScaleConfig {
    bool dynamic = false;
    float initial = 1.0f;
    int growth_interval = 1000;  // steps without overflow after which the scale is doubled
    float largest = 16777216.0f, smallest = 1.0f;
};

// The value of --loss-scale: "off" (1), "dynamic" (from 2^16 on) or a power of two from 1 to 2^24.
LossScaleConfig loss_scale_config(const std::string& text);

// One a run, in device memory, begun by reset_loss_scale(). `scale` and `clean_steps` belong into a checkpoint.
struct LossScaleState {
    float scale;          // of the step being computed: what the classifier and prepare_step() are given a pointer to
    float change;         // scale after the last update / scale before it: 2, 1 or 1/2. Amax histories of gradients are
                          // multiplied by it, their scales divided.
    int32_t clean_steps;  // since the last change or overflow
    int32_t reserved;
};

void reset_loss_scale(LossScaleState* state, const LossScaleConfig& config, stream_t stream);

// Once a step, between its prepare_step() and the next step's first use of the scale (updates in between read the
// StepState alone). A skipped step halves the scale unless it was a spike, growth_interval
// others after each other double it; at
// `largest` and `smallest` it stays. Without `dynamic` it never changes.
void update_loss_scale(LossScaleState* state, const StepState* step, const LossScaleConfig& config, stream_t stream);

}  // namespace llmc
