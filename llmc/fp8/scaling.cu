// Kernels that compute FP8 scales from amaxes, and judge how many values the casts lost (scaling.h).
#include "llmc/fp8/scaling.h"

#include <algorithm>
#include <cfloat>

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/launch.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {

constexpr int kScalingThreads = 128;

LLMC_DEVICE bool is_gradient(int tensor) { return tensor % kFp8Roles == static_cast<int>(Fp8Role::dout); }
LLMC_DEVICE bool is_weight(int tensor) { return tensor % kFp8Roles == static_cast<int>(Fp8Role::w); }

// The factor of weights' scales, in [1/2, 1]: see fp8_set_current().
LLMC_DEVICE float weight_dither(const int64_t* updates) {
    if (!updates) return 1.0f;
    return 1.0f - static_cast<float>(static_cast<uint64_t>(*updates) * kGolden64 >> 40) * 0x1p-25f;
}

// Sets scale and scale_inv for a usable amax; leaves them for any other.
LLMC_DEVICE void set_scale(Fp8State& state, float amax, int tensor, const Fp8Config& config, float factor = 1.0f) {
    if (!(amax > 0.0f) || !is_finite(amax)) return;
    const float largest = is_gradient(tensor) && config.grad == Fp8Grad::e5m2 ? kE5M2Max : kE4M3Max;
    // 2^margin * amax could overflow; the first division is exact.
    float scale = largest / power_of_two(config.margin) / amax * factor;
    if (!is_finite(scale)) scale = FLT_MAX;  // a subnormal amax
    scale = max_float(scale, FLT_MIN);       // 1 / scale must be finite
    if (config.pow2_scales) scale = float_from_bits(float_bits(scale) & 0xff800000u);
    state.scale = scale;
    state.scale_inv = 1.0f / scale;
}

static __global__ void fp8_set_current_kernel(Fp8State* states, int first, int count, Fp8Config config,
                                              const int64_t* updates) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    Fp8State& state = states[i];
    const float amax = state.amax_now;
    state.amax_now = 0.0f;
    if (is_finite(amax))
        state.amax = max_float(state.amax, amax);
    else
        state.bad = 1;  // the amax of weights is infinite if one of them is not finite (update.h)
    const float factor = is_weight(first + i) ? weight_dither(updates) : 1.0f;
    if (!state.bad) set_scale(state, amax, first + i, config, factor);
}

// The amax that the next step's scale is made from. `history` is this tensor's window, the newest entry last.
LLMC_DEVICE float window_amax(const float* history, const Fp8Config& config) {
    const float recent = history[config.history - 1];
    if (config.algorithm == AmaxAlgorithm::most_recent) return recent;
    float result = recent;
    if (config.algorithm == AmaxAlgorithm::max) {
        for (int k = 0; k < config.history; k++) result = max_float(result, history[k]);
        return result;
    }
    // Exponential moving average over the window with the weight 2 / (n + 1) that n equal weights have, from its first
    // entry on.
    const float weight = 2.0f / (static_cast<float>(config.history) + 1.0f);
    float average = 0.0f;
    for (int k = 0; k < config.history; k++) {
        if (history[k] == 0.0f) continue;
        average = average == 0.0f ? history[k] : average + weight * (history[k] - average);
    }
    return max_float(average, recent);
}

// Gradients are `change` times as large from the next step on.
LLMC_DEVICE void move_gradient_scale(Fp8State& state, float* window, const Fp8Config& config, float change) {
    const float moved = state.scale / change;
    if (!is_finite(moved) || moved < FLT_MIN) return;  // out of set_scale()'s range; otherwise exact
    for (int k = 0; k < config.history; k++) window[k] *= change;
    state.scale = moved;
    state.scale_inv = 1.0f / moved;
}

