// Loops of attention; llmc/kernels/attention.h says what they compute.
//
// A task owns 64 queries or keys of a head and walks over the others in tiles, as the portable kernels do. The owned
// side lies across the lanes of a vector, so row statistics need no sums over lanes. In BF16, scores, P and dS are
// sums of exact products in the kernels' order, and are rounded where the kernels round them; in FP32, scores are
// summed up like those of a row's lanes. A thread needs up to 600 KB of stack.
#include "llmc/kernels/host/loops.h"

#include <bit>
#include <climits>
#include <cmath>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/host/quantize.h"
#include "llmc/kernels/host/vectors.h"
#include "llmc/kernels/instantiate.h"

namespace llmc::host {
namespace {

// ---- products ------------------------------------------------------------------------------------------------------
//
// Small FP32 matrices that fit into the cache: C (M, N) = A (M, K) B (K, N), or += with `add`.
//
// B and C are row-major, and N is a multiple of the lanes. Element (m, k) of A lies at m * row + k * step, so A may be
// transposed. Sums run over k in order, starting with C's old value or with 0.

struct Left {
    const float* values;
    size_t row, step;
};
struct Matrix {
    float* values;
    size_t stride;
};

// kExact says that every product of two elements is exact in FP32, which holds for BF16 values.
template <bool kExact>
LLMC_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
    return kExact ? add_exact_product(a, b, sum) : sum + a * b;
}

template <bool kExact, int Rows, int Vectors>
LLMC_INLINE void product_tile(const Matrix& c, const Left& a, const Matrix& b, int K, bool add) {
    Floats sum[Rows][Vectors];
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Vectors; v++) sum[r][v] = add ? load(c.values + r * c.stride + v * kLanes) : Floats{};
    for (int k = 0; k < K; k++) {
        Floats line[Vectors];
        for (int v = 0; v < Vectors; v++) line[v] = load(b.values + k * b.stride + v * kLanes);
        for (int r = 0; r < Rows; r++) {
            const Floats factor = splat(a.values[r * a.row + k * a.step]);
            for (int v = 0; v < Vectors; v++) sum[r][v] = multiply_add<kExact>(factor, line[v], sum[r][v]);
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Vectors; v++) store(c.values + r * c.stride + v * kLanes, sum[r][v]);
}

template <bool kExact, int Vectors>
void product_panel(const Matrix& c, const Left& a, const Matrix& b, int M, int K, bool add) {
    int m = 0;
    const auto tile = [&]<int Rows>() {
        product_tile<kExact, Rows, Vectors>({c.values + m * c.stride, c.stride}, {a.values + m * a.row, a.row, a.step},
                                            b, K, add);
        m += Rows;
    };
    while (m + 6 <= M) tile.template operator()<6>();
    while (m + 2 <= M) tile.template operator()<2>();
    if (m < M) tile.template operator()<1>();
}

template <bool kExact>
void product(const Matrix& c, const Left& a, const Matrix& b, int M, int N, int K, bool add) {
    constexpr int kMost = kLanes == 16 ? 4 : 2;  // six rows of these sums fill most registers
    int n = 0;
    for (; n + kMost * kLanes <= N; n += kMost * kLanes)
        product_panel<kExact, kMost>({c.values + n, c.stride}, a, {b.values + n, b.stride}, M, K, add);
    for (; n < N; n += kLanes)
        product_panel<kExact, 1>({c.values + n, c.stride}, a, {b.values + n, b.stride}, M, K, add);
}

// C = A B, summed in the order of the FP32 attention kernels: each of a row's lanes has eight sums over k = 8 (lanes i
// + lane) + e, which are then added up as group_sum_each() does.
template <int K>
void row_product(const Matrix& c, const Left& a, const Matrix& b, int M, int N) {
    constexpr int lanes = row_lanes(K);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n += kLanes) {
            Floats share[lanes];
            for (int lane = 0; lane < lanes; lane++) {
                Floats sum[8] = {};
                for (int i = lane * 8; i < K; i += 8 * lanes)
                    for (int e = 0; e < 8; e++)
                        sum[e] +=
                            splat(a.values[m * a.row + (i + e) * a.step]) * load(b.values + (i + e) * b.stride + n);
                share[lane] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
            }
            store(c.values + m * c.stride + n, tree_sum(share));
        }
}

