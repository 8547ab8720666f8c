// Computes the numbers of an optimizer step on the device: gradient norm, clipping factor, whether the step is skipped,
// learning rate and bias corrections. Also detects spikes, and moves the loss scale.
//
// A step is: global_norm_partials() for every unit; with several ranks, a sum over the ranks of these partials and of
// the loss; prepare_step() once; then the optimizer's update for every unit. The host may copy the StepState back and
// read it one step later.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/device/runtime.h"
#include "llmc/kernels/step_state.h"
#include "llmc/kernels/update.h"
#include "llmc/optim/schedule.cuh"

namespace llmc {

// ---- spikes ---------------------------------------------------------------------------------------------------------
// Spikes are losses and gradient norms far above those of previous steps. They are detected on the device, which
// decides whether a step counts, so that the host never waits.
//
// Two windows hold the losses and norms of the last steps that were neither skipped nor spikes, so non-finite and
// extreme values never widen the limits. After every step the windows give the limits for the next step: mean + 6
// standard deviations. A deviation counts as at least 1 % of the mean, because values that hardly differ say little
// about the next one. With fewer than 64 values nothing is a spike.
//
// Ten spikes in a row are a new level: the windows restart with the next step.

constexpr int kSpikeWindow = 128;
constexpr int kSpikeMinimum = 64;
constexpr double kSpikeSigmas = 6.0;
constexpr double kSpikeLeastSigma = 0.01;  // as a fraction of the mean
constexpr int kSpikesOfNewLevel = 10;      // in a row

// The state of a run's spike detection, in device memory; reset_spikes() initialises it. Checkpoints contain it.
struct SpikeState {
    double loss[kSpikeWindow], norm[kSpikeWindow];  // rings: value n is at n % kSpikeWindow
    int64_t accepted;                               // values added to each window since its start
    int64_t in_a_row;                               // spikes since the last added value
    double loss_limit, norm_limit;                  // for the next step; infinite below kSpikeMinimum values
};

void reset_spikes(SpikeState* spikes, stream_t stream);

// Call once per step, after its prepare_step(). Adds the step's loss sum and norm to the windows, unless the step was
// skipped or a spike, and computes the limits. Losses are sums over the step's targets, whose number must stay the same
// during a run. Sums use a fixed order, so equal values give equal limits.
void update_spikes(SpikeState* spikes, const StepState* step, stream_t stream);

// ---- the numbers of a step ------------------------------------------------------------------------------------------

// How prepare_step() treats spikes. With a `state` it notes them in StepState::spike, and skips the step if `skip` is
// set. Without one it ignores them.
struct SpikeCheck {
    const SpikeState* state = nullptr;
    bool skip = false;
};

// Fills *state for the updates that follow in the stream. Launches one block and does not wait.
//
//   norm       = sqrt(sum of partials) / loss_scale     added in double, rounded to FP32
//   spike      = norm or loss_sum is above its limit, and both are finite
//   skip       = norm or loss_sum is not finite, or *bad_flag is not 0, or spikes are to be skipped and this is one
//                a skipped step only counts `skipped` up
//   otherwise    applied + 1, learning rate for the old `applied`, bias corrections for the new one,
//                grad_scale = min(1, clip / norm) / loss_scale
//
// partials (n_partials): sums of squares of the stored, scaled gradients. loss_sum: one double. loss_scale: one float,
// a power of two, or nullptr for 1; the weights get the same bits for every power of two that neither overflows nor
// underflows. bad_flag: one int, 1 + the index of an FP8 tensor in which a cast met a non-finite value, or 0; nullptr
// without FP8. The flag is needed because saturating casts hide an overflow from the norm. clip <= 0: no clipping.
void prepare_step(StepState* state, const double* partials, size_t n_partials, const double* loss_sum,
                  const float* loss_scale, const int* bad_flag, const ScheduleConfig& schedule,
                  const AdamWConfig& adamw, double clip, const SpikeCheck& spikes, stream_t stream);

// states[i] = *state with the learning rate multiplied by rates.of[i], for groups of parameters with their own rates.
constexpr int kRateGroups = 3;
struct GroupRates {
    double of[kRateGroups];
};
void scale_rates(StepState* states, const StepState* state, const GroupRates& rates, stream_t stream);

// ---- loss scaling ---------------------------------------------------------------------------------------------------
// Micikevicius et al., arXiv 1710.03740: the loss is multiplied by a power of two before the backward pass, so that
// small gradients do not underflow, and the optimizer divides by it. The scale lives and changes on the device; the
// host never waits for it.

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
    float scale;  // the current step's; the classifier and prepare_step() get a pointer to it
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
