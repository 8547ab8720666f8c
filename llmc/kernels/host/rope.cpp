// The loops of rotary positions and QK-norm: a task has some heads. Sums of a head have the order of the kernels, whose
// threads have eight elements of each half.
#include <cmath>

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {
namespace {

// Tables of angles (positions, HD / 2), and the rotation of a head in FP32 by those of its position.
template <int HD>
struct Angles {
    const float *cos, *sin;

    template <bool kBack>
    LLMC_INLINE void rotate(float* x, int position) const {
        const float* c = cos + static_cast<size_t>(position) * (HD / 2);
        const float* s = sin + static_cast<size_t>(position) * (HD / 2);
        int i = 0;
        for (; i + kLanes <= HD / 2; i += kLanes) {
            const Floats sine = kBack ? -load(s + i) : load(s + i), cosine = load(c + i);
            const Floats first = load(x + i), second = load(x + HD / 2 + i);
            store(x + i, first * cosine - second * sine);
            store(x + HD / 2 + i, second * cosine + first * sine);
        }
        for (; i < HD / 2; i++) {  // half of head dimension 80 is not a multiple of kLanes
            const float sine = kBack ? -s[i] : s[i], first = x[i], second = x[HD / 2 + i];
            x[i] = first * c[i] - second * sine;
            x[HD / 2 + i] = second * c[i] + first * sine;
        }
    }
};

// The sum of x * y: dot16() of each thread, then a sum over the head's threads.
template <int HD>
LLMC_INLINE float dot(const float* x, const float* y) {
    constexpr int kThreads = head_threads(HD);
    float lanes[kThreads] = {};
    for (int t = 0; t < HD / 16; t++) {
        float sums[4] = {};
        for (int i = 0; i < 8; i++) {
            const int first = t * 8 + i, second = first + HD / 2;
            sums[i % 2] += x[first] * y[first];
            sums[2 + i % 2] += x[second] * y[second];
        }
        lanes[t] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    return tree_sum(lanes);
}

template <int HD, class Real>
LLMC_INLINE void load_head(float* to, const Real* from) {
    for (int i = 0; i < HD; i += kLanes) store(to + i, load(from + i));
}
template <int HD, class Real>
LLMC_INLINE void store_head(Real* to, const float* from) {
    for (int i = 0; i < HD; i += kLanes) store(to + i, load(from + i));
}
template <class Real>
LLMC_INLINE Floats gain_at(const Real* gain, int i) {
    return gain ? load(gain + i) : splat(1.0f);
}

}  // namespace

template <class Real, int HD, bool kBack>
void rope(const Grid&, Real* qkv, const float* cos, const float* sin, int first, int N, int T, HeadRange range) {
    const Angles<HD> angles{cos, sin};
#pragma omp parallel for schedule(static) if (static_cast <size_t>(N) * range.row_heads * HD > 16384)
    for (int row = 0; row < N; row++)
        for (int head = range.first; head < range.first + range.count; head++) {
            Real* const at = qkv + (static_cast<size_t>(row) * range.row_heads + head) * HD;
            alignas(64) float x[HD];
            load_head<HD>(x, at);
            angles.template rotate<kBack>(x, first + row % T);
            store_head<HD>(at, x);
        }
}

template <class Real, int HD>
void qk_norm_rope_forward(const Grid&, Real* out, const Real* qkv, const Real* query_gain, const Real* key_gain,
                          const float* cos, const float* sin, int first, int N, int T, int NH, int NKV, HeadRange range,
                          float eps) {
    const Angles<HD> angles{cos, sin};
#pragma omp parallel for schedule(static) if (static_cast <size_t>(N) * range.row_heads * HD > 16384)
    for (int row = 0; row < N; row++)
        for (int head = range.first; head < range.first + range.count; head++) {
            const size_t at = (static_cast<size_t>(row) * range.row_heads + head) * HD;
            alignas(64) float x[HD];
            load_head<HD>(x, qkv + at);
            if (head < NH + NKV) {
                const float rstd = 1.0f / sqrtf(dot<HD>(x, x) * (1.0f / HD) + eps);
                const Real* gain = head < NH ? query_gain : key_gain;
                for (int i = 0; i < HD; i += kLanes) store(x + i, load(x + i) * rstd * gain_at(gain, i));
                angles.template rotate<false>(x, first + row % T);
            }
            store_head<HD>(out + at, x);
        }
}

template <class Real, int HD>
void qk_norm_rope_backward(const Grid& grid, Real* dqkv, float* parts, const Real* qkv, const Real* query_gain,
                           const Real* key_gain, const float* cos, const float* sin, int first, int N, int T, int NH,
                           int NKV, float eps) {
    constexpr int kHeadsAtOnce = 256 / head_threads(HD);
    const int blocks = static_cast<int>(grid.grid.x), step = blocks * kHeadsAtOnce;
    const Angles<HD> angles{cos, sin};
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int task = 0; task < 2 * blocks; task++) {
        const int block = task / 2, side = task % 2, count = side == 0 ? NH : NKV, heads = N * count;
        const Real* const gain = side == 0 ? query_gain : key_gain;
        alignas(64) float dgain[kHeadsAtOnce][HD] = {};  // one sum for each thread of the block
        for (int start = block * kHeadsAtOnce; start < heads; start += step)
            for (int index = start; index < std::min(start + kHeadsAtOnce, heads); index++) {
                const int row = index / count, head = side * NH + index % count;
                const size_t at = (static_cast<size_t>(row) * (NH + 2 * NKV) + head) * HD;
                alignas(64) float x[HD], d[HD], g[HD];
                load_head<HD>(x, qkv + at);
                load_head<HD>(d, dqkv + at);
                angles.template rotate<true>(d, first + row % T);
                for (int i = 0; i < HD; i += kLanes) store(g + i, load(d + i) * gain_at(gain, i));
                const float rstd = 1.0f / sqrtf(dot<HD>(x, x) * (1.0f / HD) + eps);
                const float mean = dot<HD>(g, x) * (1.0f / HD) * rstd;
                for (int i = 0; i < HD; i += kLanes) {
                    float* const sums = dgain[index - start] + i;
                    const Floats norm = load(x + i) * rstd;
                    store(sums, load(sums) + load(d + i) * norm);
                    store(d + i, rstd * (load(g + i) - norm * mean));
                }
                store_head<HD>(dqkv + at, d);
            }
        if (!parts) continue;
        for (int i = 0; i < HD; i += kLanes) {
            Floats total{};
            for (int slot = 0; slot < kHeadsAtOnce; slot++) total += load(dgain[slot] + i);
            store(parts + (static_cast<size_t>(block) * 2 + side) * HD + i, total);
        }
    }
}

#define LLMC_INSTANTIATE_ROPE(Real, HD)               \
    LLMC_INSTANTIATE(rope<Real, HD, false>);          \
    LLMC_INSTANTIATE(rope<Real, HD, true>);           \
    LLMC_INSTANTIATE(qk_norm_rope_forward<Real, HD>); \
    LLMC_INSTANTIATE(qk_norm_rope_backward<Real, HD>);
#define LLMC_INSTANTIATE_HEAD(HD) LLMC_INSTANTIATE_ROPE(float, HD) LLMC_INSTANTIATE_ROPE(bf16, HD)
LLMC_FOR_HEAD_DIMENSIONS(LLMC_INSTANTIATE_HEAD)
#undef LLMC_INSTANTIATE_HEAD
#undef LLMC_INSTANTIATE_ROPE

}  // namespace llmc::host