// The same for two rows of K elements.
template <int K>
float row_dot(const float* a, const float* b) {
    constexpr int lanes = row_lanes(K);
    float share[lanes];
    for (int lane = 0; lane < lanes; lane++) {
        float sum[8] = {};
        for (int i = lane * 8; i < K; i += 8 * lanes)
            for (int e = 0; e < 8; e++) sum[e] += a[i + e] * b[i + e];
        share[lane] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }
    return tree_sum(share);
}

// ---- shapes and tiles ----------------------------------------------------------------------------------------------

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kRows = 64;  // queries or keys of a block

// The shape of a call. Rows of qkv are `stride` elements apart, rows of the output `width`.
struct Shape {
    int B, T, NH, NKV, HD;
    int window;
    const int* documents;

    size_t stride() const { return static_cast<size_t>(NH + 2 * NKV) * HD; }
    size_t width() const { return static_cast<size_t>(NH) * HD; }
    int group() const { return NH / NKV; }
    // The first key that a query sees.
    int first_seen(int b, int query) const {
        const int at = std::min(query, T - 1), first = std::max(0, at - window + 1);
        return documents ? std::max(first, documents[static_cast<size_t>(b) * T + at]) : first;
    }
};

// Offsets of a head's first row: queries in qkv, rows of the output, and per-row statistics.
struct HeadOffsets {
    size_t query, key, value, out, statistics;
    HeadOffsets(const Shape& s, int b, int h, int kv) {
        query = static_cast<size_t>(b) * s.T * s.stride() + static_cast<size_t>(h) * s.HD;
        key = static_cast<size_t>(b) * s.T * s.stride() + static_cast<size_t>(s.NH + kv) * s.HD;
        value = key + static_cast<size_t>(s.NKV) * s.HD;
        out = static_cast<size_t>(b) * s.T * s.width() + static_cast<size_t>(h) * s.HD;
        statistics = (static_cast<size_t>(b) * s.NH + h) * s.T;
    }
};

// Load rows of a tensor to (rows, HD), or transposed to (HD, 64). Rows from `valid` on become zeros.
template <int HD, class Real>
void load_rows(float* to, const Real* from, size_t stride, int rows, int valid) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < HD; i += kLanes)
            store(to + r * HD + i, r < valid ? load(from + static_cast<size_t>(r) * stride + i) : Floats{});
}
template <int HD, class Real>
void load_transposed(float* to, const Real* from, size_t stride, int valid) {
    for (int r = 0; r < kRows; r += kLanes)
        for (int i = 0; i < HD; i += kLanes) {
            Floats x[kLanes];
            for (int k = 0; k < kLanes; k++)
                x[k] = r + k < valid ? load(from + static_cast<size_t>(r + k) * stride + i) : Floats{};
            transpose(x);
            for (int k = 0; k < kLanes; k++) store(to + (i + k) * kRows + r, x[k]);
        }
}

// c (rows, 64) = left (rows, HD) right (HD, 64), as for scores.
template <class Real, int HD>
void multiply(float* c, const float* left, const float* right, int rows) {
    if constexpr (sizeof(Real) == 2)
        product<true>({c, kRows}, {left, HD, 1}, {const_cast<float*>(right), kRows}, rows, kRows, HD, false);
    else
        row_product<HD>({c, kRows}, {left, HD, 1}, {const_cast<float*>(right), kRows}, rows, kRows);
}
// c (64, HD) += the transpose of weights (rows, 64), times values (rows, HD).
template <class Real, int HD>
void accumulate(float* c, const float* weights, const float* values, int rows) {
    product<sizeof(Real) == 2>({c, HD}, {weights, 1, kRows}, {const_cast<float*>(values), HD}, kRows, HD, rows, true);
}

// The first key that each query of a block sees.
struct SeenKeys {
    int first[kRows];
    SeenKeys(const Shape& s, int b, int first_query) {
        for (int i = 0; i < kRows; i++) first[i] = s.first_seen(b, first_query + i);
    }
    // True if a query of the block does not see all keys of the tile. (Later queries never see earlier first keys.)
    bool masks(int first_query, int first_key, int keys) const {
        return first_key + keys - 1 > first_query || first[kRows - 1] > first_key;
    }
    // Marks the lanes whose query sees the key.
    LLMC_INLINE Ints see(int key, int first_query, int lane) const {
        Ints begin;
        std::memcpy(&begin, first + lane, sizeof begin);
        return (begin <= key) & (lane_numbers() + (first_query + lane) >= key);
    }
};

