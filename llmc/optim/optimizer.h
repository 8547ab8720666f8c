// The numbers of an optimizer step, found on the device: gradient norm, clipping factor, whether the step is skipped,
// learning rate, bias corrections.
//
// A step is: global_norm_partials() for every unit; with several ranks a sum of the parts and of the loss over them;
// prepare_step() once; adamw_update() for every unit. The host may copy the StepState back and read it a step later.
#pragma once
#include "llmc/device/runtime.h"
#include "llmc/kernels/adamw.h"
#include "llmc/optim/schedule.cuh"
#include "llmc/optim/spikes.h"

namespace llmc {

// What prepare_step() does about spikes: nothing without `state`; with it they are noted in StepState::spike, and skip
// the step if `skip` says so.
struct SpikeCheck {
    const SpikeState* state = nullptr;
    bool skip = false;
};

// Fills *state for the updates that follow in the stream. One block, no wait.
//
//   norm       = sqrt(sum of partials) / loss_scale     added in double, rounded to FP32
//   spike      = norm or loss_sum is above its limit, and all of them are finite
//   skip       = norm or loss_sum is not finite, or *bad_flag is not 0, or a spike that is to be skipped: then
//                skipped + 1, and nothing else happens to the run
//   otherwise  applied + 1, learning rate for the old `applied`, bias corrections for the new one,
//              grad_scale = min(1, clip / norm) / loss_scale
//
// partials (n_partials): sums of squares of the stored, scaled gradients. loss_sum: one. loss_scale: one float, a
// power of two, or nullptr for 1; the resulting weights have the same bits for any power of two that neither overflows
// nor underflows. bad_flag: one int, 1 + the index of an FP8 tensor in which a cast met a value that was not finite (it
// saturates and so hides an overflow from the norm), else 0; or nullptr. clip <= 0: no clipping.
void prepare_step(StepState* state, const double* partials, size_t n_partials, const double* loss_sum,
                  const float* loss_scale, const int* bad_flag, const ScheduleConfig& schedule,
                  const AdamWConfig& adamw, double clip, const SpikeCheck& spikes, stream_t stream);

// states[i] = *state, with its learning rate times rates.of[i]: for parameters that have rates of their own.
constexpr int kRateGroups = 3;
struct GroupRates {
    double of[kRateGroups];
};
void scale_rates(StepState* states, const StepState* state, const GroupRates& rates, stream_t stream);

}  // namespace llmc
