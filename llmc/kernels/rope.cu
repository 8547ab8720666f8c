// Kernels of RoPE and QK-norm, and the tables of angles (rope.h).
#include "llmc/kernels/rope.h"

#include <algorithm>

#include "llmc/device/kernel.cuh"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {

// ---- tables --------------------------------------------------------------------------------------------------------

namespace {

// Rounded to FP32 here, because g++ would otherwise fuse the product with an addition.
float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * static_cast<double>(b)); }

// Follows transformers' _compute_llama3_parameters(), where PyTorch divides a number by a tensor by multiplying with
// the reciprocal.
float llama3_frequency(float frequency, const RopeScaling& s) {
    constexpr float kTwoPi = 6.283185307179586f;
    const float old_context = static_cast<float>(s.old_context), wavelength = product(1.0f / frequency, kTwoPi);
    if (wavelength > old_context / s.low_freq) return frequency / s.factor;
    if (wavelength < old_context / s.high_freq) return frequency;
    const float smooth = (product(1.0f / wavelength, old_context) - s.low_freq) / (s.high_freq - s.low_freq);
    return product(1.0f - smooth, frequency) / s.factor + product(smooth, frequency);
}

}  // namespace

std::vector<float> rope_frequencies(float theta, const RopeScaling& scaling, int HD) {
    std::vector<float> frequencies;
    for (int i = 0; i < HD / 2; i++) {
        const float frequency = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(HD));
        frequencies.push_back(scaling.factor != 0.0f ? llama3_frequency(frequency, scaling) : frequency);
    }
    return frequencies;
}

RopeValues rope_values(float theta, const RopeScaling& scaling, int HD, int positions) {
    const std::vector<float> frequencies = rope_frequencies(theta, scaling, HD);
    const int half = HD / 2;
    const size_t n = static_cast<size_t>(positions) * half;
    RopeValues values{std::vector<float>(n), std::vector<float>(n)};
    for (int position = 0; position < positions; position++) {
        for (int i = 0; i < half; i++) {
            const float angle = product(static_cast<float>(position), frequencies[static_cast<size_t>(i)]);
            const size_t at = static_cast<size_t>(position) * half + static_cast<size_t>(i);
            values.cos[at] = std::cos(angle);
            values.sin[at] = std::sin(angle);
        }
    }
    return values;
}

// ---- one head ------------------------------------------------------------------------------------------------------

namespace {

// A thread's sixteen elements of a head: eight of the first half, and the eight of the second half that are rotated
// with them. A head has a power of two threads, for sums over them. With head dimensions 80 and 96 the last three, or
// two, of eight are idle: their elements are zeros.
template <int HD>
struct HeadShare {
    static constexpr int threads = host::head_threads(HD), heads_at_once = kBlockThreads / threads;
    int slot, column;  // number of the head in the block; its first element

    LLMC_DEVICE HeadShare()
        : slot(static_cast<int>(threadIdx.x) / threads), column(static_cast<int>(threadIdx.x) % threads * 8) {}
    LLMC_DEVICE bool idle() const { return threads * 16 > HD && column >= HD / 2; }

