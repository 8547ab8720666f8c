// The largest logit of every head, in BF16 on mma.sync and in FP32; see attention.h.
#include "llmc/kernels/attention_quads.cuh"
#include "llmc/kernels/attention_tiles.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {
namespace attention {

constexpr int kLogitThreads = 128, kLogitRows = 64;
template <class Real, int HD>
constexpr int kLogitQueries = sizeof(Real) == 2 ? kLogitRows : kLogitThreads / kRowLanes<HD>;  // of a block

// Raises *maximum to the warp's largest value. The bits of positive floats order like signed integers, and those of
// negative floats in reverse as unsigned integers. All bits set is the smallest value in both orders.
LLMC_DEVICE void raise_maximum(float* maximum, float value) {
    const uint32_t bits = float_bits(warp_max(value));
    if (threadIdx.x % 32 != 0) return;
    if (bits >> 31)
        atomicMin(reinterpret_cast<uint32_t*>(maximum), bits);
    else
        atomicMax(reinterpret_cast<int*>(maximum), static_cast<int>(bits));
}

// A block owns 64 queries of a head, a warp 16 of them, and walks over the keys they see, 64 at a time. Every tile is
// masked, which the tensor cores hide.
template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(kLogitThreads)
    attention_max_logits_kernel(float* __restrict__ maxima, const bf16* __restrict__ qkv, int T, int NH, int NKV,
                                float scale, int window, const int* __restrict__ documents) {
    constexpr int tile_size = kLogitRows * kStride<HD>;
    LLMC_DYNAMIC_SHARED(bf16, shared);  // two tiles of keys; the second first holds the queries
    const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kLogitRows;  // longest first
    const int query = first_query + warp * 16 + (lane >> 2);                            // and query + 8
    const Windows<kDocuments> windows{window, documents, b * T, T};
    const int own_windows[2] = {query < T ? windows(query) : 0, query + 8 < T ? windows(query + 8) : 0};
    const int begin = first_seen_key(first_query, windows(first_query), kLogitRows);
    const int end = first_query + kLogitRows < T ? first_query + kLogitRows : T;
    const Head head = head_of<HD>(qkv, b, h, h / (NH / NKV), T, NH, NKV);

    load_tile<HD, kLogitRows, kLogitThreads>(shared + tile_size, head.query, head.stride, first_query, T);
    load_tile<HD, kLogitRows, kLogitThreads>(shared, head.key, head.stride, begin, T);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    uint32_t queries[1][HD / 16][4];
    load_fragments<HD>(queries, shared + tile_size + warp * 16 * kStride<HD>);
    float maximum = float_from_bits(0xff800000u);
    for (int key = begin, stage = 0; key < end; key += kLogitRows, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        if (key + kLogitRows < end) {
            load_tile<HD, kLogitRows, kLogitThreads>(shared + (stage ^ 1) * tile_size, head.key, head.stride,
                                                     key + kLogitRows, T);
            cp_async_commit();
        }
        float scores[1][kLogitRows / 8][4];
        multiply<HD>(scores, queries, shared + stage * tile_size);
        const int diagonal = query - key - (lane & 3) * 2;
        LLMC_UNROLL
        for (int j = 0; j < kLogitRows / 8; j++) {
            for (int i = 0; i < 4; i++)
                if (in_window(diagonal + 8 * (i >> 1) - 8 * j - (i & 1), own_windows[i >> 1]))
                    maximum = max_float(maximum, scores[0][j][i]);
        }
    }
    raise_maximum(maxima + h, maximum * scale);
}

// The lanes of a row own a query.
template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(kLogitThreads)
    attention_max_logits_fp32_kernel(float* __restrict__ maxima, const float* __restrict__ qkv, int T, int NH, int NKV,
                                     float scale, int window, const int* __restrict__ documents) {
    constexpr int keys_at_once = 8;
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // longest first
    const int row = block * kLogitQueries<float, HD> + static_cast<int>(threadIdx.x / kRowLanes<HD>);
    const int first_row = first_row_of_warp<HD>(row);
    const int last_row = last_row_of_warp<HD>(row) < T ? last_row_of_warp<HD>(row) : T - 1;
    const size_t stride = static_cast<size_t>(NH + 2 * NKV) * HD;
    const float* const sequence = qkv + static_cast<size_t>(b) * T * stride;
    const float* const keys = sequence + static_cast<size_t>(NH + h / (NH / NKV)) * HD;
    const Windows<kDocuments> windows{window, documents, b * T, T};
    const int own_window = row < T ? windows(row) : 0;
    RowShare<HD> query;
    query.load(sequence + static_cast<size_t>(row < T ? row : T - 1) * stride + static_cast<size_t>(h) * HD);
    float maximum = float_from_bits(0xff800000u);
    for (int first = first_seen_key(first_row, windows(first_row), keys_at_once); first <= last_row;
         first += keys_at_once) {
        float scores[keys_at_once];
        score_keys(scores, query, keys, stride, first, T);
        LLMC_UNROLL
        for (int j = 0; j < keys_at_once; j++)
            if (in_window(row - first - j, own_window)) maximum = max_float(maximum, scores[j]);
    }
    raise_maximum(maxima + h, maximum * scale);
}

template <auto kernel, int HD, class Real>
static void launch_max_logits(float* maxima, const Real* qkv, int B, int T, const AttentionHeads& heads,
                              stream_t stream, const int* documents) {
    const dim3 grid(div_up(T, kLogitQueries<Real, HD>), heads.NH, B);
    const size_t shared = sizeof(Real) == 2 ? 2 * kLogitRows * kRowBytes<HD> : 0;
    host::launch_or_loop<kernel, host::attention_max_logits<Real, HD>>(
        {grid, dim3(kLogitThreads), shared, stream}, inout(maxima, heads.NH), in(qkv, elements(B, T, heads.rows(), HD)),
        T, heads.NH, heads.NKV, heads.softmax_scale(), heads.window_in(T), in(documents, tokens(B, T)));
}

}  // namespace attention

template <class Real>
void attention_max_logits(float* maxima, const Real* qkv, int B, int T, const AttentionHeads& heads, stream_t stream,
                          const int* documents) {
    using namespace attention;
    check_shape(B, T, heads);
    with_head_dimension(heads.HD, documents, [&]<int HD, bool kDocuments>() {
        if constexpr (sizeof(Real) == 2)
            launch_max_logits<attention_max_logits_kernel<HD, kDocuments>, HD>(maxima, qkv, B, T, heads, stream,
                                                                               documents);
        else
            launch_max_logits<attention_max_logits_fp32_kernel<HD, kDocuments>, HD>(maxima, qkv, B, T, heads, stream,
                                                                                    documents);
    });
}
LLMC_INSTANTIATE_BOTH(attention_max_logits, float, bf16);

}  // namespace llmc