static __global__ void fp8_finish_step_kernel(Fp8State* states, float* history, int count, Fp8Config config,
                                              const float* change) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    Fp8State& state = states[i];
    const float amax = state.amax;
    const bool usable = amax > 0.0f && is_finite(amax) && !state.bad;
    state.last_amax = amax;
    state.amax = 0.0f;
    state.bad = 0;
    if (is_weight(i)) return;
    float* window = history + static_cast<size_t>(i) * config.history;
    if (usable) {
        for (int k = 0; k + 1 < config.history; k++) window[k] = window[k + 1];
        window[config.history - 1] = amax;
        set_scale(state, window_amax(window, config), i, config);
    }
    if (change && is_gradient(i)) move_gradient_scale(state, window, config, *change);
}

// A tensor's position in the order of a step, from 0: first all w, then all x, both in the order of the table, then
// dout from the last layer to the first. Positions are below 2^24, so a float holds them exactly.
LLMC_DEVICE int place_in_step(int tensor, int count) {
    if (is_weight(tensor)) return tensor;
    return is_gradient(tensor) ? 3 * count - 1 - tensor : count + tensor;
}
LLMC_DEVICE int tensor_at_place(int place, int count) {
    return place < count ? place : place < 2 * count ? place - count : 3 * count - 1 - place;
}

static __global__ void fp8_any_bad_kernel(int* flag, const Fp8State* states, int count) {
    LLMC_SHARED(float, scratch, [32]);
    const float none = static_cast<float>(-3 * count);
    float first = none;  // minus the position of the first bad tensor, because blocks have a maximum but no minimum
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
        if (states[i].bad) first = max_float(first, static_cast<float>(-place_in_step(i, count)));
    first = block_max(first, scratch);
    if (threadIdx.x == 0) *flag = first == none ? 0 : 1 + tensor_at_place(static_cast<int>(-first), count);
}

namespace host {

static void fp8_any_bad([[maybe_unused]] const Grid&, int* flag, const Fp8State* states, int count) {
#if !LLMC_ON_GPU
    int first = 3 * count;
    for (int i = 0; i < count; i++)
        if (states[i].bad) first = std::min(first, place_in_step(i, count));
    *flag = first == 3 * count ? 0 : 1 + tensor_at_place(first, count);
#endif
}

}  // namespace host

static __global__ void fp8_pack_amaxes_kernel(float* packed, const Fp8State* states, int count, bool now) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    packed[i] = now ? states[i].amax_now : states[i].amax;
    packed[count + i] = states[i].bad ? 1.0f : 0.0f;
}

static __global__ void fp8_unpack_amaxes_kernel(Fp8State* states, const float* packed, int count, bool now) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    (now ? states[i].amax_now : states[i].amax) = packed[i];
    states[i].bad = packed[count + i] != 0.0f ? 1u : 0u;
}

static __global__ void fp8_reset_kernel(Fp8State* states, float* history, int count, int length) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    states[i] = Fp8State{};
    states[i].scale = states[i].scale_inv = 1.0f;
    for (int k = 0; k < length; k++) history[static_cast<size_t>(i) * length + k] = 0.0f;
}

static __global__ void fp8_clear_counts_kernel(Fp8State* states, Fp8Watch* watches, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    Fp8State& state = states[i];
    if (watches != nullptr) {  // its differences stay right, modulo 2^64
        watches[i].elements -= state.elements;
        watches[i].saturated -= state.saturated;
        watches[i].underflowed -= state.underflowed;
    }
    state.elements = state.saturated = state.underflowed = state.nonfinite = 0;
}

static __global__ void fp8_pack_counts_kernel(float* packed, Fp8Watch* watches, const Fp8State* states, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    Fp8Watch& watch = watches[i];
    const Fp8State& state = states[i];
    packed[i] = static_cast<float>(state.elements - watch.elements);
    packed[count + i] = static_cast<float>(state.saturated - watch.saturated);
    packed[2 * count + i] = static_cast<float>(state.underflowed - watch.underflowed);
    watch.elements = state.elements;
    watch.saturated = state.saturated;
    watch.underflowed = state.underflowed;
}

