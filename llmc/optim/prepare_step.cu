// Kernels and launchers of prepare_step.h.
#include "llmc/optim/prepare_step.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/launch.h"
#if !LLMC_ON_GPU
#include "llmc/kernels/host/vectors.h"
#endif

namespace llmc {

constexpr int kGroups = 16;  // threads' sums are added in 16 groups of 16, then the groups are added

LLMC_DEVICE bool is_finite_double(double x) { return fabs(x) <= 1.7976931348623157e308; }  // false for NaN

// base^exponent by squaring. It uses products only, so the host and the GPU get the same bits, which pow() would not.
LLMC_DEVICE double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

// Derives the step's numbers from the sums. Runs in one thread.
LLMC_DEVICE void finish_step(StepState& state, double sum_of_squares, double loss, double loss_scale, int bad_tensor,
                             const ScheduleConfig& schedule, const AdamWConfig& adamw, double clip,
                             const SpikeCheck& spikes) {
    // Rounding to FP32 hides the order in which the sums were added.
    const double norm = static_cast<float>(sqrt(sum_of_squares) / loss_scale);
    const float loss_sum = static_cast<float>(loss);
    const bool finite = bad_tensor == 0 && is_finite_double(norm) && is_finite(loss_sum);
    int spike = 0;
    if (finite && spikes.state) {
        spike |= loss_sum > spikes.state->loss_limit ? kLossSpike : 0;
        spike |= norm > spikes.state->norm_limit ? kNormSpike : 0;
    }
    const float infinity = float_from_bits(0x7f800000u);
    const bool skip = !finite || (spike && spikes.skip);
    state.norm = norm;
    state.loss_sum = loss_sum;
    state.bad_tensor = bad_tensor;
    state.spike = spike;
    state.loss_limit = spikes.state ? static_cast<float>(spikes.state->loss_limit) : infinity;
    state.norm_limit = spikes.state ? static_cast<float>(spikes.state->norm_limit) : infinity;
    state.skip = skip;
    state.consecutive_skips = skip ? state.consecutive_skips + 1 : 0;
    state.learning_rate = schedule.factor * learning_rate(schedule, state.applied + state.skipped);
    if (skip) {
        state.skipped++;
        return;
    }
    state.applied++;
    const double clip_factor = clip > 0 && norm > clip ? clip / norm : 1.0;
    state.grad_scale = static_cast<float>(clip_factor / loss_scale);
    state.bias_correction1 = static_cast<float>(1.0 / (1.0 - power(adamw.beta1, state.applied)));
    state.bias_correction2 = static_cast<float>(1.0 / (1.0 - power(adamw.beta2, state.applied)));
}

static __global__ void __launch_bounds__(kBlockThreads)
    prepare_step_kernel(StepState* state, const double* partials, size_t n_partials, const double* loss_sum,
                        const float* loss_scale, const int* bad_flag, ScheduleConfig schedule, AdamWConfig adamw,
                        double clip, SpikeCheck spikes) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    LLMC_SHARED(double, groups, [kGroups]);
    const int thread = static_cast<int>(threadIdx.x);
    double sum = 0;
    for (size_t i = thread; i < n_partials; i += kBlockThreads) sum += partials[i];
    sums[thread] = sum;
    __syncthreads();
    if (thread < kGroups) {
        double group = 0;
        for (int i = 0; i < kBlockThreads / kGroups; i++) group += sums[thread * (kBlockThreads / kGroups) + i];
        groups[thread] = group;
    }
    __syncthreads();
    if (thread != 0) return;
    double total = 0;
    for (int i = 0; i < kGroups; i++) total += groups[i];
    finish_step(*state, total, *loss_sum, loss_scale ? *loss_scale : 1.0, bad_flag ? *bad_flag : 0, schedule, adamw,
                clip, spikes);
}

namespace host {

static void prepare_step([[maybe_unused]] const Grid&, StepState* state, const double* partials, size_t n_partials,
                         const double* loss_sum, const float* loss_scale, const int* bad_flag, ScheduleConfig schedule,
                         AdamWConfig adamw, double clip, SpikeCheck spikes) {
#if !LLMC_ON_GPU
    double sums[kBlockThreads] = {}, groups[kGroups] = {}, total = 0;
    add_in_turn(sums, n_partials, [=](size_t i) { return partials[i]; });
    for (int i = 0; i < kBlockThreads; i++) groups[i / (kBlockThreads / kGroups)] += sums[i];
    for (const double group : groups) total += group;
    finish_step(*state, total, *loss_sum, loss_scale ? *loss_scale : 1.0, bad_flag ? *bad_flag : 0, schedule, adamw,
                clip, spikes);
#endif
}

}  // namespace host

