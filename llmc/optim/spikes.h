// Spikes of the loss and of the gradient norm: values far above those of the steps before. They are found on the
// device, where it is decided whether a step counts, so that the host never waits.
//
// Two windows hold the losses and norms of the last steps that were neither skipped nor spikes themselves: a value that
// is not finite, or far off, never widens what counts as normal. After every step the windows give the limits that the
// next step's values are compared to (prepare_step() does that): mean + 6 standard deviations, where a deviation counts
// as at least 1 % of the mean, because values that hardly differ say little about how far the next one may be. Below 64
// values nothing is a spike.
//
// Ten spikes in a row are a new level of the values, and no spikes: the windows start again with the next step.
#pragma once
#include <cstdint>

#include "llmc/device/runtime.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

constexpr int kSpikeWindow = 128;
constexpr int kSpikeMinimum = 64;
constexpr double kSpikeSigmas = 6.0;
constexpr double kSpikeLeastSigma = 0.01;  // as a fraction of the mean
constexpr int kSpikesOfNewLevel = 10;      // in a row

// One a run, in device memory, begun by reset_spikes(); belongs into a checkpoint.
struct SpikeState {
    double loss[kSpikeWindow], norm[kSpikeWindow];  // rings: value n stands at n % kSpikeWindow
    int64_t accepted;                               // values that have entered, each window, since its start
    int64_t in_a_row;                               // spikes since the last value that entered
    double loss_limit, norm_limit;                  // of the next step; infinite below kSpikeMinimum values
};

void reset_spikes(SpikeState* spikes, stream_t stream);

// Once a step, after its prepare_step(): the step's loss sum and norm enter the windows unless the step was skipped or
// a spike, and the limits follow. Losses are sums over the step's targets, whose number must stay the same during a
// run. Sums are added in a fixed order: the same values give the same limits.
void update_spikes(SpikeState* spikes, const StepState* step, stream_t stream);

}  // namespace llmc
