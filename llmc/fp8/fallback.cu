// Kernels of --fp8-fallback: counting losses per step and judging them. See fallback.h.
#include "llmc/fp8/fallback.h"

#include "llmc/device/kernel.cuh"

namespace llmc {
namespace {

constexpr int kThreads = 128;

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

// The counters are about to be reset to 0. Subtracting them here keeps the differences right, modulo 2^64.
static __global__ void fp8_keep_watched_counts_kernel(Fp8Watch* watches, const Fp8State* states, int count) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) return;
    watches[i].elements -= states[i].elements;
    watches[i].saturated -= states[i].saturated;
    watches[i].underflowed -= states[i].underflowed;
}

LaunchConfig one_thread_each(int count, stream_t stream, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return {dim3(static_cast<unsigned>(div_up(count, kThreads))), dim3(kThreads), 0, stream, file, line};
}

}  // namespace

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

void fp8_keep_watched_counts(Fp8Watch* watches, const Fp8State* states, int count, stream_t stream) {
    const size_t n = count;
    launch<fp8_keep_watched_counts_kernel>(one_thread_each(count, stream), inout(watches, n), in(states, n), count);
}

}  // namespace llmc