// ---- forward --------------------------------------------------------------------------------------------------------

template <class Real, int HD>
struct ForwardBlock {
    static constexpr bool kRounds = sizeof(Real) == 2;
    // A tile, after which the running maximum moves.
    static constexpr int kKeys = !kRounds ? 8 : HD == 256 ? 32 : 64;
    alignas(64) float queries[HD * kRows], output[HD * kRows];  // transposed
    alignas(64) float keys[kKeys * HD], values[kKeys * HD], scores[kKeys * kRows];
    alignas(64) float maximum[kRows], correction[kRows];
    // In BF16 a row has the four partial sums of a quad's lanes, and the sum of the rounded probabilities.
    alignas(64) float sums[4][kRows], rounded_sum[kRows];

    // Turns the scores of kLanes queries, from `lane` on, into probabilities relative to the maximum so far.
    template <bool kMasked>
    LLMC_INLINE void softmax(const SeenKeys& seen, int first_query, int first_key, float scale, int lane) {
        const float minus_infinity = float_from_bits(kFloatInfinityBits | 0x80000000u);
        const Floats old = load(maximum + lane);
        Floats best = old;
        for (int k = 0; k < kKeys; k++) {
            float* const at = scores + k * kRows + lane;
            Floats score = load(at);
            if (!kRounds) score *= scale;
            if (kMasked) score = seen.see(first_key + k, first_query, lane) ? score : splat(minus_infinity);
            if (kMasked || !kRounds) store(at, score);
            best = max_of(best, score);
        }
        const float factor = kRounds ? scale : 1.0f;
        const Floats base = best == minus_infinity ? Floats{} : best;
        const Floats corrected = exp2_of((old - base) * factor), offset = base * factor;
        store(maximum + lane, best);
        store(correction + lane, corrected);
        Floats sum[4], rounded = load(rounded_sum + lane) * corrected;
        for (int i = 0; i < 4; i++) sum[i] = load(sums[i] + lane) * corrected;
        for (int k = 0; k < kKeys; k += 2) {
            Floats p[2];
            for (int i = 0; i < 2; i++) {
                float* const at = scores + (k + i) * kRows + lane;
                p[i] = exp2_of(load(at) * factor - offset);
                const Floats weight = rounded_to<Real>(p[i]);
                rounded += weight;
                store(at, weight);
            }
            if (kRounds)
                sum[k / 2 % 4] += p[0] + p[1];
            else
                sum[0] = sum[0] + p[0] + p[1];
        }
        for (int i = 0; i < 4; i++) store(sums[i] + lane, sum[i]);
        store(rounded_sum + lane, rounded);
    }
    void tile(const SeenKeys& seen, int first_query, int first_key, float scale) {
        multiply<Real, HD>(scores, keys, queries, kKeys);
        const bool masked = seen.masks(first_query, first_key, kKeys);
        for (int lane = 0; lane < kRows; lane += kLanes)
            if (masked)
                softmax<true>(seen, first_query, first_key, scale, lane);
            else
                softmax<false>(seen, first_query, first_key, scale, lane);
        for (int d = 0; d < HD; d++)
            for (int lane = 0; lane < kRows; lane += kLanes)
                store(output + d * kRows + lane, load(output + d * kRows + lane) * load(correction + lane));
        product<kRounds>({output, kRows}, {values, 1, HD}, {scores, kRows}, HD, kRows, kKeys, true);
    }
    void attend(const Shape& s, const Real* qkv, const HeadOffsets& at, int b, int first_query, float scale_log2) {
        const SeenKeys seen(s, b, first_query);
        load_transposed<HD>(queries, qkv + at.query + first_query * s.stride(), s.stride(), s.T - first_query);
        std::fill(output, output + HD * kRows, 0.0f);
        std::fill(&sums[0][0], &sums[0][0] + 4 * kRows, 0.0f);
        std::fill(rounded_sum, rounded_sum + kRows, 0.0f);
        std::fill(maximum, maximum + kRows, float_from_bits(kFloatInfinityBits | 0x80000000u));
        const int end = std::min(first_query + kRows, s.T);
        for (int key = seen.first[0] / kKeys * kKeys; key < end; key += kKeys) {
            load_rows<HD>(keys, qkv + at.key + key * s.stride(), s.stride(), kKeys, s.T - key);
            load_rows<HD>(values, qkv + at.value + key * s.stride(), s.stride(), kKeys, s.T - key);
            tile(seen, first_query, key, scale_log2);
        }
    }
    // Writes the output of the block as (64, HD), and lse of its first `rows` queries.
    void finish(float* result, float* lse, int rows, float scale) {
        for (int r = 0; r < rows; r++) {
            if (kRounds)
                lse[r] = maximum[r] * scale + logf((sums[0][r] + sums[2][r]) + (sums[1][r] + sums[3][r]));
            else
                lse[r] = maximum[r] / kLog2E + logf(sums[0][r]);
        }
        for (int lane = 0; lane < kRows; lane += kLanes) {
            const Floats inverse = 1.0f / load((kRounds ? rounded_sum : sums[0]) + lane);
            for (int d = 0; d < HD; d += kLanes) {
                Floats x[kLanes];
                for (int i = 0; i < kLanes; i++) x[i] = load(output + (d + i) * kRows + lane) * inverse;
                transpose(x);
                for (int i = 0; i < kLanes; i++) store(result + (lane + i) * HD + d, x[i]);
            }
        }
    }
};

