// Kernels of the optimizers that update each weight by itself: AdamW, Lion and SGD (update.h). Lion and SGD are rules
// for the kernel of update.cuh. AdamW keeps two moments, so it has its own kernel, which uses the same walk.
#include "llmc/kernels/update.h"

#include <algorithm>

#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/update.cuh"

namespace llmc {

// ---- AdamW ---------------------------------------------------------------------------------------------------------

// AdamWConfig in FP32. The complements are rounded from double, because 1 - 0.95f would be off by 2e-7.
struct AdamWFactors {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
    bool cautious_decay, nesterov;
};

// The factors of m and of the gradient in a direction's numerator.
struct NumeratorFactors {
    float m, gradient;
};
template <bool kPlain>
LLMC_HD NumeratorFactors numerator_factors(const AdamWFactors& factors, float correction1) {
    if (kPlain || !factors.nesterov) return {correction1, 0.0f};
    // The next update's bias correction: 1 - beta1^(t + 1) = (1 - beta1) + beta1 * (1 - beta1^t).
    const float next = factors.one_minus_beta1 + factors.beta1 / correction1;
    return {factors.beta1 / next, factors.one_minus_beta1 * correction1};
}

// Returns the change of a weight p per unit of learning rate. kPlain: without Nesterov momentum and cautious decay.
template <bool kPlain>
LLMC_HD float adamw_change(const AdamWFactors& factors, const NumeratorFactors& top, float correction2, float p,
                           float m, float v, float gradient, bool decays) {
    const float decay = decays ? factors.weight_decay * p : 0.0f;
    const float numerator = kPlain ? m * top.m : fmaf(top.m, m, top.gradient * gradient);
    const float direction = numerator / (sqrtf(v * correction2) + factors.eps);
    if constexpr (kPlain) return decay + direction;
    // Compares signs, because the product of two small numbers would be 0.
    const bool against = (direction > 0 && p < 0) || (direction < 0 && p > 0);
    return (factors.cautious_decay && against ? 0.0f : decay) + direction;
}

// Stores a group's moments, rounded to their formats.
LLMC_DEVICE void store_moments(const StateArray& m_array, const StateArray& v_array, size_t first, size_t left,
                               float (&m)[8], float (&v)[8], const StateRounding& rounding, int64_t applied) {
    const bool m_is_bf16 = m_array.format == StateFormat::bf16;
    LLMC_UNROLL
    for (int i = 0; i < 8 && v_array.format == StateFormat::bf16; i += 2) {
        const size_t place = rounding.first + first + static_cast<size_t>(place_in_fours(i));
        const uint64_t bits = moment_bits(rounding.key, applied, place);
        const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
        if (m_is_bf16) m[i] = to_float(to_bf16_stochastic(m[i], low));
        v[i] = to_float(to_bf16_stochastic(v[i], low >> 16));
        if (m_is_bf16) m[i + 1] = to_float(to_bf16_stochastic(m[i + 1], high));
        v[i + 1] = to_float(to_bf16_stochastic(v[i + 1], high >> 16));
    }
    store_at(v_array, first, left, v);
    if (m_array.format == StateFormat::fp8)
        store_fp8(m_array, first, left, m, rounding, applied);
    else
        store_at(m_array, first, left, m);
}

template <class Real>
struct AdamWTensors {
    StateArray master, m, v;
    Real* working;  // may be nullptr
    StateArray grad;
    StateRounding rounding;
};

// Updates one group of eight, from the loads to the stores. Returns the bits of the largest magnitude of the new
// weights, or infinity's if a weight is not finite.
template <bool kPlain, bool kMeasures, class Real>
LLMC_DEVICE uint32_t update_group(const AdamWTensors<Real>& tensors, size_t first, size_t left, size_t decayed,
                                  const AdamWFactors& factors, const StepState& state) {
    const float learning_rate = static_cast<float>(state.learning_rate), grad_scale = state.grad_scale;
    const NumeratorFactors top = numerator_factors<kPlain>(factors, state.bias_correction1);
    const float correction2 = state.bias_correction2;
    // decayed_fours[h]: how many elements of the h-th group of four get weight decay.
    const int decayed_fours[2] = {
        static_cast<int>(decayed < 4 ? decayed : 4),
        decayed < kFoursApart ? 0 : static_cast<int>(decayed < kFoursApart + 4 ? decayed - kFoursApart : 4)};
    float p[8], g[8], m[8], v[8];
    load_at(tensors.master, first, left, p);
    load_at(tensors.grad, first, left, g);
    load_at(tensors.m, first, left, m);
    load_at(tensors.v, first, left, v);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float gradient = g[i] * grad_scale;
        // fmaf() says which product of a sum is fused, so that all eight places do the same (see update.cuh).
        m[i] = fmaf(factors.beta1, m[i], factors.one_minus_beta1 * gradient);
        v[i] = fmaf(factors.one_minus_beta2 * gradient, gradient, factors.beta2 * v[i]);
        const bool decays = (i & 3) < decayed_fours[i / 4];
        const float change = adamw_change<kPlain>(factors, top, correction2, p[i], m[i], v[i], gradient, decays);
        p[i] = fmaf(-learning_rate, change, p[i]);
    }
    // Weights are stored first, because rounding the moments needs their registers.
    round_masters(tensors.master, p, tensors.rounding, state.applied, first);
    store_at(tensors.master, first, left, p);
    if (tensors.working) store_group(tensors.working + first, left, p);
    const uint32_t amax = kMeasures ? largest_of_group(p, left) : 0;
    store_moments(tensors.m, tensors.v, first, left, m, v, tensors.rounding, state.applied);
    return amax;
}

