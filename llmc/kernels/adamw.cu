// Kernel and launcher of adamw.h.
#include "llmc/kernels/adamw.h"

#include "llmc/kernels/update.cuh"

namespace llmc {

constexpr int kThreads = kUpdateThreads, kPerThread = kUpdatePerThread, kMeasuredGroups = kUpdateMeasuredGroups;

// AdamWConfig in the arithmetic's own format. The complements are rounded from double: 1 - 0.95f would be off by 2e-7.
struct AdamWFactors {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
};

// One group of eight, from the loads to the stores; returns the bits of the largest magnitude of the new weights,
// infinity's if one of them is not finite.
template <class Real, bool kMeasures>
LLMC_DEVICE uint32_t update_group(float* master, float* m_pointer, float* v_pointer, Real* working, const float* grad,
                                  size_t left, size_t decayed, const AdamWFactors& factors, const StepState& state) {
    const float learning_rate = static_cast<float>(state.learning_rate), grad_scale = state.grad_scale;
    const float correction1 = state.bias_correction1, correction2 = state.bias_correction2;
    // Of either four, the first so many decay.
    const int decayed_fours[2] = {
        static_cast<int>(decayed < 4 ? decayed : 4),
        decayed < kFoursApart ? 0 : static_cast<int>(decayed < kFoursApart + 4 ? decayed - kFoursApart : 4)};
    float p[8], g[8], m[8], v[8];
    load_group(master, left, p);
    load_group(grad, left, g);
    load_group(m_pointer, left, m);
    load_group(v_pointer, left, v);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float gradient = g[i] * grad_scale;
        // Which product of a sum is fused is said here, so that all eight places do the same: see update.cuh.
        m[i] = fmaf(factors.beta1, m[i], factors.one_minus_beta1 * gradient);
        v[i] = fmaf(factors.one_minus_beta2 * gradient, gradient, factors.beta2 * v[i]);
        const float decay = (i & 3) < decayed_fours[i / 4] ? factors.weight_decay * p[i] : 0.0f;
        p[i] = fmaf(-learning_rate, decay + m[i] * correction1 / (sqrtf(v[i] * correction2) + factors.eps), p[i]);
    }
    store_group(master, left, p);
    store_group(m_pointer, left, m);
    store_group(v_pointer, left, v);
    if (working) store_group(working, left, p);
    return kMeasures ? largest_of_group(p, left) : 0;
}

// A block has kGroups * 2048 elements in a row. What is measured is reduced over the warp, hence several groups a
// thread there: one atomic for 1024 elements.
template <class Real, bool kMeasures>
static __global__ void __launch_bounds__(kThreads, 4)  // 64 registers: sm_80 would take a few more, and fit three
    adamw_kernel(float* master, float* m, float* v, Real* working, Fp8State* fp8, const float* grad, size_t count,
                 size_t decay_count, AdamWFactors factors, const StepState* state) {
    constexpr int kGroups = kMeasures ? kMeasuredGroups : 1;
    if (state->skip) return;
    uint32_t amax = 0;
    for (int group = 0; group < kGroups; group++) {
        const size_t first =
            (static_cast<size_t>(blockIdx.x) * kGroups + group) * kThreads * kPerThread + first_of_fours(threadIdx.x);
        if (first >= count) break;
        const size_t left = count - first, decayed = decay_count <= first ? 0 : decay_count - first;
        const uint32_t seen =
            update_group<Real, kMeasures>(master + first, m + first, v + first, working ? working + first : nullptr,
                                          grad + first, left, decayed, factors, *state);
        amax = seen > amax ? seen : amax;
    }
    if constexpr (kMeasures) {
        const float largest = warp_max(float_from_bits(amax));
        if (threadIdx.x % 32 == 0)
            atomicMax(reinterpret_cast<int*>(&fp8->amax_now), static_cast<int>(float_bits(largest)));
    }
}

template <class Real>
void adamw_update(float* master, float* m, float* v, Real* working, Fp8State* fp8, const float* grad, size_t count,
                  size_t decay_count, const AdamWConfig& config, const StepState* state, stream_t stream) {
    if (count == 0) return;
    if (decay_count > count)
        throw Error(ExitCode::failure, strprintf("adamw_update: %zu of %zu parameters to decay", decay_count, count));
    for (const void* p : {static_cast<const void*>(master), static_cast<const void*>(m), static_cast<const void*>(v),
                          static_cast<const void*>(working), static_cast<const void*>(grad)})
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            throw Error(ExitCode::failure,
                        strprintf("adamw_update: pointer %p is not 16-byte aligned; pad slices to 16 bytes", p));
    const AdamWFactors factors{static_cast<float>(config.beta1), static_cast<float>(1.0 - config.beta1),
                               static_cast<float>(config.beta2), static_cast<float>(1.0 - config.beta2),
                               static_cast<float>(config.eps),   static_cast<float>(config.weight_decay)};
    const auto run = [&]<auto kernel>(int groups) {
        const size_t blocks = div_up<size_t>(count, static_cast<size_t>(groups) * kThreads * kPerThread);
        launch<kernel>({dim3{static_cast<unsigned>(blocks)}, kThreads, 0, stream}, inout(master, count),
                       inout(m, count), inout(v, count), out(working, count), inout(fp8, 1), in(grad, count), count,
                       decay_count, factors, in(state, 1));
    };
    if (fp8)
        run.template operator()<adamw_kernel<Real, true>>(kMeasuredGroups);
    else
        run.template operator()<adamw_kernel<Real, false>>(1);
}

template void adamw_update<float>(float*, float*, float*, float*, Fp8State*, const float*, size_t, size_t,
                                  const AdamWConfig&, const StepState*, stream_t);
template void adamw_update<bf16>(float*, float*, float*, bf16*, Fp8State*, const float*, size_t, size_t,
                                 const AdamWConfig&, const StepState*, stream_t);

}  // namespace llmc
