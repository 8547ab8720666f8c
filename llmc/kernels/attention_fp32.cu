// Causal attention in FP32, forward and backward: the reference precision, in plain loops; see attention.h.
//
// Four or eight lanes own a row (attention_quads.cuh), and a warp walks over the other dimension with its rows at once.
#include "llmc/kernels/attention_quads.cuh"
#include "llmc/kernels/host/loops.h"

namespace llmc {
namespace attention {

constexpr int kThreads = 128;
template <int HD>
constexpr int kBlockRows = kThreads / kRowLanes<HD>;

// Pointers and offsets of query head h and of head kv of keys and values in qkv, and of head h in (B, T, NH, HD)
// tensors.
template <int HD>
struct HeadRows {
    size_t query, key, value, out, statistics;  // offsets of the head's first row
    size_t qkv_stride, out_stride;

    LLMC_DEVICE HeadRows(size_t h, size_t kv, int T, int NH, int NKV) {
        const size_t b = blockIdx.z;
        out_stride = static_cast<size_t>(NH) * HD;
        qkv_stride = static_cast<size_t>(NH + 2 * NKV) * HD;
        query = b * T * qkv_stride + h * HD;
        key = b * T * qkv_stride + (NH + kv) * HD;
        value = key + static_cast<size_t>(NKV) * HD;
        out = b * T * out_stride + h * HD;
        statistics = (b * NH + h) * T;
    }
};

template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(kThreads)
    attention_forward_fp32_kernel(float* __restrict__ out, float* __restrict__ lse, const float* __restrict__ qkv,
                                  int T, int NH, int NKV, float scale_log2, int window,
                                  const int* __restrict__ documents) {
    const HeadRows<HD> head(blockIdx.y, blockIdx.y / (NH / NKV), T, NH, NKV);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // longest first
    const int row = block * kBlockRows<HD> + static_cast<int>(threadIdx.x / kRowLanes<HD>);
    const int last_row = last_row_of_warp<HD>(row) < T ? last_row_of_warp<HD>(row) : T - 1;
    const float *keys = qkv + head.key, *values = qkv + head.value;

    const Windows<kDocuments> windows{window, documents, static_cast<int>(blockIdx.z) * T, T};
    QueryRow<HD> state;
    state.attend(qkv + head.query + static_cast<size_t>(row < T ? row : T - 1) * head.qkv_stride, keys, values,
                 head.qkv_stride, row, first_row_of_warp<HD>(row), last_row, scale_log2, windows);
    if (row >= T) return;
    state.output.scale(1.0f / state.sum);
    state.output.store(out + head.out + static_cast<size_t>(row) * head.out_stride);
    if (threadIdx.x % kRowLanes<HD> == 0) lse[head.statistics + row] = state.maximum / kLog2E + logf(state.sum);
}

// Computes dQ, and delta with it. The lanes of a row own a query.
template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(kThreads)
    attention_query_gradient_fp32_kernel(float* __restrict__ dqkv, float* __restrict__ delta,
                                         const float* __restrict__ dout, const float* __restrict__ qkv,
                                         const float* __restrict__ out, const float* __restrict__ lse, int T, int NH,
                                         int NKV, float scale, int window, const int* __restrict__ documents) {
    constexpr int keys_at_once = HD > 64 ? 2 : 4;  // keys and values stay in registers between two uses
    const HeadRows<HD> head(blockIdx.y, blockIdx.y / (NH / NKV), T, NH, NKV);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // longest first
    const int row = block * kBlockRows<HD> + static_cast<int>(threadIdx.x / kRowLanes<HD>);
    const int last_row = last_row_of_warp<HD>(row) < T ? last_row_of_warp<HD>(row) : T - 1;
    const size_t own = static_cast<size_t>(row < T ? row : T - 1);
    const float *keys = qkv + head.key, *values = qkv + head.value;

    RowShare<HD> query, gradient, dq;
    query.load(qkv + head.query + own * head.qkv_stride);
    gradient.load(dout + head.out + own * head.out_stride);
    dq.load(out + head.out + own * head.out_stride);
    float row_delta[1] = {gradient.dot(dq)};
    group_sum_each<kRowLanes<HD>>(row_delta);
    dq.clear();
    const float scale_log2 = scale * kLog2E, lse_log2 = lse[head.statistics + own] * kLog2E;
    const Windows<kDocuments> windows{window, documents, static_cast<int>(blockIdx.z) * T, T};
    const int first_row = first_row_of_warp<HD>(row), row_window = windows(row);
    for (int first = first_seen_key(first_row, windows(first_row), keys_at_once); first <= last_row;
         first += keys_at_once) {
        float products[2 * keys_at_once];  // scores, then dP
        LLMC_UNROLL
        for (int j = 0; j < keys_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1) * head.qkv_stride;
            RowShare<HD> other;
            other.load(keys + at);
            products[j] = query.dot(other);
            other.load(values + at);
            products[keys_at_once + j] = gradient.dot(other);
        }
        group_sum_each<kRowLanes<HD>>(products);
        LLMC_UNROLL
        for (int j = 0; j < keys_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1) * head.qkv_stride;
            const bool visible = first + j <= row && row - first - j < row_window;
            const float p = visible ? exp2_fast(products[j] * scale_log2 - lse_log2) : 0.0f;
            RowShare<HD> key;
            key.load(keys + at);
            dq.add(p * (products[keys_at_once + j] - row_delta[0]), key);
        }
    }
    if (row >= T) return;
    dq.scale(scale);
    dq.store(dqkv + head.query + own * head.qkv_stride);
    if (threadIdx.x % kRowLanes<HD> == 0) delta[head.statistics + own] = row_delta[0];
}