void prepare_step(StepState* state, const double* partials, size_t n_partials, const double* loss_sum,
                  const float* loss_scale, const int* bad_flag, const ScheduleConfig& schedule,
                  const AdamWConfig& adamw, double clip, const SpikeCheck& spikes, stream_t stream) {
    if (schedule.steps < 1 || schedule.warmup < 0)
        throw Error(ExitCode::failure, "prepare_step: a schedule of {} steps with {} of warm-up", schedule.steps,
                    schedule.warmup);
    host::launch_or_loop<prepare_step_kernel, host::prepare_step>(
        {1, kBlockThreads, 0, stream},
        {inout(state, 1), in(partials, n_partials), in(loss_sum, 1), in(loss_scale, 1), in(bad_flag, 1),
         in(spikes.state, 1)},
        state, partials, n_partials, loss_sum, loss_scale, bad_flag, schedule, adamw, clip, spikes);
}

static __global__ void scale_rates_kernel(StepState* states, const StepState* state, GroupRates rates) {
    for (int i = 0; i < kRateGroups; i++) {
        states[i] = *state;
        states[i].learning_rate *= rates.of[i];
    }
}

void scale_rates(StepState* states, const StepState* state, const GroupRates& rates, stream_t stream) {
    launch<scale_rates_kernel>({1, 1, 0, stream}, out(states, kRateGroups), in(state, 1), rates);
}

// Empties the windows: no step counts as a spike until they contain kSpikeMinimum values again.
LLMC_DEVICE void start_windows(SpikeState* spikes) {
    spikes->accepted = spikes->in_a_row = 0;
    spikes->loss_limit = spikes->norm_limit = static_cast<double>(float_from_bits(0x7f800000u));
}

static __global__ void reset_spikes_kernel(SpikeState* spikes) {
    const int i = static_cast<int>(threadIdx.x);
    spikes->loss[i] = spikes->norm[i] = 0.0;
    if (i != 0) return;
    start_windows(spikes);
}

// Adds up values[0 .. kSpikeWindow) into values[0], for each half of the block separately.
LLMC_DEVICE void sum_window(double* values, int place) {
    for (int stride = kSpikeWindow / 2; stride > 0; stride /= 2) {
        __syncthreads();
        if (place < stride) values[place] += values[place + stride];
    }
    __syncthreads();
}

// One block with two halves of kSpikeWindow threads: losses and norms, one value per thread.
static __global__ void __launch_bounds__(2 * kSpikeWindow)
    update_spikes_kernel(SpikeState* spikes, const StepState* step) {
    LLMC_SHARED(double, scratch, [2][kSpikeWindow]);
    const int half = static_cast<int>(threadIdx.x) / kSpikeWindow;
    const int place = static_cast<int>(threadIdx.x) % kSpikeWindow;
    if (step->spike && threadIdx.x == 0 && ++spikes->in_a_row == kSpikesOfNewLevel) start_windows(spikes);
    if (step->skip || step->spike) return;  // the same for all threads; the limits stay
    const int64_t accepted = spikes->accepted;

    double* window = half == 0 ? spikes->loss : spikes->norm;
    const int newest = static_cast<int>(accepted % kSpikeWindow);
    const int count = accepted + 1 < kSpikeWindow ? static_cast<int>(accepted + 1) : kSpikeWindow;
    double value = 0.0;
    if (place < count) value = window[place];
    if (place == newest) window[place] = value = half == 0 ? static_cast<double>(step->loss_sum) : step->norm;

    double* sums = scratch[half];
    sums[place] = value;
    sum_window(sums, place);
    const double mean = sums[0] / count;
    __syncthreads();
    sums[place] = place < count ? (value - mean) * (value - mean) : 0.0;
    sum_window(sums, place);
    if (place != 0) return;
    const double sigma = fmax(sqrt(sums[0] / count), kSpikeLeastSigma * fabs(mean));
    if (count >= kSpikeMinimum) (half == 0 ? spikes->loss_limit : spikes->norm_limit) = mean + kSpikeSigmas * sigma;
    if (half != 0) return;
    spikes->accepted = accepted + 1;  // safe: the barriers above order this after every thread's read
    spikes->in_a_row = 0;
}