// Calls task(b, h, first_row) for every block of `rows` rows of `heads` heads, over threads; the longest come first.
template <class Task>
void for_each_block(const Shape& s, int heads, int rows, const Task& task) {
    const int blocks = (s.T + rows - 1) / rows, tasks = s.B * heads * blocks;
#pragma omp parallel for schedule(dynamic, 1) if (tasks > 1)
    for (int i = 0; i < tasks; i++) task(i % (s.B * heads) / heads, i % heads, (blocks - 1 - i / (s.B * heads)) * rows);
}

}  // namespace

template <int HD>
void attention_forward(const Grid& grid, bf16* out, bf16* out_low, float* lse, const bf16* qkv, e4m3* row,
                       e4m3* transposed, Fp8State* fp8, int T, int NH, int NKV, float scale, int window,
                       QuantizePass pass, const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    const size_t width = s.width(), tokens = static_cast<size_t>(s.B) * T;
    for_each_block(s, NH, kRows, [&](int b, int h, int first_query) {
        const HeadOffsets at(s, b, h, h / s.group());
        ForwardBlock<bf16, HD> block;
        block.attend(s, qkv, at, b, first_query, scale * kLog2E);
        const int rows = std::min(kRows, T - first_query);
        alignas(64) float result[kRows * HD];
        block.finish(result, lse + at.statistics + first_query, rows, scale);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < HD; i += kLanes) {
                const size_t to = at.out + static_cast<size_t>(first_query + r) * width + i;
                const Floats o = load(result + r * HD + i), high = rounded_to<bf16>(o),
                             low = rounded_to<bf16>(o - high);
                if (out) store(out + to, high);
                if (out_low) store(out_low + to, low);
                store(result + r * HD + i, high + low);
            }
        if (!fp8) return;
        const size_t column = static_cast<size_t>(h) * HD, token = static_cast<size_t>(b) * T + first_query;
        Tally tally;
        quantize_rows<e4m3>({row ? row + token * width + column : nullptr, width,
                             transposed ? transposed + column * tokens + token : nullptr, tokens},
                            tally, result, HD, rows, HD, fp8->scale, pass);
        commit(fp8, tally, token + column == 0 ? tokens * width : 0, pass);
    });
}

template <int HD>
void attention_forward_fp32(const Grid& grid, float* out, float* lse, const float* qkv, int T, int NH, int NKV,
                            float scale_log2, int window, const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    for_each_block(s, NH, kRows, [&](int b, int h, int first_query) {
        const HeadOffsets at(s, b, h, h / s.group());
        ForwardBlock<float, HD> block;
        block.attend(s, qkv, at, b, first_query, scale_log2);
        const int rows = std::min(kRows, T - first_query);
        alignas(64) float result[kRows * HD];
        block.finish(result, lse + at.statistics + first_query, rows, 0.0f);
        for (int r = 0; r < rows; r++)
            std::memcpy(out + at.out + static_cast<size_t>(first_query + r) * s.width(), result + r * HD,
                        HD * sizeof(float));
    });
}