template <class Real, bool kMeasures, bool kPlain>
static __global__ void __launch_bounds__(kBlockThreads, 3)
    adamw_kernel(AdamWTensors<Real> tensors, Fp8State* fp8, size_t count, size_t decay_count, AdamWFactors factors,
                 const StepState* state) {
    if (state->skip) return;
    update_groups<kMeasures>(fp8, count, decay_count, [&](size_t first, size_t left, size_t decayed) {
        return update_group<kPlain, kMeasures>(tensors, first, left, decayed, factors, *state);
    });
}

// The kernel's work as a loop of the host device, with the arithmetic of update_group().
namespace host {

template <class Real, bool kMeasures, bool kPlain>
static void adamw([[maybe_unused]] const Grid&, AdamWTensors<Real> t, Fp8State* fp8, size_t count, size_t decay_count,
                  AdamWFactors f, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    const NumeratorFactors top = numerator_factors<kPlain>(f, state->bias_correction1);
    const float correction2 = state->bias_correction2;
    const auto update = [&](size_t begin, size_t end, float* weights) {
        const size_t n = end - begin, decayed = decay_count < begin ? 0 : decay_count - begin;
        float m_copy[kUpdateTask], v_copy[kUpdateTask];
        float* const first = floats_of(t.m, begin, n, m_copy);
        float* const second = floats_of(t.v, begin, n, v_copy);
        float grad_copy[kUpdateTask];
        const float* const grad = floats_of(t.grad, begin, n, grad_copy);
#pragma GCC ivdep
        for (size_t i = 0; i < n; i++) {
            const float gradient = grad[i] * grad_scale, p = weights[i];
            const float m = fmaf(f.beta1, first[i], f.one_minus_beta1 * gradient);
            const float v = fmaf(f.one_minus_beta2 * gradient, gradient, f.beta2 * second[i]);
            const float change = adamw_change<kPlain>(f, top, correction2, p, m, v, gradient, i < decayed);
            weights[i] = fmaf(-learning_rate, change, p);
            first[i] = m;
            second[i] = v;
        }
        const auto bits = [&](size_t i) {
            return half_of(moment_bits(t.rounding.key, state->applied, t.rounding.first + i / 2 * 2), i);
        };
        const auto m_bits = [&](size_t i) {
            const auto of = t.m.format == StateFormat::fp8 ? fp8_bits : moment_bits;
            return half_of(of(t.rounding.key, state->applied, t.rounding.first + i / 2 * 2), i);
        };
        put_back(t.m, begin, n, first, m_bits);
        put_back(t.v, begin, n, second, [&](size_t i) { return bits(i) >> 16; });
    };
    update_in_tasks<kMeasures>(t.master, t.working, fp8, count, t.rounding, *state, update);
#endif
}

}  // namespace host

