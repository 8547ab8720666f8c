// Kernel and launcher of adamw.h.
#include "llmc/kernels/adamw.h"

#include "llmc/device/kernel.cuh"

namespace llmc {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

// AdamWConfig in the arithmetic's own format. The complements are rounded from double: 1 - 0.95f would be off by 2e-7.
struct AdamWFactors {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
};

// Eight elements, or the `valid` ones of the last group and zeros: both go through the same arithmetic.
LLMC_DEVICE void load_group(const float* p, int valid, float (&values)[8]) {
    if (valid == 8) {
        load8(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++) values[i] = i < valid ? p[i] : 0.0f;
    }
}
template <class T>
LLMC_DEVICE void store_group(T* p, int valid, const float (&values)[8]) {
    if (valid == 8) {
        store8(p, values);
    } else {
        LLMC_UNROLL
        for (int i = 0; i < 8; i++)
            if (i < valid) p[i] = to<T>(values[i]);
    }
}

template <class Real>
static __global__ void __launch_bounds__(kThreads)
    adamw_kernel(float* master, float* m_pointer, float* v_pointer, Real* working, const float* grad, size_t count,
                 size_t decay_count, AdamWFactors factors, const StepState* state) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
    if (state->skip || first >= count) return;
    const int valid = count - first < kPerThread ? static_cast<int>(count - first) : kPerThread;
    const int decayed = decay_count <= first               ? 0
                        : decay_count - first < kPerThread ? static_cast<int>(decay_count - first)
                                                           : kPerThread;
    const float learning_rate = static_cast<float>(state->learning_rate), grad_scale = state->grad_scale;
    const float correction1 = state->bias_correction1, correction2 = state->bias_correction2;

    float p[8], g[8], m[8], v[8];
    load_group(master + first, valid, p);
    load_group(grad + first, valid, g);
    load_group(m_pointer + first, valid, m);
    load_group(v_pointer + first, valid, v);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float gradient = g[i] * grad_scale;
        m[i] = factors.beta1 * m[i] + factors.one_minus_beta1 * gradient;
        v[i] = factors.beta2 * v[i] + factors.one_minus_beta2 * gradient * gradient;
        const float decay = i < decayed ? factors.weight_decay * p[i] : 0.0f;
        p[i] -= learning_rate * (decay + m[i] * correction1 / (sqrtf(v[i] * correction2) + factors.eps));
    }
    store_group(master + first, valid, p);
    store_group(m_pointer + first, valid, m);
    store_group(v_pointer + first, valid, v);
    if (working) store_group(working + first, valid, p);
}

template <class Real>
void adamw_update(float* master, float* m, float* v, Real* working, const float* grad, size_t count, size_t decay_count,
                  const AdamWConfig& config, const StepState* state, stream_t stream) {
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
    const size_t blocks = div_up<size_t>(count, kThreads * kPerThread);
    launch<adamw_kernel<Real>>(
        {dim3{static_cast<unsigned>(blocks)}, kThreads, 0, stream},
        {inout(master, count), inout(m, count), inout(v, count), out(working, count), in(grad, count), in(state, 1)},
        master, m, v, working, grad, count, decay_count, factors, state);
}

template void adamw_update<float>(float*, float*, float*, float*, const float*, size_t, size_t, const AdamWConfig&,
                                  const StepState*, stream_t);
template void adamw_update<bf16>(float*, float*, float*, bf16*, const float*, size_t, size_t, const AdamWConfig&,
                                 const StepState*, stream_t);

}  // namespace llmc