// Calls store(row, h, values) for each row and head of a decode, with the row's HD values.
template <class Real, int HD, class Store>
static void decode(const Real* qkv, int first, int rows, int NH, int NKV, float scale_log2, int window,
                   const Store& store) {
    const Shape s{1, first + rows, NH, NKV, HD, window, nullptr};
    const int tasks = NH * ((rows + kRows - 1) / kRows);
#pragma omp parallel for schedule(dynamic, 1) if (tasks > 1)
    for (int task = 0; task < tasks; task++) {
        const int h = task % NH, row = task / NH * kRows, n = std::min(kRows, rows - row);
        ForwardBlock<Real, HD> block;
        block.attend(s, qkv, HeadOffsets(s, 0, h, h / s.group()), 0, first + row, scale_log2);
        alignas(64) float result[kRows * HD], lse[kRows];
        block.finish(result, lse, n, 0.0f);
        for (int r = 0; r < n; r++) store(row + r, h, result + r * HD);
    }
}

template <int HD>
void attention_decode(const Grid&, bf16* out, bf16* out_low, const bf16* qkv, int first, int rows, int NH, int NKV,
                      float scale_log2, int window) {
    decode<bf16, HD>(qkv, first, rows, NH, NKV, scale_log2, window, [=](int row, int h, const float* values) {
        const size_t at = (static_cast<size_t>(row) * NH + h) * HD;
        for (int i = 0; i < HD; i += kLanes) {
            const Floats o = load(values + i);
            store(out + at + i, o);
            if (out_low) store(out_low + at + i, o - rounded_to<bf16>(o));
        }
    });
}

template <int HD>
void attention_decode_fp32(const Grid&, float* out, const float* qkv, int first, int rows, int NH, int NKV,
                           float scale_log2, int window) {
    decode<float, HD>(qkv, first, rows, NH, NKV, scale_log2, window, [=](int row, int h, const float* values) {
        std::memcpy(out + (static_cast<size_t>(row) * NH + h) * HD, values, HD * sizeof(float));
    });
}

// ---- backward -------------------------------------------------------------------------------------------------------

namespace {

template <class Real>
struct BackwardInputs {
    const Real *dout, *qkv;
    const float *lse, *delta;
    float scale_log2;
};

// Computes dK and dV, or dQ, of one block. The owned rows lie transposed in `own`, a tile of the other side in `other`.
template <class Real, int HD>
struct BackwardBlock {
    alignas(64) float own[2][HD * kRows];    // keys and values, or queries and dout
    alignas(64) float other[2][kRows * HD];  // queries and dout, or keys and values
    alignas(64) float p[kRows * kRows], ds[kRows * kRows];
    alignas(64) float gradients[2][kRows * HD];  // gradients of keys and values, or of queries

    void clear() { std::fill(&gradients[0][0], &gradients[0][0] + 2 * kRows * HD, 0.0f); }

    // Replaces scores and dP by P and dS.
    LLMC_INLINE void finish_pair(int at, Floats lse_log2, Floats delta, float scale_log2, Ints visible) {
        const Floats weight = exp2_of(load(p + at) * scale_log2 - lse_log2);
        const Floats probability = visible ? weight : Floats{};
        store(p + at, rounded_to<Real>(probability));
        store(ds + at, rounded_to<Real>(probability * (load(ds + at) - delta)));
    }

    void key_gradients(const Shape& s, const BackwardInputs<Real>& t, int b, int kv, int first_key) {
        const HeadOffsets keys(s, b, 0, kv);
        clear();
        load_transposed<HD>(own[0], t.qkv + keys.key + first_key * s.stride(), s.stride(), s.T - first_key);
        load_transposed<HD>(own[1], t.qkv + keys.value + first_key * s.stride(), s.stride(), s.T - first_key);
        for (int h = kv * s.group(); h < (kv + 1) * s.group(); h++) {
            const HeadOffsets at(s, b, h, kv);
            for (int query = first_key; query < s.T; query += kRows) {
                const SeenKeys seen(s, b, query);
                if (seen.first[0] >= first_key + kRows) break;
                const int rows = std::min(kRows, s.T - query);
                load_rows<HD>(other[0], t.qkv + at.query + query * s.stride(), s.stride(), rows, rows);
                load_rows<HD>(other[1], t.dout + at.out + query * s.width(), s.width(), rows, rows);
                multiply<Real, HD>(p, other[0], own[0], rows);
                multiply<Real, HD>(ds, other[1], own[1], rows);
                for (int r = 0; r < rows; r++) {
                    const Floats lse_log2 = splat(t.lse[at.statistics + query + r] * kLog2E);
                    const Floats delta = splat(t.delta[at.statistics + query + r]);
                    for (int lane = 0; lane < kRows; lane += kLanes) {
                        const Ints key = lane_numbers() + (first_key + lane);
                        finish_pair(r * kRows + lane, lse_log2, delta, t.scale_log2,
                                    (key >= seen.first[r]) & (key <= query + r));
                    }
                }
                accumulate<Real, HD>(gradients[1], p, other[1], rows);
                accumulate<Real, HD>(gradients[0], ds, other[0], rows);
            }
        }
    }

