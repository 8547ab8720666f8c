// Norm and clipping of gradients, and QK-clip (clip.h).
#include "llmc/kernels/clip.h"

#include <algorithm>

#include "llmc/device/warp.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/update.cuh"

namespace llmc {

// ---- norm ----------------------------------------------------------------------------------------------------------

// A block takes at least this many elements, so that its reduction costs little next to reading them.
constexpr size_t kElementsPerBlock = 32768;
// A large tensor gets enough blocks to fill any GPU, but no more partial sums than one block can add quickly.
constexpr size_t kNormBlocks = 1024;

size_t global_norm_blocks(size_t n) { return std::min(div_up(n, kElementsPerBlock), kNormBlocks); }

template <class T>
static __global__ void __launch_bounds__(kBlockThreads) global_norm_kernel(double* partials, const T* grad, size_t n) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    const size_t stride = static_cast<size_t>(gridDim.x) * kBlockThreads * 8;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp_first = static_cast<int>(threadIdx.x) - lane;
    double sum = 0;
    for (size_t first = (static_cast<size_t>(blockIdx.x) * kBlockThreads + warp_first) * 8; first < n;
         first += stride) {
        const size_t i = first + lane * 4;
        float g[8];
        if (i + kFoursApart + 4 <= n) {
            load_fours(grad + i, g);
        } else {
            LLMC_UNROLL
            for (int k = 0; k < 8; k++) g[k] = i + place_in_fours(k) < n ? to_float(grad[i + place_in_fours(k)]) : 0;
        }
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) g[k] *= g[k];
        // Two neighbouring lanes hold halves of two eights: the even lane adds up the first eight, the odd lane the
        // second.
        const float fours[2] = {(g[0] + g[1]) + (g[2] + g[3]), (g[4] + g[5]) + (g[6] + g[7])};
        const bool odd = lane % 2 != 0;
        sum += (odd ? fours[1] : fours[0]) + __shfl_xor_sync(0xffffffffu, odd ? fours[0] : fours[1], 1);
    }
    const unsigned eight = static_cast<unsigned>(warp_first + lane / 2 + lane % 2 * 16);  // in the order of the eights
    sum = block_sum(sums, eight, sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

void global_norm_partials(double* partials, const StateArray& grad, size_t n, stream_t stream) {
    if (n == 0) return;
    check_aligned("global_norm_partials", {grad.values});
    const size_t blocks = global_norm_blocks(n);
    grad.typed([&]<class T>(const T* values) {
        host::launch_or_loop<global_norm_kernel<T>, host::global_norm<T>>({dim3(blocks), kBlockThreads, 0, stream},
                                                                          out(partials, blocks), in(values, n), n);
    });
}

// ---- clipping ------------------------------------------------------------------------------------------------------

// Applies change(x) to every element, eight per thread.
template <class Change>
LLMC_DEVICE void change_elements(float* grad, size_t n, const Change& change) {
    const size_t first = static_cast<size_t>(blockIdx.x) * kBlockThreads * kPerThread + first_of_fours(threadIdx.x);
    if (first >= n) return;
    float x[8];
    load_group(grad + first, n - first, x);
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) x[i] = change(x[i]);
    store_group(grad + first, n - first, x);
}

static __global__ void __launch_bounds__(kBlockThreads)
    clip_values_kernel(float* grad, size_t n, float clip, const float* loss_scale) {
    const float limit = clip * *loss_scale;
    change_elements(grad, n, [limit](float x) { return fminf(fmaxf(x, -limit), limit); });
}

static __global__ void __launch_bounds__(kBlockThreads)
    scale_gradient_kernel(float* grad, size_t n, const float* factor) {
    const float by = *factor;
    if (by == 1) return;
    change_elements(grad, n, [by](float x) { return x * by; });
}

static __global__ void __launch_bounds__(kBlockThreads)
    add_partials_kernel(double* sum, const double* partials, size_t n) {
    LLMC_SHARED(double, sums, [kBlockThreads]);
    double mine = 0;
    for (size_t i = threadIdx.x; i < n; i += kBlockThreads) mine += partials[i];
    mine = block_sum(sums, threadIdx.x, mine);
    if (threadIdx.x == 0) *sum = mine;
}

static __global__ void __launch_bounds__(kBlockThreads)
    clip_factors_kernel(float* factors, const double* squares, size_t n, double clip, const float* loss_scale) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i >= n) return;
    const double norm = static_cast<float>(sqrt(squares[i]) / static_cast<double>(*loss_scale));
    factors[i] = static_cast<float>(norm > clip ? clip / norm : 1.0);
}

static dim3 blocks_for(size_t n, size_t per_block) { return dim3(div_up(n, per_block)); }

void clip_values(float* grad, size_t n, double clip, const float* loss_scale, stream_t stream) {
    if (n == 0) return;
    check_aligned("clip_values", {grad});
    launch<clip_values_kernel>({blocks_for(n, kBlockThreads * kPerThread), kBlockThreads, 0, stream}, inout(grad, n), n,
                               static_cast<float>(clip), in(loss_scale, 1));
}

void add_partials(double* sum, const double* partials, size_t n, stream_t stream) {
    host::launch_or_loop<add_partials_kernel, host::add_partials>({1, kBlockThreads, 0, stream}, out(sum, 1),
                                                                  in(partials, n), n);
}

void clip_factors(float* factors, const double* squares, size_t n, double clip, const float* loss_scale,
                  stream_t stream) {
    if (n == 0) return;
    launch<clip_factors_kernel>({blocks_for(n, kBlockThreads), kBlockThreads, 0, stream}, out(factors, n),
                                in(squares, n), n, clip, in(loss_scale, 1));
}

void scale_gradient(float* grad, size_t n, const float* factor, stream_t stream) {
    if (n == 0) return;
    check_aligned("scale_gradient", {grad});
    launch<scale_gradient_kernel>({blocks_for(n, kBlockThreads * kPerThread), kBlockThreads, 0, stream}, inout(grad, n),
                                  n, in(factor, 1));
}

// ---- QK-clip --------------------------------------------------------------------------------------------------------

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

template <class Real, bool kMeasures>
static __global__ void __launch_bounds__(kBlockThreads)
    qk_clip_kernel(StateArray master, Real* working, Fp8State* fp8, QkClipFactors factors, size_t count,
                   StateRounding rounding, const StepState* state) {
    if (state->skip) return;
    update_groups<kMeasures>(fp8, count, 0, [&](size_t first, size_t left, size_t) {
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

template <class Real, bool kMeasures>
static void qk_clip([[maybe_unused]] const Grid&, StateArray master, Real* working, Fp8State* fp8,
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
    with_measure(fp8, [&]<bool kMeasures>() {
        host::launch_or_loop<qk_clip_kernel<Real, kMeasures>, host::qk_clip<Real, kMeasures>>(
            update_blocks(count, kMeasures, stream),
            {changed(master, count), inout(working, count), inout(fp8, 1), in(maxima, heads.NH), in(state, 1)}, master,
            working, fp8, factors, count, rounding, state);
    });
}
LLMC_INSTANTIATE_BOTH(qk_clip, float, bf16);

}  // namespace llmc