namespace host {

#if !LLMC_ON_GPU
static double spike_limit(const double* window, int count) {
    double sums[kSpikeWindow] = {};
    std::copy_n(window, count, sums);
    const double mean = tree_sum(sums) / count;
    for (int i = 0; i < kSpikeWindow; i++) sums[i] = i < count ? (window[i] - mean) * (window[i] - mean) : 0.0;
    return mean + kSpikeSigmas * fmax(sqrt(tree_sum(sums) / count), kSpikeLeastSigma * fabs(mean));
}
#endif

static void update_spikes([[maybe_unused]] const Grid&, SpikeState* spikes, const StepState* step) {
#if !LLMC_ON_GPU
    if (step->spike && ++spikes->in_a_row == kSpikesOfNewLevel) start_windows(spikes);
    if (step->skip || step->spike) return;
    const int64_t newest = spikes->accepted++ % kSpikeWindow;
    const int count = static_cast<int>(std::min<int64_t>(spikes->accepted, kSpikeWindow));
    spikes->loss[newest] = static_cast<double>(step->loss_sum);
    spikes->norm[newest] = step->norm;
    spikes->in_a_row = 0;
    if (count < kSpikeMinimum) return;
    spikes->loss_limit = spike_limit(spikes->loss, count);
    spikes->norm_limit = spike_limit(spikes->norm, count);
#endif
}

}  // namespace host

void reset_spikes(SpikeState* spikes, stream_t stream) {
    launch<reset_spikes_kernel>({1, kSpikeWindow, 0, stream}, out(spikes, 1));
}

void update_spikes(SpikeState* spikes, const StepState* step, stream_t stream) {
    host::launch_or_loop<update_spikes_kernel, host::update_spikes>({1, 2 * kSpikeWindow, 0, stream}, inout(spikes, 1),
                                                                    in(step, 1));
}

static __global__ void reset_loss_scale_kernel(LossScaleState* state, float scale) { *state = {scale, 1.0f, 0, 0}; }

static __global__ void update_loss_scale_kernel(LossScaleState* state, const StepState* step, LossScaleConfig config) {
    const float before = state->scale;
    float after = before;
    const bool overflow = step->skip && !step->spike;  // a spike says nothing about the scale
    int clean_steps = overflow ? 0 : state->clean_steps + 1;
    if (overflow && step->consecutive_skips >= config.hysteresis) after = 0.5f * before;
    if (clean_steps >= config.growth_interval) {
        after = 2.0f * before;
        clean_steps = 0;
    }
    if (!config.dynamic || after > config.largest || after < config.smallest) after = before;
    state->scale = after;
    state->change = after / before;
    state->clean_steps = clean_steps;
}

namespace {

bool is_power_of_two(float x) {
    int exponent;
    return std::isfinite(x) && std::frexp(x, &exponent) == 0.5f;
}

}  // namespace

LossScaleConfig loss_scale_config(const std::string& text) {
    LossScaleConfig config;
    if (text == "off") return config;
    constexpr std::string_view with_number = "dynamic:";
    if (text.starts_with(with_number)) config.hysteresis = number_in<int>(text.substr(with_number.size())).value_or(0);
    if (text == "dynamic" || (text.starts_with(with_number) && config.hysteresis > 0)) {
        config.dynamic = true;
        config.initial = 65536.0f;
        return config;
    }
    config.initial = number_in<float>(text).value_or(0);
    if (!is_power_of_two(config.initial) || config.initial < config.smallest || config.initial > config.largest)
        refuse("--loss-scale {}: expected off, dynamic, dynamic:N or a power of two from {:.0f} to {:.0f}", text,
               config.smallest, config.largest);
    return config;
}

void reset_loss_scale(LossScaleState* state, const LossScaleConfig& config, stream_t stream) {
    launch<reset_loss_scale_kernel>({1, 1, 0, stream}, out(state, 1), config.initial);
}

void update_loss_scale(LossScaleState* state, const StepState* step, const LossScaleConfig& config, stream_t stream) {
    launch<update_loss_scale_kernel>({1, 1, 0, stream}, inout(state, 1), in(step, 1), config);
}

}  // namespace llmc
