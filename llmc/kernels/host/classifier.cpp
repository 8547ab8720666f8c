// Loops of the classifier. A task has one row, and sums its softmax as the threads of a kernel's block do together.
#include <cmath>
#include <vector>

#include "llmc/kernels/classifier_random.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/quantize.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kIgnoredTarget = -1;

float minus_infinity() { return float_from_bits(kFloatInfinityBits | 0x80000000u); }

// Computes SoftCap (classifier.cu) of a vector.
template <bool kCapped>
LLMC_INLINE Floats capped(Floats x, float cap, Floats& slope) {
    slope = splat(1.0f);
    if (!kCapped) return x;
    const Floats magnitude = from_bits(bits_of(x) & kFloatMagnitudeMask);
    const Floats e = exp2_of(magnitude * (-2.0f * kLog2E / cap)), inverse = 1.0f / (1.0f + e);
    slope = 4.0f * e * inverse * inverse;
    const Floats tanh = (1.0f - e) * inverse;
    return (x < 0.0f ? -tanh : tanh) * cap + x * 0.0f;
}

// Each lane gets the largest of its group of eight, in the order of OnlineSoftmax::add().
LLMC_INLINE Floats max_of_eights(Floats x) {
    x = max_of(x, swap_lanes<1>(x));
    x = max_of(x, swap_lanes<2>(x));
    return max_of(x, swap_lanes<4>(x));
}

// The running softmaxes of a block's threads: element 8 t + i has sum i and the maximum of thread t.
struct Threads {
    std::vector<float> max, sum;
    void clear(int threads) {
        max.assign(static_cast<size_t>(threads) * 8, minus_infinity());
        sum.assign(static_cast<size_t>(threads) * 8, 0.0f);
    }
    // Adds the first `valid` logits. In a group of eight that ends early, the missing ones repeat its first for the
    // maximum.
    LLMC_INLINE void add(int at, Floats x, int valid) {
        Floats filled = x;
        if (valid < kLanes)
            for (int i = valid; i < kLanes; i++)
                filled[i] = i / 8 == valid / 8 && valid % 8 ? x[valid / 8 * 8] : minus_infinity();
        const Floats largest = max_of_eights(filled);
        Floats best = load(max.data() + at), total = load(sum.data() + at);
        const Ints higher = largest > best;
        if (any_lane(higher)) {
            const Floats factor = exp2_of((best - largest) * kLog2E);
            total = higher ? total * factor : total;
            best = higher ? largest : best;
            store(max.data() + at, best);
        }
        const Floats term = exp2_of((x - best) * kLog2E) + x * 0.0f;
        store(sum.data() + at, total + (valid < kLanes ? first_lanes(term, valid) : term));
    }
};

struct Softmax {
    float max, sum;
};
// Computes combine_lanes() of 32 lanes, and the whole block's softmax from its warps.
Softmax combine(const Softmax* lanes) {
    float max = lanes[0].max, sums[32];
    for (int i = 1; i < 32; i++) max = max > lanes[i].max ? max : lanes[i].max;
    for (int i = 0; i < 32; i++) {
        const Floats factor = exp2_of(splat((lanes[i].max - max) * kLog2E));
        sums[i] = lanes[i].sum * factor[0];
    }
    return {max, tree_sum(sums)};
}
Softmax combine(const Threads& threads, int warps) {
    Softmax of_warps[32];
    std::fill(of_warps, of_warps + 32, Softmax{minus_infinity(), 0.0f});
    for (int w = 0; w < warps; w++) {
        Softmax lanes[32];
        for (int i = 0; i < 32; i++) {
            const size_t at = static_cast<size_t>(w * 32 + i) * 8;
            const float* s = threads.sum.data() + at;
            lanes[i] = {threads.max[at], ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))};
        }
        of_warps[w] = combine(lanes);
    }
    return warps == 1 ? of_warps[0] : combine(of_warps);
}

// The parameters that are the same for all rows.
struct LossParameters {
    float dloss;
    const float* loss_scale;
    int V, padded_V;
    bool write_gradient;
    float cap, z_loss;
};

// Computes the loss of the row x, and overwrites x with the gradient.
template <class Real, int kThreads, bool kCapped>
float loss_of_row(const LossParameters& p, Real* x, int target) {
    thread_local Threads threads;
    const int V = p.V, padded_V = p.padded_V;
    if (target == kIgnoredTarget) {
        if (p.write_gradient) std::memset(static_cast<void*>(x), 0, static_cast<size_t>(padded_V) * sizeof(Real));
        return 0.0f;
    }
    const bool known = target >= 0 && target < V;
    const float nan = float_from_bits(kFloatMagnitudeMask);
    Floats slope;
    const float target_logit = known ? capped<kCapped>(splat(to_float(x[target])), p.cap, slope)[0] : nan;
    const float target_slope = known ? slope[0] : 1.0f;

    threads.clear(kThreads);
    for (int c = 0; c < V; c += kLanes)
        threads.add(c % (kThreads * 8), capped<kCapped>(load_first(x + c, padded_V - c), p.cap, slope),
                    std::min(kLanes, V - c));
    const auto [max, sum] = combine(threads, kThreads / 32);
    const float loss = (max - target_logit) + logf(sum);
    if (!p.write_gradient) return loss;

    const float gradient = !known ? nan : p.loss_scale ? p.dloss * *p.loss_scale : p.dloss;
    const float factor = gradient * (1.0f + 2.0f * p.z_loss * (max + logf(sum))) / sum;
    const float of_softmax = known ? (exp2_of(splat((target_logit - max) * kLog2E)) * factor)[0] - gradient : 0.0f;
    for (int c = 0; c < V; c += kLanes) {
        const Floats logit = capped<kCapped>(load_first(x + c, padded_V - c), p.cap, slope);
        Floats d = exp2_of((logit - max) * kLog2E) * factor;
        if (kCapped) d *= slope;
        if (c + kLanes > V) d = first_lanes(d, V - c);
        store_first(x + c, d, padded_V - c);
    }
    for (int c = V; c < padded_V; c++) x[c] = to<Real>(0.0f);
    if (known) x[target] = to<Real>(kCapped ? of_softmax * target_slope : of_softmax);
    return loss;
}

}  // namespace

