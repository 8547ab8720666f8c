// Kernels of the optimizers that update each weight by itself: AdamW, Lion and SGD (update.h). Lion and SGD are rules
// for the kernel of update.cuh. AdamW, which keeps two moments, has a kernel of its own on the same walk.
#include "llmc/kernels/update.h"

#include <algorithm>

#include "llmc/kernels/update.cuh"

namespace llmc {

// ---- AdamW ---------------------------------------------------------------------------------------------------------

// AdamWConfig in FP32. The complements are rounded from double, because 1 - 0.95f would be off by 2e-7.
struct AdamWFactors {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
};

// Rounds a group's moments to values that BF16 has.
LLMC_DEVICE void round_moments(float (&m)[8], float (&v)[8], uint64_t key, int64_t applied, size_t place) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i += 2) {
        const uint64_t bits = moment_bits(key, applied, place + static_cast<size_t>(place_in_fours(i)));
        const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
        m[i] = to_float(to_bf16_stochastic(m[i], low));
        v[i] = to_float(to_bf16_stochastic(v[i], low >> 16));
        m[i + 1] = to_float(to_bf16_stochastic(m[i + 1], high));
        v[i + 1] = to_float(to_bf16_stochastic(v[i + 1], high >> 16));
    }
}

// The tensors of an update, from the first element of a call or of a group on.
template <class Real, class Moment>
struct AdamWTensors {
    float* master;
    Moment *m, *v;
    Real* working;  // may be nullptr
    const float* grad;
    MomentRounding rounding;

    LLMC_DEVICE AdamWTensors from(size_t i) const {
        return {
            master + i, m + i, v + i, working ? working + i : nullptr, grad + i, {rounding.key, rounding.first + i}};
    }
};

// Updates one group of eight, from the loads to the stores. Returns the bits of the largest magnitude of the new
// weights, or infinity's if a weight is not finite.
template <bool kMeasures, class Real, class Moment>
LLMC_DEVICE uint32_t update_group(const AdamWTensors<Real, Moment>& at, size_t left, size_t decayed,
                                  const AdamWFactors& factors, const StepState& state) {
    const float learning_rate = static_cast<float>(state.learning_rate), grad_scale = state.grad_scale;
    const float correction1 = state.bias_correction1, correction2 = state.bias_correction2;
    // decayed_fours[h]: how many elements of the h-th group of four get weight decay.
    const int decayed_fours[2] = {
        static_cast<int>(decayed < 4 ? decayed : 4),
        decayed < kFoursApart ? 0 : static_cast<int>(decayed < kFoursApart + 4 ? decayed - kFoursApart : 4)};
    float p[8], g[8], m[8], v[8];
    load_group(at.master, left, p);
    load_group(at.grad, left, g);
    load_group(at.m, left, m);
    load_group(at.v, left, v);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float gradient = g[i] * grad_scale;
        // fmaf() says which product of a sum is fused, so that all eight places do the same (see update.cuh).
        m[i] = fmaf(factors.beta1, m[i], factors.one_minus_beta1 * gradient);
        v[i] = fmaf(factors.one_minus_beta2 * gradient, gradient, factors.beta2 * v[i]);
        const float decay = (i & 3) < decayed_fours[i / 4] ? factors.weight_decay * p[i] : 0.0f;
        p[i] = fmaf(-learning_rate, decay + m[i] * correction1 / (sqrtf(v[i] * correction2) + factors.eps), p[i]);
    }
    // Weights are stored first, because rounding the moments needs their registers.
    store_group(at.master, left, p);
    if (at.working) store_group(at.working, left, p);
    const uint32_t amax = kMeasures ? largest_of_group(p, left) : 0;
    if constexpr (std::is_same_v<Moment, bf16>) round_moments(m, v, at.rounding.key, state.applied, at.rounding.first);
    store_group(at.m, left, m);
    store_group(at.v, left, v);
    return amax;
}