    template <class Real>
    LLMC_DEVICE void load(const Real* head, float (&x)[2][8]) const {
        if (idle()) return set(x, 0.0f);
        load8(head + column, x[0]);
        load8(head + column + HD / 2, x[1]);
    }
    LLMC_DEVICE static void set(float (&x)[2][8], float value) {
        for (int i = 0; i < 8; i++) x[0][i] = x[1][i] = value;
    }
    template <class Real>
    LLMC_DEVICE void store(Real* head, const float (&x)[2][8]) const {
        if (idle()) return;
        store8(head + column, x[0]);
        store8(head + column + HD / 2, x[1]);
    }
    template <class Real>
    LLMC_DEVICE void load_gain(const Real* gain, float (&w)[2][8]) const {
        if (gain != nullptr) return load(gain, w);
        set(w, 1.0f);
    }
    // Rotates by the angles of a position, or back.
    template <bool Back>
    LLMC_DEVICE void rotate(float (&x)[2][8], const float* cos, const float* sin, int position) const {
        if (idle()) return;
        float c[8], s[8];
        load8(cos + static_cast<size_t>(position) * (HD / 2) + column, c);
        load8(sin + static_cast<size_t>(position) * (HD / 2) + column, s);
        for (int i = 0; i < 8; i++) {
            const float sine = Back ? -s[i] : s[i], first = x[0][i], second = x[1][i];
            x[0][i] = first * c[i] - second * sine;
            x[1][i] = second * c[i] + first * sine;
        }
    }
};

// Returns this thread's part of the sum of x * y.
LLMC_DEVICE float dot16(const float (&x)[2][8], const float (&y)[2][8]) {
    float sums[4] = {};
    for (int i = 0; i < 8; i++) {
        sums[i % 2] += x[0][i] * y[0][i];
        sums[2 + i % 2] += x[1][i] * y[1][i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

using host::HeadRange;

// The head that a thread works on: number `index` among the range's heads in all N rows.
template <int HD>
struct HeadPlace {
    int row, head;
    size_t at;
    LLMC_DEVICE HeadPlace(unsigned index, const HeadRange& range) {
        row = static_cast<int>(index / static_cast<unsigned>(range.count));
        head = range.first + static_cast<int>(index % static_cast<unsigned>(range.count));
        at = (static_cast<size_t>(row) * range.row_heads + head) * HD;
    }
};

}  // namespace

// ---- RoPE alone ----------------------------------------------------------------------------------------------------

template <class Real, int HD, bool Back>
static __global__ void __launch_bounds__(kBlockThreads,
                                         sizeof(Real) == 2 ? kMostBlocks : 0)  // on sm_100, FP32 needs 42 registers
    rope_kernel(Real* qkv, const float* cos, const float* sin, int first, int N, int T, HeadRange range) {
    const HeadShare<HD> share;
    const unsigned index = blockIdx.x * HeadShare<HD>::heads_at_once + static_cast<unsigned>(share.slot);
    if (index >= static_cast<unsigned>(N) * range.count) return;
    const HeadPlace<HD> place(index, range);
    float x[2][8];
    share.load(qkv + place.at, x);
    share.template rotate<Back>(x, cos, sin, first + place.row % T);
    share.store(qkv + place.at, x);
}

// ---- with QK-norm --------------------------------------------------------------------------------------------------

template <class Real, int HD>
static __global__ void __launch_bounds__(kBlockThreads)
    qk_norm_rope_forward_kernel(Real* out, const Real* qkv, const Real* query_gain, const Real* key_gain,
                                const float* cos, const float* sin, int first, int N, int T, int NH, int NKV,
                                HeadRange range, float eps) {
    using Share = HeadShare<HD>;
    const Share share;
    const unsigned heads = static_cast<unsigned>(N) * range.count;
    const unsigned index = blockIdx.x * Share::heads_at_once + static_cast<unsigned>(share.slot);
    // All lanes take part in the sums. Lanes without a head do not read another's, which may be written meanwhile.
    const HeadPlace<HD> place(index < heads ? index : heads - 1, range);
    float x[2][8] = {};
    if (index < heads) share.load(qkv + place.at, x);
    float sum[1] = {dot16(x, x)};
    group_sum_each<Share::threads>(sum);
    if (place.head < NH + NKV) {
        const float rstd = reciprocal_sqrt(sum[0] * (1.0f / HD) + eps);
        float gain[2][8];
        share.load_gain(place.head < NH ? query_gain : key_gain, gain);
        for (int i = 0; i < 8; i++) {
            x[0][i] = x[0][i] * rstd * gain[0][i];
            x[1][i] = x[1][i] * rstd * gain[1][i];
        }
        share.template rotate<false>(x, cos, sin, first + place.row % T);
    }
    if (index < heads) share.store(out + place.at, x);
}

// Computes the gradients of the block's heads of one range, queries or keys, in place, and adds up the terms of dgain.
template <class Real, int HD>
LLMC_DEVICE void qk_norm_gradients(float (&dgain)[2][8], Real* dqkv, const Real* qkv, const Real* gain,
                                   const float* cos, const float* sin, int first, int N, int T, const HeadRange& range,
                                   float eps) {
    using Share = HeadShare<HD>;
    const Share share;
    const unsigned heads = static_cast<unsigned>(N) * range.count;
    float w[2][8];
    share.load_gain(gain, w);
    for (unsigned start = blockIdx.x * Share::heads_at_once; start < heads; start += gridDim.x * Share::heads_at_once) {
        const unsigned index = start + static_cast<unsigned>(share.slot);
        const HeadPlace<HD> place(index < heads ? index : heads - 1, range);
        float x[2][8] = {}, d[2][8] = {}, g[2][8];
        if (index < heads) {
            share.load(qkv + place.at, x);
            share.load(dqkv + place.at, d);
        }
        share.template rotate<true>(d, cos, sin, first + place.row % T);
        for (int i = 0; i < 8; i++) {
            g[0][i] = d[0][i] * w[0][i];
            g[1][i] = d[1][i] * w[1][i];
        }
        float sums[2] = {dot16(x, x), dot16(g, x)};
        group_sum_each<Share::threads>(sums);
        if (index >= heads) continue;
        const float rstd = reciprocal_sqrt(sums[0] * (1.0f / HD) + eps);
        const float mean = sums[1] * (1.0f / HD) * rstd;  // of g * norm
        LLMC_UNROLL
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 8; i++) {
                const float norm = x[half][i] * rstd;
                dgain[half][i] += d[half][i] * norm;
                d[half][i] = rstd * (g[half][i] - norm * mean);
            }
        }
        share.store(dqkv + place.at, d);
    }
}

template <class Real, int HD>
static __global__ void __launch_bounds__(kBlockThreads)
    qk_norm_rope_backward_kernel(Real* dqkv, float* parts, const Real* qkv, const Real* query_gain,
                                 const Real* key_gain, const float* cos, const float* sin, int first, int N, int T,
                                 int NH, int NKV, float eps) {
    LLMC_SHARED(float, sums, [kBlockThreads * 16]);  // (heads_at_once, HD)
    const HeadShare<HD> share;
    LLMC_UNROLL
    for (int side = 0; side < 2; side++) {
        const HeadRange range{side * NH, side == 0 ? NH : NKV, NH + 2 * NKV};
        float dgain[2][8] = {};
        qk_norm_gradients<Real, HD>(dgain, dqkv, qkv, side == 0 ? query_gain : key_gain, cos, sin, first, N, T, range,
                                    eps);
        if (parts == nullptr) continue;
        if (side == 1) __syncthreads();  // the queries' sums have been read
        share.store(&sums[share.slot * HD], dgain);
        __syncthreads();
        const int c = static_cast<int>(threadIdx.x);
        if (c >= HD) continue;
        float total = 0.0f;
        for (int slot = 0; slot < HeadShare<HD>::heads_at_once; slot++) total += sums[slot * HD + c];
        parts[(static_cast<size_t>(blockIdx.x) * 2 + side) * HD + c] = total;
    }
}

// ---- launchers -----------------------------------------------------------------------------------------------------

static void check_rope(const char* launcher, const RopeTable& table, int first, int N, int T,
                       const AttentionHeads& heads) {
    check_heads(launcher, heads);
    const auto refuse = [&](const std::string& what) { throw Error(ExitCode::failure, "{}: {}", launcher, what); };
    if (N < 1 || T < 1 || first < 0 || first + std::min(N, T) > table.positions)
        refuse(fmt::format("{} rows of sequences of {}, from position {} on, and a table of {} positions", N, T, first,
                           table.positions));
    if (static_cast<size_t>(N) * heads.rows() > 0x7fffffffu)
        refuse(fmt::format("{} rows of {} heads are too many; use a smaller micro-batch", N, heads.rows()));
}

static size_t table_size(const RopeTable& table, int HD) { return static_cast<size_t>(table.positions) * HD / 2; }
static size_t qkv_size(int N, const AttentionHeads& heads) { return static_cast<size_t>(N) * heads.qkv_width(); }
template <int HD>
static dim3 grid_of_heads(int N, int heads) {
    return dim3(div_up<size_t>(static_cast<size_t>(N) * heads, HeadShare<HD>::heads_at_once));
}

template <bool Back, class Real>
static void launch_rope(const char* launcher, Real* qkv, const RopeTable& table, int first, int N, int T,
                        const AttentionHeads& heads, stream_t stream) {
    check_rope(launcher, table, first, N, T, heads);
    const HeadRange range{0, heads.NH + heads.NKV, heads.rows()};
    const size_t angles = table_size(table, heads.HD);
    with_head_dimension(heads.HD, [&]<int HD>() {
        host::launch_or_loop<rope_kernel<Real, HD, Back>, host::rope<Real, HD, Back>>(
            {grid_of_heads<HD>(N, range.count), dim3(kBlockThreads), 0, stream}, inout(qkv, qkv_size(N, heads)),
            in(table.cos, angles), in(table.sin, angles), first, N, T, range);
    });
}

template <class Real>
void rope_forward(Real* qkv, const RopeTable& table, int first, int N, int T, const AttentionHeads& heads,
                  stream_t stream) {
    launch_rope<false>("rope_forward", qkv, table, first, N, T, heads, stream);
}
template <class Real>
void rope_backward(Real* dqkv, const RopeTable& table, int first, int N, int T, const AttentionHeads& heads,
                   stream_t stream) {
    launch_rope<true>("rope_backward", dqkv, table, first, N, T, heads, stream);
}

template <class Real>
void qk_norm_rope_forward(Real* out, const Real* qkv, const QkGains<const Real>& gains, const RopeTable& table,
                          int first, int N, int T, const AttentionHeads& heads, float eps, stream_t stream) {
    check_rope("qk_norm_rope_forward", table, first, N, T, heads);
    const HeadRange range{0, out == qkv ? heads.NH + heads.NKV : heads.rows(), heads.rows()};
    const size_t n = qkv_size(N, heads), angles = table_size(table, heads.HD), columns = static_cast<size_t>(heads.HD);
    with_head_dimension(heads.HD, [&]<int HD>() {
        host::launch_or_loop<qk_norm_rope_forward_kernel<Real, HD>, host::qk_norm_rope_forward<Real, HD>>(
            {grid_of_heads<HD>(N, range.count), dim3(kBlockThreads), 0, stream}, llmc::out(out, n), in(qkv, n),
            in(gains.query, columns), in(gains.key, columns), in(table.cos, angles), in(table.sin, angles), first, N, T,
            heads.NH, heads.NKV, range, eps);
    });
}

// Number of blocks of the backward: a function of the shape alone, because each block has a sum of its own.
static int qk_norm_backward_blocks(int N, const AttentionHeads& heads) {
    constexpr int kTurns = 8;  // at least, because a block's sums cost as much memory traffic as some heads
    const int heads_at_once = kBlockThreads / host::head_threads(heads.HD);
    return static_cast<int>(std::min<size_t>(div_up<size_t>(static_cast<size_t>(N) * heads.NH, heads_at_once * kTurns),
                                             static_cast<size_t>(blocks_at_once(kBlockThreads / 32))));
}
size_t qk_norm_backward_scratch(int N, const AttentionHeads& heads) {
    return static_cast<size_t>(qk_norm_backward_blocks(N, heads)) * 2 * static_cast<size_t>(heads.HD);
}

template <class Real>
void qk_norm_rope_backward(Real* dqkv, const QkGains<float>& dgains, float* scratch, const Real* qkv,
                           const QkGains<const Real>& gains, const RopeTable& table, int first, int N, int T,
                           const AttentionHeads& heads, float eps, bool accumulate, stream_t stream) {
    check_rope("qk_norm_rope_backward", table, first, N, T, heads);
    const bool has_gains = gains.query != nullptr;
    for (const bool given : {gains.key != nullptr, dgains.query != nullptr, dgains.key != nullptr, scratch != nullptr})
        if (given != has_gains)
            throw Error(ExitCode::failure, "qk_norm_rope_backward: gains, dgains and scratch go together");
    const size_t n = qkv_size(N, heads), angles = table_size(table, heads.HD), columns = static_cast<size_t>(heads.HD);
    const int blocks = qk_norm_backward_blocks(N, heads);
    with_head_dimension(heads.HD, [&]<int HD>() {
        host::launch_or_loop<qk_norm_rope_backward_kernel<Real, HD>, host::qk_norm_rope_backward<Real, HD>>(
            {dim3(blocks), dim3(kBlockThreads), 0, stream}, inout(dqkv, n),
            out(scratch, qk_norm_backward_scratch(N, heads)), in(qkv, n), in(gains.query, columns),
            in(gains.key, columns), in(table.cos, angles), in(table.sin, angles), first, N, T, heads.NH, heads.NKV,
            eps);
    });
    if (has_gains)
        reduce_column_parts(dgains.query, dgains.key, scratch, blocks, 2 * heads.HD, heads.HD, accumulate, stream);
}

LLMC_INSTANTIATE_BOTH(rope_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(rope_backward, float, bf16);
LLMC_INSTANTIATE_BOTH(qk_norm_rope_forward, float, bf16);
LLMC_INSTANTIATE_BOTH(qk_norm_rope_backward, float, bf16);

}  // namespace llmc