static __global__ void fp8_judge_kernel(Fp8Verdict* verdicts, Fp8Watch* watches, const float* packed,
                                        const int* bad_flag, int count, Fp8FallbackRule rule) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    Fp8Watch& watch = watches[i];
    Fp8Verdict verdict{static_cast<int>(Fp8Reason::none), 0.0f};
    if (*bad_flag == 0) {
        const float elements = packed[i];
        const float saturated = elements > 0 ? packed[count + i] / elements : 0.0f;
        const float underflowed = elements > 0 ? packed[2 * count + i] / elements : 0.0f;
        watch.saturating = saturated > rule.saturated ? watch.saturating + 1 : 0;
        watch.underflowing = underflowed > rule.underflowed ? watch.underflowing + 1 : 0;
        if (watch.saturating >= rule.steps)
            verdict = {static_cast<int>(Fp8Reason::saturated), saturated};
        else if (watch.underflowing >= rule.steps)
            verdict = {static_cast<int>(Fp8Reason::underflowed), underflowed};
    }
    verdicts[i] = verdict;
}

static LaunchConfig one_thread_each(int count, stream_t stream, const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
    return {dim3(static_cast<unsigned>(div_up(count, kScalingThreads))), dim3(kScalingThreads), 0, stream, file, line};
}

void fp8_set_current(Fp8State* states, int first, int count, const Fp8Config& config, const int64_t* updates,
                     stream_t stream) {
    if (config.pow2_scales) updates = nullptr;  // the factor would be 1 or 1/2, and change no rounding error
    Fp8State* range = states + first;
    launch<fp8_set_current_kernel>(one_thread_each(count, stream), inout(range, static_cast<size_t>(count)), first,
                                   count, config, in(updates, 1));
}

void fp8_finish_step(Fp8State* states, float* history, int count, const Fp8Config& config, const float* change,
                     stream_t stream) {
    const size_t n = count;
    launch<fp8_finish_step_kernel>(one_thread_each(count, stream), inout(states, n), inout(history, n * config.history),
                                   count, config, in(change, 1));
}

void fp8_any_bad(int* flag, const Fp8State* states, int count, stream_t stream) {
    host::launch_or_loop<fp8_any_bad_kernel, host::fp8_any_bad>({dim3(1), dim3(256), 0, stream}, out(flag, 1),
                                                                in(states, static_cast<size_t>(count)), count);
}

void fp8_pack_amaxes(float* packed, const Fp8State* states, int count, bool now, stream_t stream) {
    const size_t n = count;
    launch<fp8_pack_amaxes_kernel>(one_thread_each(count, stream), out(packed, 2 * n), in(states, n), count, now);
}

void fp8_unpack_amaxes(Fp8State* states, const float* packed, int count, bool now, stream_t stream) {
    const size_t n = count;
    launch<fp8_unpack_amaxes_kernel>(one_thread_each(count, stream), inout(states, n), in(packed, 2 * n), count, now);
}

void fp8_reset(Fp8State* states, float* history, int count, const Fp8Config& config, stream_t stream) {
    const size_t n = count;
    launch<fp8_reset_kernel>(one_thread_each(count, stream), out(states, n), out(history, n * config.history), count,
                             config.history);
}

void fp8_clear_counts(Fp8State* states, Fp8Watch* watches, int count, stream_t stream) {
    const size_t n = count;
    launch<fp8_clear_counts_kernel>(one_thread_each(count, stream), inout(states, n), inout(watches, n), count);
}

void fp8_pack_counts(float* packed, Fp8Watch* watches, const Fp8State* states, int count, stream_t stream) {
    const size_t n = count;
    launch<fp8_pack_counts_kernel>(one_thread_each(count, stream), out(packed, 3 * n), inout(watches, n), in(states, n),
                                   count);
}

void fp8_judge(Fp8Verdict* verdicts, Fp8Watch* watches, const float* packed, const int* bad_flag, int count,
               const Fp8FallbackRule& rule, stream_t stream) {
    const size_t n = count;
    launch<fp8_judge_kernel>(one_thread_each(count, stream), out(verdicts, n), inout(watches, n), in(packed, 3 * n),
                             in(bad_flag, 1), count, rule);
}

}  // namespace llmc