// Computes dK and dV. The lanes of a row own a key, and go through the queries of its group head by head.
template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(kThreads)
    attention_key_gradient_fp32_kernel(float* __restrict__ dqkv, const float* __restrict__ dout,
                                       const float* __restrict__ qkv, const float* __restrict__ lse,
                                       const float* __restrict__ delta, int T, int NH, int NKV, float scale, int window,
                                       const int* __restrict__ documents) {
    constexpr int queries_at_once = HD > 64 ? 1 : 4;  // queries and dout stay in registers between two uses
    const int group = NH / NKV,
              row = static_cast<int>(blockIdx.x) * kBlockRows<HD> + static_cast<int>(threadIdx.x / kRowLanes<HD>);
    const size_t own = static_cast<size_t>(row < T ? row : T - 1), kv = blockIdx.y;
    const HeadRows<HD> first_head(kv * group, kv, T, NH, NKV);

    RowShare<HD> key, value, dk, dv;
    key.load(qkv + first_head.key + own * first_head.qkv_stride);
    value.load(qkv + first_head.value + own * first_head.qkv_stride);
    dk.clear();
    dv.clear();
    const float scale_log2 = scale * kLog2E;
    const int last_key = last_row_of_warp<HD>(row), end = T - window > last_key ? last_key + window : T;
    const Windows<kDocuments> windows{window, documents, static_cast<int>(blockIdx.z) * T, T};
    for (int h = 0; h < group; h++) {
        const HeadRows<HD> head(kv * group + h, kv, T, NH, NKV);
        const float *queries = qkv + head.query, *gradients = dout + head.out;
        for (int first = first_row_of_warp<HD>(row); first < end; first += queries_at_once) {
            if (kDocuments && first - last_key >= windows(first)) break;  // no later query sees these keys
            float products[2 * queries_at_once];                          // scores, then dP
            LLMC_UNROLL
            for (int j = 0; j < queries_at_once; j++) {
                const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1);
                RowShare<HD> other;
                other.load(queries + at * head.qkv_stride);
                products[j] = key.dot(other);
                other.load(gradients + at * head.out_stride);
                products[queries_at_once + j] = value.dot(other);
            }
            group_sum_each<kRowLanes<HD>>(products);
            LLMC_UNROLL
            for (int j = 0; j < queries_at_once; j++) {
                const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1);
                const bool visible = first + j < T && first + j >= row && first + j - row < windows(first + j);
                const float p =
                    visible ? exp2_fast(products[j] * scale_log2 - lse[head.statistics + at] * kLog2E) : 0.0f;
                RowShare<HD> other;
                other.load(gradients + at * head.out_stride);
                dv.add(p, other);
                other.load(queries + at * head.qkv_stride);
                dk.add(p * (products[queries_at_once + j] - delta[head.statistics + at]), other);
            }
        }
    }
    if (row >= T) return;
    dk.scale(scale);
    dk.store(dqkv + first_head.key + own * first_head.qkv_stride);
    dv.store(dqkv + first_head.value + own * first_head.qkv_stride);
}

template <int HD>
static dim3 fp32_grid(int B, int T, int heads) {
    return dim3(div_up(T, kBlockRows<HD>), heads, B);
}

}  // namespace attention

template <>
void attention_forward<float>(float* result, float*, float* lse, const float* qkv, int B, int T,
                              const AttentionHeads& heads, unsigned*, stream_t stream, const int* documents) {
    using namespace attention;
    check_shape(B, T, heads);
    const size_t n = elements(B, T, heads.NH, heads.HD);
    // Dividing rounds HD^-0.5 once; multiplying would round twice.
    const float scale_log2 = kLog2E / std::sqrt(static_cast<float>(heads.HD));
    with_head_dimension(heads.HD, documents, [&]<int HD, bool kDocuments>() {
        host::launch_or_loop<attention_forward_fp32_kernel<HD, kDocuments>, host::attention_forward_fp32<HD>>(
            {fp32_grid<HD>(B, T, heads.NH), dim3(kThreads), 0, stream}, out(result, n), out(lse, n / HD),
            in(qkv, elements(B, T, heads.rows(), HD)), T, heads.NH, heads.NKV, scale_log2, heads.window_in(T),
            in(documents, tokens(B, T)));
    });
}

template <>
void attention_backward<float>(float* dqkv, float* delta, const float* dout, const float* qkv, const float* result,
                               const float*, const float* lse, int B, int T, const AttentionHeads& heads, unsigned*,
                               stream_t stream, const int* documents) {
    using namespace attention;
    check_shape(B, T, heads);
    const size_t n = elements(B, T, heads.NH, heads.HD), whole = elements(B, T, heads.rows(), heads.HD);
    const size_t rows = n / heads.HD;
    const float scale = heads.softmax_scale();
    with_head_dimension(heads.HD, documents, [&]<int HD, bool kDocuments>() {
        host::launch_or_loop<attention_query_gradient_fp32_kernel<HD, kDocuments>,
                             host::attention_query_gradient_fp32<HD>>(
            {fp32_grid<HD>(B, T, heads.NH), dim3(kThreads), 0, stream}, out(dqkv, whole), out(delta, rows), in(dout, n),
            in(qkv, whole), in(result, n), in(lse, rows), T, heads.NH, heads.NKV, scale, heads.window_in(T),
            in(documents, tokens(B, T)));
        host::launch_or_loop<attention_key_gradient_fp32_kernel<HD, kDocuments>, host::attention_key_gradient_fp32<HD>>(
            {fp32_grid<HD>(B, T, heads.NKV), dim3(kThreads), 0, stream}, out(dqkv, whole), in(dout, n), in(qkv, whole),
            in(lse, rows), in(delta, rows), T, heads.NH, heads.NKV, scale, heads.window_in(T),
            in(documents, tokens(B, T)));
    });
}

}  // namespace llmc
