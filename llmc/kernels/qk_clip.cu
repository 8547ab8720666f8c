// The kernel of QK-clip; see qk_clip.h.
#include "llmc/kernels/qk_clip.h"

#include "llmc/kernels/update.cuh"

namespace llmc {

// The factor of each element of qkv's weight or bias.
struct QkClipFactors {
    const float* maxima;  // (NH)
    uint32_t first, head_elements;
    int NH, NKV;
    float limit;

    LLMC_HD float operator()(size_t element) const {
        const int head = static_cast<int>((first + static_cast<uint32_t>(element)) / head_elements);
        if (head >= (NKV < NH ? NH : NH + NKV)) return 1.0f;
        const float largest = maxima[head < NH ? head : head - NH];
        if (!(largest > limit)) return 1.0f;
        return NKV < NH ? limit / largest : sqrtf(limit / largest);
    }
};

template <class State, class Real, bool kMeasures>
static __global__ void __launch_bounds__(kUpdateThreads)
    qk_clip_kernel(ArrayOf<State> master, Real* working, Fp8State* fp8, QkClipFactors factors, size_t count,
                   StateRounding rounding, const StepState* state) {
    if (state->skip) return;
    update_groups<kMeasures, false>(fp8, count, 0, [&](size_t first, size_t left, size_t) {
        const float factor[2] = {factors(first), factors(first + kFoursApart)};  // fours never cross heads
        const bool changes = factor[0] != 1.0f || factor[1] != 1.0f;
        if (!kMeasures && !changes) return 0u;
        float p[8];
        load_at(master, first, left, p);
        if (changes) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) p[i] *= factor[i / 4];
            round_masters(master, p, rounding, state->applied, first);
            store_at(master, first, left, p);
            if (working) store_group(working + first, left, p);
        }
        return kMeasures ? largest_of_group(p, left) : 0u;
    });
}

namespace host {

template <class State, class Real, bool kMeasures>
static void qk_clip([[maybe_unused]] const Grid&, ArrayOf<State> master, Real* working, Fp8State* fp8,
                    QkClipFactors factors, size_t count, StateRounding rounding, const StepState* state) {
#if !LLMC_ON_GPU
    if (state->skip) return;
    update_in_tasks<kMeasures>(master, working, fp8, count, rounding, *state,
                               [&](size_t begin, size_t end, float* weights) {
                                   for (size_t i = begin; i < end; i++) weights[i - begin] *= factors(i);
                               });
#endif
}

}  // namespace host

template <class Real>
void qk_clip(const StateArray& master, Real* working, Fp8State* fp8, const float* maxima, const AttentionHeads& heads,
             size_t columns, size_t first, size_t count, float limit, const StepState* state, stream_t stream,
             const StateRounding& rounding) {
    if (count == 0) return;
    check_heads("qk_clip", heads);
    check_update("qk_clip", count, 0, {master.values, working}, rounding);
    const size_t head_elements = static_cast<size_t>(heads.HD) * columns;
    if (first % 4 != 0 || (first + count) >> 32 != 0)
        throw Error(ExitCode::failure, "qk_clip: elements {} to {} do not begin at a multiple of 4 below 2^32", first,
                    first + count);
    const QkClipFactors factors{
        maxima, static_cast<uint32_t>(first), static_cast<uint32_t>(head_elements), heads.NH, heads.NKV, limit};
    with_state({&master}, [&]<class State>() {
        with_measure(fp8, [&]<bool kMeasures>() {
            host::launch_or_loop<qk_clip_kernel<State, Real, kMeasures>, host::qk_clip<State, Real, kMeasures>>(
                KernelVariant::host_optimizer, update_blocks(count, kMeasures, stream),
                {changed(master, count), inout(working, count), inout(fp8, 1), in(maxima, heads.NH), in(state, 1)},
                array_of<State>(master), working, fp8, factors, count, rounding, state);
        });
    });
}
template void qk_clip(const StateArray&, float*, Fp8State*, const float*, const AttentionHeads&, size_t, size_t, size_t,
                      float, const StepState*, stream_t, const StateRounding&);
template void qk_clip(const StateArray&, bf16*, Fp8State*, const float*, const AttentionHeads&, size_t, size_t, size_t,
                      float, const StepState*, stream_t, const StateRounding&);

}  // namespace llmc