    void query_gradients(const Shape& s, const BackwardInputs<Real>& t, int b, int h, int first_query) {
        const HeadOffsets at(s, b, h, h / s.group());
        const SeenKeys seen(s, b, first_query);
        const int valid = std::min(kRows, s.T - first_query);
        clear();
        load_transposed<HD>(own[0], t.qkv + at.query + first_query * s.stride(), s.stride(), valid);
        load_transposed<HD>(own[1], t.dout + at.out + first_query * s.width(), s.width(), valid);
        alignas(64) float lse_log2[kRows] = {}, delta[kRows] = {};
        for (int r = 0; r < valid; r++) {
            lse_log2[r] = t.lse[at.statistics + first_query + r] * kLog2E;
            delta[r] = t.delta[at.statistics + first_query + r];
        }
        for (int key = seen.first[0] / kRows * kRows; key < std::min(first_query + kRows, s.T); key += kRows) {
            load_rows<HD>(other[0], t.qkv + at.key + key * s.stride(), s.stride(), kRows, s.T - key);
            load_rows<HD>(other[1], t.qkv + at.value + key * s.stride(), s.stride(), kRows, s.T - key);
            multiply<Real, HD>(p, other[0], own[0], kRows);
            multiply<Real, HD>(ds, other[1], own[1], kRows);
            for (int k = 0; k < kRows; k++)
                for (int lane = 0; lane < kRows; lane += kLanes)
                    finish_pair(k * kRows + lane, load(lse_log2 + lane), load(delta + lane), t.scale_log2,
                                seen.see(key + k, first_query, lane));
            accumulate<Real, HD>(gradients[0], ds, other[0], kRows);
        }
    }
};

// Multiplies a block's gradients by `factor` and rounds them as the kernels do when they store them.
template <class Real, int HD>
void round_rows(float* rows, float factor) {
    for (int i = 0; i < kRows * HD; i += kLanes) store(rows + i, rounded_to<Real>(load(rows + i) * factor));
}
template <int HD, class Real>
void store_rows(Real* to, size_t stride, const float* rows, int count) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < HD; i += kLanes) store(to + static_cast<size_t>(r) * stride + i, load(rows + r * HD + i));
}

// Output of a kernel's gradients, as Gradients and HeadPart in attention_backward.cu describe it.
template <class Out>
struct GradientTarget {
    Out *row, *transposed;
    float* parts;
    Fp8State* fp8;
    QuantizePass pass;
    int first_head, heads;
};

// Writes the gradients of a tile of tokens of one head, `tile` (rows, HD).
template <int HD, class Out>
void write_tile(const GradientTarget<Out>& to, const Shape& s, int side, int b, int h, int first_token,
                int tokens_of_tile, const float* tile, Tally& tally) {
    const size_t own = static_cast<size_t>(side * to.heads + h) * HD, tokens = static_cast<size_t>(s.B) * s.T;
    const size_t token = static_cast<size_t>(b) * s.T + first_token,
                 channel = static_cast<size_t>(to.first_head) * HD + own;
    const int rows = std::min(tokens_of_tile, s.T - first_token);
    if constexpr (std::is_same_v<Out, bf16>) {
        store_rows<HD>(to.row + token * s.stride() + channel, s.stride(), tile, rows);
    } else {
        quantize_rows<Out>({to.row ? to.row + token * s.stride() + channel : nullptr, s.stride(),
                            to.transposed ? to.transposed + own * tokens + token : nullptr, tokens},
                           tally, tile, HD, rows, HD, to.fp8->scale, to.pass);
        const int tiles = (s.T + tokens_of_tile - 1) / tokens_of_tile;
        const size_t part = static_cast<size_t>(b) * tiles + first_token / tokens_of_tile;
        // Threads take rows as far apart as ChunkOwner::rows_at_once in attention_quantize.cuh.
        constexpr int kApart = std::bit_floor(128u / (HD / 16));
        if (to.parts) sum_rows_apart(to.parts + part * s.stride() + channel, tile, HD, rows, HD, kApart);
    }
}

