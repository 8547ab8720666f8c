// Kernels and launcher of sgd.h.
#include "llmc/kernels/sgd.h"

#include "llmc/kernels/update.cuh"

namespace llmc {

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

template void sgd_update<float>(float*, float*, float*, Fp8State*, const float*, size_t, size_t, const SgdConfig&,
                                const StepState*, stream_t);
template void sgd_update<bf16>(float*, float*, bf16*, Fp8State*, const float*, size_t, size_t, const SgdConfig&,
                               const StepState*, stream_t);

}  // namespace llmc