// Blocks per multiprocessor. 64 registers are enough for four (sm_80 would take a few more, and fit three). If groups
// follow each other, or moments are rounded, sm_80 and sm_89 would spill.
template <class Moment, bool kMeasures>
constexpr int blocks_at_once = kMeasures || std::is_same_v<Moment, bf16> ? 3 : 4;

template <class Real, class Moment, bool kMeasures>
static __global__ void __launch_bounds__(kUpdateThreads, blocks_at_once<Moment, kMeasures>)
    adamw_kernel(AdamWTensors<Real, Moment> tensors, Fp8State* fp8, size_t count, size_t decay_count,
                 AdamWFactors factors, const StepState* state) {
    if (state->skip) return;
    update_groups<kMeasures>(fp8, count, decay_count, [&](size_t first, size_t left, size_t decayed) {
        return update_group<kMeasures>(tensors.from(first), left, decayed, factors, *state);
    });
}

// The kernel's work as a loop of the host device, with the arithmetic of update_group().
namespace host {

template <class Real, class Moment, bool kMeasures>
static void adamw([[maybe_unused]] const Grid&, AdamWTensors<Real, Moment> t, Fp8State* fp8, size_t count,
                  size_t decay_count, AdamWFactors f, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    const float correction1 = state->bias_correction1, correction2 = state->bias_correction2;
    update_in_tasks<kMeasures>(t.master, t.working, fp8, count, [&](size_t begin, size_t end) {
        uint32_t largest = 0;
        float new_m[kUpdateTask], new_v[kUpdateTask];
        for (size_t i = begin; i < end; i++) {
            const float gradient = t.grad[i] * grad_scale, p = t.master[i];
            const float m = fmaf(f.beta1, to_float(t.m[i]), f.one_minus_beta1 * gradient);
            const float v = fmaf(f.one_minus_beta2 * gradient, gradient, f.beta2 * to_float(t.v[i]));
            const float decay = i < decay_count ? f.weight_decay * p : 0.0f;
            const float q = fmaf(-learning_rate, decay + m * correction1 / (sqrtf(v * correction2) + f.eps), p);
            const uint32_t magnitude = float_bits(q) & kFloatMagnitudeMask;
            largest = magnitude > largest ? magnitude : largest;
            t.master[i] = q;
            new_m[i - begin] = m;
            new_v[i - begin] = v;
        }
        if constexpr (std::is_same_v<Moment, float>) {
            std::copy(new_m, new_m + (end - begin), t.m + begin);
            std::copy(new_v, new_v + (end - begin), t.v + begin);
        } else {
            for (size_t i = begin; i < end; i++) {  // two neighbours share their random bits
                const uint64_t bits = moment_bits(t.rounding.key, state->applied, t.rounding.first + i / 2 * 2);
                const uint32_t random = static_cast<uint32_t>(i % 2 == 0 ? bits : bits >> 32);
                t.m[i] = to_bf16_stochastic(new_m[i - begin], random);
                t.v[i] = to_bf16_stochastic(new_v[i - begin], random >> 16);
            }
        }
        return largest;
    });
#endif
}

}  // namespace host

template <class Real, class Moment>
void adamw_update(float* master, Moment* m, Moment* v, Real* working, Fp8State* fp8, const float* grad, size_t count,
                  size_t decay_count, const AdamWConfig& config, const StepState* state, stream_t stream,
                  const MomentRounding& rounding) {
    if (count == 0) return;
    check_update("adamw_update", count, decay_count, {master, m, v, working, grad});
    if (rounding.first % 4 != 0)
        throw Error(ExitCode::failure, "adamw_update: place {} is no multiple of 4", rounding.first);
    const AdamWFactors factors{static_cast<float>(config.beta1), static_cast<float>(1.0 - config.beta1),
                               static_cast<float>(config.beta2), static_cast<float>(1.0 - config.beta2),
                               static_cast<float>(config.eps),   static_cast<float>(config.weight_decay)};
    const AdamWTensors<Real, Moment> tensors{master, m, v, working, grad, rounding};
    with_measure(fp8, [&]<bool kMeasures>() {
        host::launch_or_loop<adamw_kernel<Real, Moment, kMeasures>, host::adamw<Real, Moment, kMeasures>>(
            KernelVariant::host_optimizer, update_blocks(count, kMeasures, stream),
            {inout(master, count), inout(m, count), inout(v, count), out(working, count), inout(fp8, 1),
             in(grad, count), in(state, 1)},
            tensors, fp8, count, decay_count, factors, state);
    });
}