template <class Real, int kThreads, bool kCapped>
void softmax_cross_entropy(const Grid& grid, Real* logits, float* losses, const int* targets, float dloss,
                           const float* loss_scale, int V, int padded_V, bool write_gradient, float cap, float z_loss) {
    const LossParameters parameters = {dloss, loss_scale, V, padded_V, write_gradient, cap, z_loss};
    const int rows = static_cast<int>(grid.grid.x);
#pragma omp parallel for schedule(static) if (static_cast <size_t>(rows) * V > 8192)
    for (int row = 0; row < rows; row++)
        losses[row] = loss_of_row<Real, kThreads, kCapped>(parameters, logits + static_cast<size_t>(row) * padded_V,
                                                           targets[row]);
}

template <class F8, int kThreads, bool kCapped>
void softmax_cross_entropy_fp8(const Grid& grid, F8* codes, Fp8State* state, const bf16* logits, float* losses,
                               const int* targets, float dloss, const float* loss_scale, int V, int padded_V, float cap,
                               float z_loss, QuantizePass pass) {
    const LossParameters parameters = {dloss, loss_scale, V, padded_V, true, cap, z_loss};
    const int rows = static_cast<int>(grid.grid.x);
    const size_t width = static_cast<size_t>(padded_V);
#pragma omp parallel if (static_cast <size_t>(rows) * V > 8192)
    {
        std::vector<bf16> gradient(width);
        std::vector<float> values(width);
        std::vector<uint32_t> random(width);
        Tally tally;
#pragma omp for schedule(static)
        for (int row = 0; row < rows; row++) {
            const size_t begin = static_cast<size_t>(row) * width;
            std::copy_n(logits + begin, width, gradient.data());
            losses[row] = loss_of_row<bf16, kThreads, kCapped>(parameters, gradient.data(), targets[row]);
            for (int c = 0; c < padded_V; c += kLanes) store(values.data() + c, load(gradient.data() + c));
            for (int c = 0; writes_fp8(pass) && c < padded_V; c += 8) {
                float scaled[8];
                for (int i = 0; i < 8; i++) scaled[i] = values[static_cast<size_t>(c + i)] * state->scale;
                random_of_gradients(random.data() + c, scaled, targets[row], c);
            }
            quantize_rows<F8>({codes ? codes + begin : nullptr, width, nullptr, 0}, tally, values.data(), width, 1,
                              padded_V, state->scale, pass, random.data());
        }
        commit(state, tally, 0, pass);
    }
    commit(state, {}, static_cast<size_t>(rows) * width, pass);
}

void sum_losses(const Grid&, double* total, int* count, const float* losses, const int* targets, int n,
                bool accumulate) {
    double sums[256] = {};
    add_in_turn(sums, static_cast<size_t>(n), [=](size_t i) { return losses[i]; });
    double sum = 0.0;
    for (const double of_thread : sums) sum += of_thread;
    const int counted = n - static_cast<int>(std::count(targets, targets + n, kIgnoredTarget));
    *total = accumulate ? *total + sum : sum;
    *count = accumulate ? *count + counted : counted;
}

#define LLMC_INSTANTIATE_BLOCK(kThreads, kCapped)                         \
    LLMC_INSTANTIATE(softmax_cross_entropy<float, kThreads, kCapped>);    \
    LLMC_INSTANTIATE(softmax_cross_entropy<bf16, kThreads, kCapped>);     \
    LLMC_INSTANTIATE(softmax_cross_entropy_fp8<e4m3, kThreads, kCapped>); \
    LLMC_INSTANTIATE(softmax_cross_entropy_fp8<e5m2, kThreads, kCapped>);
LLMC_INSTANTIATE_BLOCK(32, false)
LLMC_INSTANTIATE_BLOCK(32, true)
LLMC_INSTANTIATE_BLOCK(128, false)
LLMC_INSTANTIATE_BLOCK(128, true)
LLMC_INSTANTIATE_BLOCK(768, false)
LLMC_INSTANTIATE_BLOCK(768, true)
#undef LLMC_INSTANTIATE_BLOCK

}  // namespace llmc::host
