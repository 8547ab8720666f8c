// Causal attention in FP32, forward and backward: the reference precision, in plain loops; see attention.h.
//
// Quads own rows (attention_quads.cuh); a warp walks over the other dimension with eight rows at once.
#include "llmc/kernels/attention_quads.cuh"

namespace llmc {
namespace attention {

constexpr int kThreads = 128;
constexpr int kBlockRows = kThreads / 4;

// One head of qkv and of (B, T, NH, HD) tensors.
template <int HD>
struct HeadRows {
    size_t qkv, out, statistics;  // offsets of the head's first row
    size_t qkv_stride, out_stride;

    LLMC_DEVICE HeadRows(int T, int NH) {
        const size_t b = blockIdx.z, h = blockIdx.y;
        out_stride = static_cast<size_t>(NH) * HD;
        qkv_stride = 3 * out_stride;
        out = b * T * out_stride + h * HD;
        qkv = b * T * qkv_stride + h * HD;
        statistics = (b * NH + h) * T;
    }
};

template <int HD>
static __global__ void __launch_bounds__(kThreads)
    attention_forward_fp32_kernel(float* __restrict__ out, float* __restrict__ lse, const float* __restrict__ qkv,
                                  int T, int NH, float scale_log2) {
    const HeadRows<HD> head(T, NH);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // longest first
    const int row = block * kBlockRows + static_cast<int>(threadIdx.x >> 2);
    const int last_row = (row | (kWarpRows - 1)) < T ? row | (kWarpRows - 1) : T - 1;  // of the warp
    const float* queries = qkv + head.qkv;
    const float* keys = queries + head.out_stride;
    const float* values = keys + head.out_stride;

    QuadRow<HD> state;
    state.attend(queries + static_cast<size_t>(row < T ? row : T - 1) * head.qkv_stride, keys, values, head.qkv_stride,
                 row, last_row, T, scale_log2);
    if (row >= T) return;
    state.output.scale(1.0f / state.sum);
    state.output.store(out + head.out + static_cast<size_t>(row) * head.out_stride);
    if ((threadIdx.x & 3) == 0) lse[head.statistics + row] = state.maximum / kLog2E + logf(state.sum);
}

// dQ, and delta on the way. A quad owns a query.
template <int HD>
static __global__ void __launch_bounds__(kThreads)
    attention_query_gradient_fp32_kernel(float* __restrict__ dqkv, float* __restrict__ delta,
                                         const float* __restrict__ dout, const float* __restrict__ qkv,
                                         const float* __restrict__ out, const float* __restrict__ lse, int T, int NH,
                                         float scale) {
    constexpr int keys_at_once = HD == 128 ? 2 : 4;  // they stay in registers between their two uses
    const HeadRows<HD> head(T, NH);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // longest first
    const int row = block * kBlockRows + static_cast<int>(threadIdx.x >> 2);
    const int last_row = (row | (kWarpRows - 1)) < T ? row | (kWarpRows - 1) : T - 1;  // of the warp
    const size_t own = static_cast<size_t>(row < T ? row : T - 1);
    const float* queries = qkv + head.qkv;
    const float* keys = queries + head.out_stride;
    const float* values = keys + head.out_stride;

    Quarter<HD> query, gradient, dq;
    query.load(queries + own * head.qkv_stride);
    gradient.load(dout + head.out + own * head.out_stride);
    dq.load(out + head.out + own * head.out_stride);
    float row_delta[1] = {gradient.dot(dq)};
    quad_sum_each(row_delta);
    dq.clear();
    const float scale_log2 = scale * kLog2E, lse_log2 = lse[head.statistics + own] * kLog2E;
    for (int first = 0; first <= last_row; first += keys_at_once) {
        float products[2 * keys_at_once];  // scores, then dP
        LLMC_UNROLL
        for (int j = 0; j < keys_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1) * head.qkv_stride;
            Quarter<HD> other;
            other.load(keys + at);
            products[j] = query.dot(other);
            other.load(values + at);
            products[keys_at_once + j] = gradient.dot(other);
        }
        quad_sum_each(products);
        LLMC_UNROLL
        for (int j = 0; j < keys_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1) * head.qkv_stride;
            const float p = first + j <= row ? exp2_fast(products[j] * scale_log2 - lse_log2) : 0.0f;
            Quarter<HD> key;
            key.load(keys + at);
            dq.add(p * (products[keys_at_once + j] - row_delta[0]), key);
        }
    }
    if (row >= T) return;
    dq.scale(scale);
    dq.store(dqkv + head.qkv + own * head.qkv_stride);
    if ((threadIdx.x & 3) == 0) delta[head.statistics + own] = row_delta[0];
}

