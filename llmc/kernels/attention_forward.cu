// Causal flash attention forward in BF16 on mma.sync (sm_80 and later); see attention.h.
#include "llmc/device/runtime.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/attention_quantize.cuh"
#include "llmc/kernels/attention_softmax.cuh"
#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/host/loops.h"

namespace llmc {
namespace attention {

// A block owns 128 queries of a head and walks over the keys they see, 64 at a time; 64 queries and 32 keys for HD 256.
// A warp owns 16 or 32 queries. With 32, keys and values read from shared memory are used twice, but beyond HD 64 the
// accumulators leave no registers for that.
template <int HD>
struct ForwardTiles {
    static constexpr int fragments = HD > 64 ? 1 : 2;
    static constexpr int warps = HD <= 64 || HD == 256 ? 4 : 8;
    static constexpr int threads = 32 * warps;
    static constexpr int warp_rows = 16 * fragments;
    static constexpr int query_rows = warps * warp_rows;
    static constexpr int key_rows = kKeyRows<HD>;
    // Shared memory, in rows of a tile: [stage 0: keys, values] [stage 1: keys, values]. Before the loop stage 1 holds
    // the queries. After it stage 0 holds out and stage 1 out_low, on their way to memory, and stage 0 then the codes.
    // With documents, the queries' windows lie after the stages.
    static constexpr int stage_rows = 2 * key_rows;
    static constexpr size_t shared_bytes = 2 * stage_rows * kRowBytes<HD>;
    static_assert(query_rows == stage_rows);
};

// With `fp8` the output also goes to `row` and `transposed`.
template <int HD, bool kDocuments>
static __global__ void __launch_bounds__(ForwardTiles<HD>::threads)
    attention_forward_kernel(bf16* __restrict__ out, bf16* __restrict__ out_low, float* __restrict__ lse,
                             const bf16* __restrict__ qkv, e4m3* __restrict__ row, e4m3* __restrict__ transposed,
                             Fp8State* __restrict__ fp8, int T, int NH, int NKV, float scale, int window,
                             QuantizePass pass, const int* __restrict__ documents) {
    using Tiles = ForwardTiles<HD>;
    constexpr int fragments = Tiles::fragments, key_rows = Tiles::key_rows, threads = Tiles::threads;
    constexpr int stage_size = Tiles::stage_rows * kStride<HD>;
    LLMC_DYNAMIC_SHARED(bf16, shared);

    const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::query_rows;  // longest first
    const int warp_query = first_query + warp * Tiles::warp_rows;
    const Windows<kDocuments> windows{window, documents, b * T, T};
    const RowWindows<kDocuments> warp_windows =
        row_windows<Tiles::query_rows, threads>(reinterpret_cast<int*>(shared + 2 * stage_size), windows, [&](int row) {
            return windows(first_query + row);
        }).from(warp * Tiles::warp_rows);
    const int begin = first_seen_key(first_query, windows(first_query), key_rows);
    const Head head = head_of<HD>(qkv, b, h, h / (NH / NKV), T, NH, NKV);

    // Load: queries into registers through stage 1, and the first keys and values into stage 0.
    load_tile<HD, Tiles::query_rows, threads>(shared + stage_size, head.query, head.stride, first_query, T);
    load_tile<HD, key_rows, threads>(shared, head.key, head.stride, begin, T);
    load_tile<HD, key_rows, threads>(shared + key_rows * kStride<HD>, head.value, head.stride, begin, T);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    ForwardState<HD, fragments> state;
    load_fragments<HD>(state.query, shared + stage_size + warp * Tiles::warp_rows * kStride<HD>);
    set_zero(state.output);
    LLMC_UNROLL
    for (int row = 0; row < 2 * fragments; row++) {
        state.maximum[row] = float_from_bits(0xff800000u);
        state.sum[row] = 0.0f;
    }

    const float scale_log2 = scale * kLog2E;
    const int seen_keys = first_query + Tiles::query_rows < T ? first_query + Tiles::query_rows : T;
    const int tiles = (seen_keys - begin + key_rows - 1) / key_rows;
    for (int tile = 0; tile < tiles; tile++) {
        // Load: this tile has arrived for all threads, and all are done with the other stage, which is filled next.
        cp_async_wait<0>();
        __syncthreads();
        const int first_key = begin + tile * key_rows, last_key = first_key + key_rows - 1;
        const bf16* stage = shared + (tile & 1) * stage_size;
        if (tile + 1 < tiles) {
            bf16* next = shared + (~tile & 1) * stage_size;
            load_tile<HD, key_rows, threads>(next, head.key, head.stride, first_key + key_rows, T);
            load_tile<HD, key_rows, threads>(next + key_rows * kStride<HD>, head.value, head.stride,
                                             first_key + key_rows, T);
            cp_async_commit();
        }
        // Multiply, softmax, accumulate. Only tiles that cross the diagonal or a window's edge are masked. The upper
        // warps of a block skip a tile beyond the diagonal, the lower ones a tile before the window.
        const int last_query = warp_query + Tiles::warp_rows - 1;
        if (warp_query >= T || first_key > last_query ||
            warp_query - last_key >= (kDocuments ? warp_windows[0] : window))
            continue;
        const int diagonal = warp_query + (lane >> 2) - first_key - (lane & 3) * 2;
        // With documents, HD 256 masks every tile: next to code for both kinds, nvcc would spill.
        if ((HD == 256 && kDocuments) || last_key > warp_query ||
            last_query - first_key >= (kDocuments ? warp_windows[Tiles::warp_rows - 1] : window))
            forward_tile<true>(state, stage, scale_log2, diagonal, warp_windows.from(lane >> 2));
        else
            forward_tile<false>(state, stage, scale_log2, diagonal, warp_windows.from(lane >> 2));
    }

    // Store, through shared memory for 16-byte accesses.
    quad_sum_each(state.sum);
    float inverse[2 * fragments];
    LLMC_UNROLL
    for (int row = 0; row < 2 * fragments; row++) {
        const int query = warp_query + 16 * (row >> 1) + 8 * (row & 1) + (lane >> 2);
        inverse[row] = 1.0f / state.output[row >> 1][HD / 8][2 * (row & 1)];
        if ((lane & 3) == 0 && query < T)
            lse[row_statistics_offset(b, h, T, NH) + query] = state.maximum[row] * scale + logf(state.sum[row]);
    }
    __syncthreads();  // all threads are done with the keys and values
    bf16* high = shared + warp * Tiles::warp_rows * kStride<HD>;
    bf16* low = high + stage_size;
    split_to_rows(high, low, state, inverse);
    __syncwarp();
    const size_t offset = head_offset<HD>(b, h, T, NH), stride = static_cast<size_t>(NH) * HD;
    if (out) store_rows<HD, Tiles::warp_rows>(out + offset, stride, high, warp_query, T);
    if (out_low) store_rows<HD, Tiles::warp_rows>(out_low + offset, stride, low, warp_query, T);
    if (fp8 != nullptr)
        quantize_output<HD, Tiles::query_rows, threads>(row, transposed, fp8, shared, shared + stage_size, first_query,
                                                        b, h, static_cast<int>(gridDim.z), T, NH, pass);
}

static void launch_forward(const Quantized<e4m3>& to, bf16* result, bf16* result_low, float* lse, const bf16* qkv,
                           int B, int T, const AttentionHeads& heads, QuantizePass pass,
                           [[maybe_unused]] unsigned* tickets, stream_t stream, const int* documents) {
#if LLMC_ON_GPU
    if (hopper::runs(heads))
        return hopper::attention_forward(to, result, result_low, lse, qkv, B, T, heads, pass, tickets, stream,
                                         documents);
#endif
    const size_t rows = elements(B, T, heads.NH, 1), n = elements(B, T, heads.NH, heads.HD);
    with_head_dimension(heads.HD, documents, [&]<int HD, bool kDocuments>() {
        using Tiles = ForwardTiles<HD>;
        const dim3 grid(div_up(T, Tiles::query_rows), heads.NH, B);
        host::launch_or_loop<attention_forward_kernel<HD, kDocuments>, host::attention_forward<HD>>(
            {grid, dim3(Tiles::threads), Tiles::shared_bytes + kRowWindowBytes<kDocuments, Tiles::query_rows>, stream},
            out(result, n), out(result_low, n), out(lse, rows), in(qkv, elements(B, T, heads.rows(), HD)),
            out(to.row, n), out(to.transposed, n), state_access(to.state, pass), T, heads.NH, heads.NKV,
            heads.softmax_scale(), heads.window_in(T), pass, in(documents, tokens(B, T)));
    });
}

}  // namespace attention

template <>
void attention_forward<bf16>(bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B, int T,
                             const AttentionHeads& heads, unsigned* tickets, stream_t stream, const int* documents) {
    attention::check_shape(B, T, heads);
    attention::launch_forward({}, out, out_low, lse, qkv, B, T, heads, QuantizePass::replay, tickets, stream,
                              documents);
}

void attention_forward_fp8(const Quantized<e4m3>& to, bf16* out, bf16* out_low, float* lse, const bf16* qkv, int B,
                           int T, const AttentionHeads& heads, QuantizePass pass, unsigned* tickets, stream_t stream,
                           const int* documents) {
    attention::check_quantized("attention_forward_fp8", to.state, B, T, heads, heads.width(), pass);
    attention::launch_forward(to, out, out_low, lse, qkv, B, T, heads, pass, tickets, stream, documents);
}

}  // namespace llmc