// ---- Lion ----------------------------------------------------------------------------------------------------------

struct LionRule {
    static constexpr bool kKeepsMoment = true;
    float beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay;

    LLMC_DEVICE void operator()(float& p, float& m, float grad, bool decays, float learning_rate,
                                float grad_scale) const {
        const float g = grad * grad_scale;
        const float c = fmaf(beta1, m, one_minus_beta1 * g);
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f;
        p = fmaf(-learning_rate, fmaf(decays ? weight_decay : 0.0f, p, sign), p);
        m = fmaf(beta2, m, one_minus_beta2 * g);
    }
};

template <class Real>
void lion_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                 size_t decay_count, const LionConfig& config, const StepState* state, stream_t stream) {
    const LionRule rule{static_cast<float>(config.beta1), static_cast<float>(1.0 - config.beta1),
                        static_cast<float>(config.beta2), static_cast<float>(1.0 - config.beta2),
                        static_cast<float>(config.weight_decay)};
    run_update("lion_update", master, m, working, fp8, grad, count, decay_count, rule, state, stream);
}

// ---- SGD -----------------------------------------------------------------------------------------------------------

template <bool kMomentum>
struct SgdRule {
    static constexpr bool kKeepsMoment = kMomentum;
    float momentum, weight_decay;
    bool nesterov;

    LLMC_DEVICE void operator()(float& p, float& m, float grad, bool decays, float learning_rate,
                                float grad_scale) const {
        const float g = grad * grad_scale;
        m = fmaf(momentum, m, g);
        const float direction = nesterov ? fmaf(momentum, m, g) : m;
        p = fmaf(-learning_rate, fmaf(decays ? weight_decay : 0.0f, p, direction), p);
    }
};

template <class Real>
void sgd_update(float* master, float* m, Real* working, Fp8State* fp8, const float* grad, size_t count,
                size_t decay_count, const SgdConfig& config, const StepState* state, stream_t stream) {
    const float momentum = static_cast<float>(config.momentum), decay = static_cast<float>(config.weight_decay);
    if (config.momentum == 0)
        run_update("sgd_update", master, nullptr, working, fp8, grad, count, decay_count,
                   SgdRule<false>{0.0f, decay, false}, state, stream);
    else
        run_update("sgd_update", master, m, working, fp8, grad, count, decay_count,
                   SgdRule<true>{momentum, decay, config.nesterov}, state, stream);
}

#define LLMC_INSTANTIATE_ADAMW(Real, Moment)                                                             \
    template void adamw_update(float*, Moment*, Moment*, Real*, Fp8State*, const float*, size_t, size_t, \
                               const AdamWConfig&, const StepState*, stream_t, const MomentRounding&);
#define LLMC_INSTANTIATE(Real)                                                                                   \
    LLMC_INSTANTIATE_ADAMW(Real, float)                                                                          \
    LLMC_INSTANTIATE_ADAMW(Real, bf16)                                                                           \
    template void lion_update(float*, float*, Real*, Fp8State*, const float*, size_t, size_t, const LionConfig&, \
                              const StepState*, stream_t);                                                       \
    template void sgd_update(float*, float*, Real*, Fp8State*, const float*, size_t, size_t, const SgdConfig&,   \
                             const StepState*, stream_t);
LLMC_INSTANTIATE(float)
LLMC_INSTANTIATE(bf16)
#undef LLMC_INSTANTIATE
#undef LLMC_INSTANTIATE_ADAMW

}  // namespace llmc