// The work of either BF16 kernel: a task computes kSides gradients (keys and values, or queries) of one or two tiles of
// tokens.
template <int HD, int kSides, class Out>
void write_gradients(const GradientTarget<Out>& to, const Shape& s, const BackwardInputs<bf16>& t, float scale) {
    constexpr int kTokens = std::max(owned_tokens(HD), kRows);
    for_each_block(s, to.heads, kTokens, [&](int b, int h, int first_token) {
        BackwardBlock<bf16, HD> block;
        alignas(64) float tile[kSides][kTokens * HD];
        for (int first = 0; first < kTokens && first_token + first < s.T; first += kRows) {
            if constexpr (kSides == 2)
                block.key_gradients(s, t, b, h, first_token + first);
            else
                block.query_gradients(s, t, b, h, first_token + first);
            for (int side = 0; side < kSides; side++) {
                round_rows<bf16, HD>(block.gradients[side], side == 0 ? scale : 1.0f);
                std::memcpy(tile[side] + first * HD, block.gradients[side], sizeof block.gradients[side]);
            }
        }
        Tally tally;
        for (int side = 0; side < kSides; side++)
            for (int first = 0; first < kTokens && first_token + first < s.T; first += owned_tokens(HD))
                write_tile<HD>(to, s, side, b, h, first_token + first, owned_tokens(HD), tile[side] + first * HD,
                               tally);
        if constexpr (!std::is_same_v<Out, bf16>)
            commit(to.fp8, tally,
                   b + h + first_token == 0 ? static_cast<size_t>(s.B) * s.T * kSides * to.heads * HD : 0, to.pass);
    });
}

}  // namespace

