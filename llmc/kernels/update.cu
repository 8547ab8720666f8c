// The rules of the optimizers that update each weight by itself: AdamW, Lion and SGD (update.h). update.cuh has their
// kernel.
#include "llmc/kernels/update.h"

#include <algorithm>

#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/update.cuh"

namespace llmc {

// The numbers of a step that all updates need.
struct UpdateStep {
    float learning_rate, grad_scale;
    LLMC_HD explicit UpdateStep(const StepState& state)
        : learning_rate(static_cast<float>(state.learning_rate)), grad_scale(state.grad_scale) {}
};

// ---- AdamW ---------------------------------------------------------------------------------------------------------

// AdamWConfig in FP32. The complements are rounded from double, because 1 - 0.95f would be off by 2e-7.
struct AdamWFactors {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
    bool cautious_decay, nesterov;
};

// kPlain: without Nesterov momentum and cautious decay.
template <bool kPlain>
struct AdamWRule : AdamWFactors {
    static constexpr int kMoments = 2;

    struct Step : UpdateStep {
        float of_m, of_gradient, correction2;  // the first two are factors in a direction's numerator
    };
    LLMC_HD Step step(const StepState& state) const {
        Step step{UpdateStep(state), state.bias_correction1, 0.0f, state.bias_correction2};
        if (kPlain || !nesterov) return step;
        // The next update's bias correction: 1 - beta1^(t + 1) = (1 - beta1) + beta1 * (1 - beta1^t).
        const float next = one_minus_beta1 + beta1 / state.bias_correction1;
        step.of_m = beta1 / next;
        step.of_gradient = one_minus_beta1 * state.bias_correction1;
        return step;
    }
    LLMC_HD void operator()(float& p, float& m, float& v, float grad, bool decays, const Step& step) const {
        const float gradient = grad * step.grad_scale;
        m = fmaf(beta1, m, one_minus_beta1 * gradient);
        v = fmaf(one_minus_beta2 * gradient, gradient, beta2 * v);
        const float numerator = kPlain ? m * step.of_m : fmaf(step.of_m, m, step.of_gradient * gradient);
        const float direction = numerator / (sqrtf(v * step.correction2) + eps);
        float decay = decays ? weight_decay * p : 0.0f;
        // Compares signs, because the product of two small numbers would be 0.
        const bool against = (direction > 0 && p < 0) || (direction < 0 && p > 0);
        if (!kPlain && cautious_decay && against) decay = 0.0f;
        p = fmaf(-step.learning_rate, decay + direction, p);
    }
};

template <class Real>
void adamw_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                  const AdamWConfig& config, const StepState* state, stream_t stream) {
    const size_t place = tensors.rounding.first;
    if (tensors.m.format == StateFormat::fp8 && place % kStateGroup != 0)
        throw Error(ExitCode::failure, "adamw_update: place {} is inside a group of {}", place, kStateGroup);
    const AdamWFactors factors{static_cast<float>(config.beta1),
                               static_cast<float>(1.0 - config.beta1),
                               static_cast<float>(config.beta2),
                               static_cast<float>(1.0 - config.beta2),
                               static_cast<float>(config.eps),
                               static_cast<float>(config.weight_decay),
                               config.cautious_decay,
                               config.nesterov};
    const auto run = [&](const auto& rule) {
        run_update("adamw_update", tensors, fp8, count, decay_count, rule, state, stream);
    };
    config.cautious_decay || config.nesterov ? run(AdamWRule<false>{factors}) : run(AdamWRule<true>{factors});
}

// ---- Lion ----------------------------------------------------------------------------------------------------------

struct LionRule {
    static constexpr int kMoments = 1;
    float beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay;

    LLMC_HD UpdateStep step(const StepState& state) const { return UpdateStep(state); }
    LLMC_HD void operator()(float& p, float& m, float&, float grad, bool decays, const UpdateStep& step) const {
        const float g = grad * step.grad_scale;
        const float c = fmaf(beta1, m, one_minus_beta1 * g);
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f;
        p = fmaf(-step.learning_rate, fmaf(decays ? weight_decay : 0.0f, p, sign), p);
        m = fmaf(beta2, m, one_minus_beta2 * g);
    }
};

template <class Real>
void lion_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                 const LionConfig& config, const StepState* state, stream_t stream) {
    const LionRule rule{static_cast<float>(config.beta1), static_cast<float>(1.0 - config.beta1),
                        static_cast<float>(config.beta2), static_cast<float>(1.0 - config.beta2),
                        static_cast<float>(config.weight_decay)};
    run_update("lion_update", tensors, fp8, count, decay_count, rule, state, stream);
}

// ---- SGD -----------------------------------------------------------------------------------------------------------

template <bool kMomentum>
struct SgdRule {
    static constexpr int kMoments = kMomentum ? 1 : 0;
    float momentum, weight_decay;
    bool nesterov;

    LLMC_HD UpdateStep step(const StepState& state) const { return UpdateStep(state); }
    LLMC_HD void operator()(float& p, float& m, float&, float grad, bool decays, const UpdateStep& step) const {
        const float g = grad * step.grad_scale;
        m = fmaf(momentum, m, g);
        const float direction = nesterov ? fmaf(momentum, m, g) : m;
        p = fmaf(-step.learning_rate, fmaf(decays ? weight_decay : 0.0f, p, direction), p);
    }
};

template <class Real>
void sgd_update(const UpdateTensors<Real>& tensors, Fp8State* fp8, size_t count, size_t decay_count,
                const SgdConfig& config, const StepState* state, stream_t stream) {
    const float momentum = static_cast<float>(config.momentum), decay = static_cast<float>(config.weight_decay);
    const auto run = [&](const auto& rule) {
        run_update("sgd_update", tensors, fp8, count, decay_count, rule, state, stream);
    };
    if (config.momentum == 0)
        run(SgdRule<false>{0.0f, decay, false});
    else
        run(SgdRule<true>{momentum, decay, config.nesterov});
}

LLMC_INSTANTIATE_BOTH(adamw_update, float, bf16);
LLMC_INSTANTIATE_BOTH(lion_update, float, bf16);
LLMC_INSTANTIATE_BOTH(sgd_update, float, bf16);

}  // namespace llmc