template <class Real>
void adamw_update(const StateArray& master, const StateArray& m, const StateArray& v, Real* working, Fp8State* fp8,
                  const StateArray& grad, size_t count, size_t decay_count, const AdamWConfig& config,
                  const StepState* state, stream_t stream, const StateRounding& rounding) {
    if (count == 0) return;
    if (m.format == StateFormat::fp8 && rounding.first % kStateGroup != 0)
        throw Error(ExitCode::failure, "adamw_update: place {} is inside a group of {}", rounding.first, kStateGroup);
    check_update("adamw_update", count, decay_count, {master.values, m.values, v.values, working, grad.values},
                 rounding);
    const AdamWFactors factors{static_cast<float>(config.beta1),
                               static_cast<float>(1.0 - config.beta1),
                               static_cast<float>(config.beta2),
                               static_cast<float>(1.0 - config.beta2),
                               static_cast<float>(config.eps),
                               static_cast<float>(config.weight_decay),
                               config.cautious_decay,
                               config.nesterov};
    const AdamWTensors<Real> tensors{master, m, v, working, grad, rounding};
    const auto launch_with = [&]<bool kMeasures, bool kPlain>() {
        host::launch_or_loop<adamw_kernel<Real, kMeasures, kPlain>, host::adamw<Real, kMeasures, kPlain>>(
            update_blocks(count, kMeasures, stream),
            {changed(master, count), changed(m, count), inout(m.scales, div_up(count, kStateGroup)), changed(v, count),
             out(working, count), inout(fp8, 1), read(grad, count), in(state, 1)},
            tensors, fp8, count, decay_count, factors, state);
    };
    with_measure(fp8, [&]<bool kMeasures>() {
        config.cautious_decay || config.nesterov ? launch_with.template operator()<kMeasures, false>()
                                                 : launch_with.template operator()<kMeasures, true>();
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
void lion_update(const StateArray& master, float* m, Real* working, Fp8State* fp8, const StateArray& grad, size_t count,
                 size_t decay_count, const LionConfig& config, const StepState* state, stream_t stream,
                 const StateRounding& rounding) {
    const LionRule rule{static_cast<float>(config.beta1), static_cast<float>(1.0 - config.beta1),
                        static_cast<float>(config.beta2), static_cast<float>(1.0 - config.beta2),
                        static_cast<float>(config.weight_decay)};
    run_update("lion_update", master, m, working, fp8, grad, count, decay_count, rule, rounding, state, stream);
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
void sgd_update(const StateArray& master, float* m, Real* working, Fp8State* fp8, const StateArray& grad, size_t count,
                size_t decay_count, const SgdConfig& config, const StepState* state, stream_t stream,
                const StateRounding& rounding) {
    const float momentum = static_cast<float>(config.momentum), decay = static_cast<float>(config.weight_decay);
    if (config.momentum == 0)
        run_update("sgd_update", master, nullptr, working, fp8, grad, count, decay_count,
                   SgdRule<false>{0.0f, decay, false}, rounding, state, stream);
    else
        run_update("sgd_update", master, m, working, fp8, grad, count, decay_count,
                   SgdRule<true>{momentum, decay, config.nesterov}, rounding, state, stream);
}

LLMC_INSTANTIATE_BOTH(adamw_update, float, bf16);
LLMC_INSTANTIATE_BOTH(lion_update, float, bf16);
LLMC_INSTANTIATE_BOTH(sgd_update, float, bf16);

}  // namespace llmc