template <int HD>
void attention_delta(const Grid&, float* delta, const bf16* dout, const bf16* out, const bf16* out_low, size_t rows,
                     int T, int NH) {
#pragma omp parallel for schedule(static) if (rows > 256)
    for (size_t row = 0; row < rows; row++) {
        float sums[4] = {};  // one for each lane of a quad
        for (int i = 0; i < HD; i += 32)
            for (int e = 0; e < 8; e++)
                for (int lane = 0; lane < std::min(4, (HD - i) / 8); lane++) {
                    const size_t at = row * HD + static_cast<size_t>(i + lane * 8 + e);
                    sums[lane] += to_float(dout[at]) * (to_float(out[at]) + to_float(out_low[at]));
                }
        const size_t h = row % NH, t = row / NH % T, b = row / NH / T;
        delta[(b * NH + h) * T + t] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
}

template <int HD, class Out>
void attention_key_gradient(const Grid& grid, Out* dqkv, Out* transposed, float* parts, Fp8State* fp8, const bf16* dout,
                            const bf16* qkv, const float* lse, const float* delta, int T, int NH, int NKV, int,
                            float scale, int window, QuantizePass pass, const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    write_gradients<HD, 2, Out>({dqkv, transposed, parts, fp8, pass, NH, NKV}, s,
                                {dout, qkv, lse, delta, scale * kLog2E}, scale);
}

template <int HD, class Out>
void attention_query_gradient(const Grid& grid, Out* dqkv, Out* transposed, float* parts, Fp8State* fp8,
                              const bf16* dout, const bf16* qkv, const float* lse, const float* delta, int T, int NH,
                              int NKV, int, float scale, int window, QuantizePass pass, const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    write_gradients<HD, 1, Out>({dqkv, transposed, parts, fp8, pass, 0, NH}, s, {dout, qkv, lse, delta, scale * kLog2E},
                                scale);
}

template <int HD>
void attention_key_gradient_fp32(const Grid& grid, float* dqkv, const float* dout, const float* qkv, const float* lse,
                                 const float* delta, int T, int NH, int NKV, float scale, int window,
                                 const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    for_each_block(s, NKV, kRows, [&](int b, int kv, int first_key) {
        BackwardBlock<float, HD> block;
        block.key_gradients(s, {dout, qkv, lse, delta, scale * kLog2E}, b, kv, first_key);
        const HeadOffsets at(s, b, 0, kv);
        const int rows = std::min(kRows, T - first_key);
        round_rows<float, HD>(block.gradients[0], scale);
        store_rows<HD>(dqkv + at.key + first_key * s.stride(), s.stride(), block.gradients[0], rows);
        store_rows<HD>(dqkv + at.value + first_key * s.stride(), s.stride(), block.gradients[1], rows);
    });
}

template <int HD>
void attention_query_gradient_fp32(const Grid& grid, float* dqkv, float* delta, const float* dout, const float* qkv,
                                   const float* out, const float* lse, int T, int NH, int NKV, float scale, int window,
                                   const int* documents) {
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    for_each_block(s, NH, kRows, [&](int b, int h, int first_query) {
        const HeadOffsets at(s, b, h, h / s.group());
        const int rows = std::min(kRows, T - first_query);
        for (int r = 0; r < rows; r++) {
            const size_t row = at.out + static_cast<size_t>(first_query + r) * s.width();
            delta[at.statistics + first_query + r] = row_dot<HD>(dout + row, out + row);
        }
        BackwardBlock<float, HD> block;
        block.query_gradients(s, {dout, qkv, lse, delta, scale * kLog2E}, b, h, first_query);
        round_rows<float, HD>(block.gradients[0], scale);
        store_rows<HD>(dqkv + at.query + first_query * s.stride(), s.stride(), block.gradients[0], rows);
    });
}

template <class Real, int HD>
void attention_max_logits(const Grid& grid, float* maxima, const Real* qkv, int T, int NH, int NKV, float scale,
                          int window, const int* documents) {
    constexpr int kKeys = 64;
    const Shape s{static_cast<int>(grid.grid.z), T, NH, NKV, HD, window, documents};
    for_each_block(s, NH, kRows, [&](int b, int h, int first_query) {
        const HeadOffsets at(s, b, h, h / s.group());
        SeenKeys seen(s, b, first_query);
        for (int i = T - first_query; i < kRows; i++) seen.first[i] = INT_MAX;  // rows after the sequence
        alignas(64) float queries[HD * kRows], keys[kKeys * HD], scores[kKeys * kRows];
        load_transposed<HD>(queries, qkv + at.query + first_query * s.stride(), s.stride(), T - first_query);
        const float minus_infinity = float_from_bits(kFloatInfinityBits | 0x80000000u);
        Floats best = splat(minus_infinity);
        const int end = std::min(first_query + kRows, T);
        for (int key = seen.first[0] / kKeys * kKeys; key < end; key += kKeys) {
            load_rows<HD>(keys, qkv + at.key + key * s.stride(), s.stride(), kKeys, T - key);
            multiply<Real, HD>(scores, keys, queries, kKeys);
            for (int k = 0; k < kKeys; k++)
                for (int lane = 0; lane < kRows; lane += kLanes) {
                    const Ints sees = seen.see(key + k, first_query, lane);
                    best = max_of(best, sees ? load(scores + k * kRows + lane) : splat(minus_infinity));
                }
        }
        float largest = minus_infinity;
        for (int lane = 0; lane < kLanes; lane++) largest = std::max(largest, best[lane]);
#pragma omp critical(llmc_attention_max_logits)
        if (!(maxima[h] >= largest * scale)) maxima[h] = largest * scale;  // at first it is no number
    });
}

#define LLMC_INSTANTIATE_GRADIENTS(HD, Out)            \
    LLMC_INSTANTIATE(attention_key_gradient<HD, Out>); \
    LLMC_INSTANTIATE(attention_query_gradient<HD, Out>);
#define LLMC_INSTANTIATE_HEAD(HD)                        \
    LLMC_INSTANTIATE(attention_forward<HD>);             \
    LLMC_INSTANTIATE(attention_forward_fp32<HD>);        \
    LLMC_INSTANTIATE(attention_decode<HD>);              \
    LLMC_INSTANTIATE(attention_decode_fp32<HD>);         \
    LLMC_INSTANTIATE(attention_delta<HD>);               \
    LLMC_INSTANTIATE(attention_key_gradient_fp32<HD>);   \
    LLMC_INSTANTIATE(attention_query_gradient_fp32<HD>); \
    LLMC_INSTANTIATE(attention_max_logits<bf16, HD>);    \
    LLMC_INSTANTIATE(attention_max_logits<float, HD>);   \
    LLMC_INSTANTIATE_GRADIENTS(HD, bf16) LLMC_INSTANTIATE_GRADIENTS(HD, e5m2)
LLMC_FOR_HEAD_DIMENSIONS(LLMC_INSTANTIATE_HEAD)
#undef LLMC_INSTANTIATE_HEAD
#undef LLMC_INSTANTIATE_GRADIENTS

}  // namespace llmc::host