// dK and dV. A quad owns a key.
template <int HD>
static __global__ void __launch_bounds__(kThreads)
    attention_key_gradient_fp32_kernel(float* __restrict__ dqkv, const float* __restrict__ dout,
                                       const float* __restrict__ qkv, const float* __restrict__ lse,
                                       const float* __restrict__ delta, int T, int NH, float scale) {
    constexpr int queries_at_once = HD == 128 ? 1 : 4;  // their rows and dout's stay in registers between two uses
    const HeadRows<HD> head(T, NH);
    const int row = static_cast<int>(blockIdx.x) * kBlockRows + static_cast<int>(threadIdx.x >> 2);
    const size_t own = static_cast<size_t>(row < T ? row : T - 1);
    const float* queries = qkv + head.qkv;
    const float* gradients = dout + head.out;

    Quarter<HD> key, value, dk, dv;
    key.load(queries + head.out_stride + own * head.qkv_stride);
    value.load(queries + 2 * head.out_stride + own * head.qkv_stride);
    dk.clear();
    dv.clear();
    const float scale_log2 = scale * kLog2E;
    for (int first = row & ~(kWarpRows - 1); first < T; first += queries_at_once) {  // from the warp's first row on
        float products[2 * queries_at_once];                                         // scores, then dP
        LLMC_UNROLL
        for (int j = 0; j < queries_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1);
            Quarter<HD> other;
            other.load(queries + at * head.qkv_stride);
            products[j] = key.dot(other);
            other.load(gradients + at * head.out_stride);
            products[queries_at_once + j] = value.dot(other);
        }
        quad_sum_each(products);
        LLMC_UNROLL
        for (int j = 0; j < queries_at_once; j++) {
            const size_t at = static_cast<size_t>(first + j < T ? first + j : T - 1);
            const bool visible = first + j < T && first + j >= row;
            const float p = visible ? exp2_fast(products[j] * scale_log2 - lse[head.statistics + at] * kLog2E) : 0.0f;
            Quarter<HD> other;
            other.load(gradients + at * head.out_stride);
            dv.add(p, other);
            other.load(queries + at * head.qkv_stride);
            dk.add(p * (products[queries_at_once + j] - delta[head.statistics + at]), other);
        }
    }
    if (row >= T) return;
    dk.scale(scale);
    dk.store(dqkv + head.qkv + head.out_stride + own * head.qkv_stride);
    dv.store(dqkv + head.qkv + 2 * head.out_stride + own * head.qkv_stride);
}

static dim3 fp32_grid(int B, int T, int NH) {
    return dim3(static_cast<unsigned>(div_up(T, kBlockRows)), static_cast<unsigned>(NH), static_cast<unsigned>(B));
}

template <int HD>
static void launch_forward_fp32(float* result, float* lse, const float* qkv, int B, int T, int NH, stream_t stream) {
    const size_t n = elements(B, T, NH, HD);
    launch<attention_forward_fp32_kernel<HD>>({fp32_grid(B, T, NH), dim3(kThreads), 0, stream}, out(result, n),
                                              out(lse, n / HD), in(qkv, 3 * n), T, NH,
                                              kLog2E / std::sqrt(static_cast<float>(HD)));
}

template <int HD>
static void launch_backward_fp32(float* dqkv, float* delta, const float* dout, const float* qkv, const float* result,
                                 const float* lse, int B, int T, int NH, stream_t stream) {
    const size_t n = elements(B, T, NH, HD), rows = n / HD;
    const float scale = 1.0f / std::sqrt(static_cast<float>(HD));
    launch<attention_query_gradient_fp32_kernel<HD>>({fp32_grid(B, T, NH), dim3(kThreads), 0, stream}, out(dqkv, 3 * n),
                                                     out(delta, rows), in(dout, n), in(qkv, 3 * n), in(result, n),
                                                     in(lse, rows), T, NH, scale);
    launch<attention_key_gradient_fp32_kernel<HD>>({fp32_grid(B, T, NH), dim3(kThreads), 0, stream}, out(dqkv, 3 * n),
                                                   in(dout, n), in(qkv, 3 * n), in(lse, rows), in(delta, rows), T, NH,
                                                   scale);
}

}  // namespace attention

template <>
void attention_forward<float>(float* out, float*, float* lse, const float* qkv, int B, int T, int NH, int HD,
                              stream_t stream) {
    attention::check_shape(B, T, NH, HD);
    if (HD == 32)
        attention::launch_forward_fp32<32>(out, lse, qkv, B, T, NH, stream);
    else if (HD == 64)
        attention::launch_forward_fp32<64>(out, lse, qkv, B, T, NH, stream);
    else
        attention::launch_forward_fp32<128>(out, lse, qkv, B, T, NH, stream);
}

template <>
void attention_backward<float>(float* dqkv, float* delta, const float* dout, const float* qkv, const float* out,
                               const float*, const float* lse, int B, int T, int NH, int HD, stream_t stream) {
    attention::check_shape(B, T, NH, HD);
    if (HD == 32)
        attention::launch_backward_fp32<32>(dqkv, delta, dout, qkv, out, lse, B, T, NH, stream);
    else if (HD == 64)
        attention::launch_backward_fp32<64>(dqkv, delta, dout, qkv, out, lse, B, T, NH, stream);
    else
        attention::launch_backward_fp32<128>(dqkv, delta, dout, qkv, out, lse, B, T, NH, stream);
}

}  // namespace llmc
