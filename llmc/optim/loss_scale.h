// Loss scaling (Micikevicius et al., arXiv 1710.03740): the loss is multiplied by a power of two before the backward
// pass, so that small gradients do not underflow, and the optimizer divides by it. The scale lives and changes on the
// device; the host never waits for it.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/device/runtime.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

// All scales are powers of two, so multiplying and dividing by them is exact. A run without overflow and underflow has
// the same bits at any scale.
struct LossScaleConfig {
    bool dynamic = false;
    float initial = 1.0f;
    int growth_interval = 1000;  // steps without overflow after which the scale is doubled
    float largest = 16777216.0f, smallest = 1.0f;
    int hysteresis = 1;  // an overflow halves the scale if it is at least the hysteresis-th skipped step in a row
};

// Parses --loss-scale: "off" (1), "dynamic" (starts at 2^16), "dynamic:N" with a hysteresis of N, or a power of two
// from 1 to 2^24. N skips in a row are DeepSpeed's rule with consecutive_hysteresis.
LossScaleConfig loss_scale_config(const std::string& text);

// The state of a run, in device memory; reset_loss_scale() initialises it. Checkpoints contain `scale` and
// `clean_steps`.
struct LossScaleState {
    float scale;  // of the present step; the classifier and prepare_step() get a pointer to it
    // The scale after the last update divided by that before it: 2, 1 or 1/2. Amax histories of gradients are
    // multiplied by it, their scales divided.
    float change;
    int32_t clean_steps;  // since the last change or overflow
    int32_t reserved;
};

void reset_loss_scale(LossScaleState* state, const LossScaleConfig& config, stream_t stream);

// Call once per step, after its prepare_step() and before the next step first uses the scale (updates in between only
// read the StepState). A skipped step halves the scale, unless it was a spike or `hysteresis` keeps the scale;
// growth_interval consecutive other steps double it. The scale stays within `smallest` and `largest`. Without `dynamic`
// it never changes.
void update_loss_scale(LossScaleState* state, const StepState* step, const LossScaleConfig& config, stream_t stream);

}  // namespace llmc
