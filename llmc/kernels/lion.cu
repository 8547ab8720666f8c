// Kernel and launcher of lion.h.
#include "llmc/kernels/lion.h"

#include "llmc/kernels/update.cuh"

namespace llmc {

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

template void lion_update<float>(float*, float*, float*, Fp8State*, const float*, size_t, size_t, const LionConfig&,
                                 const StepState*, stream_t);
template void lion_update<bf16>(float*, float*, bf16*, Fp8State*, const float*, size_t, size_t, const LionConfig&,
                                const StepState*, stream_t);

}  // namespace llmc
