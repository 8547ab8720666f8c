// Attention of a few queries against cached keys and values; see attention.h.
#include "llmc/kernels/attention.h"

#include "llmc/kernels/attention_quads.cuh"
#include "llmc/kernels/attention_softmax.cuh"
#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"

namespace llmc {
namespace attention {

constexpr int kDecodeRows = 16;  // queries per block

// ---- bf16: one warp per block --------------------------------------------------------------------------------------

// Shared memory, in rows of a tile: two stages of keys and values. Before the loop stage 1 holds the queries; after it
// stage 0 holds out and stage 1 out_low.
template <int HD>
constexpr int kStageRows = 2 * kKeyRows<HD>;
template <int HD>
constexpr size_t kDecodeBytes = 2 * kStageRows<HD>* kRowBytes<HD>;

template <int HD>
static __global__ void __launch_bounds__(32)
    attention_decode_kernel(bf16* __restrict__ out, bf16* __restrict__ out_low, const bf16* __restrict__ qkv, int first,
                            int rows, int NH, int NKV, float scale_log2, int window) {
    constexpr int stage_size = kStageRows<HD> * kStride<HD>;
    LLMC_DYNAMIC_SHARED(bf16, shared);
    const int lane = static_cast<int>(threadIdx.x), h = static_cast<int>(blockIdx.y), T = first + rows;
    const int row = static_cast<int>(blockIdx.x) * kDecodeRows, query = first + row;
    const Head head = head_of<HD>(qkv, 0, h, h / (NH / NKV), T, NH, NKV);

    // Load: queries into registers through stage 1, and the first keys and values into stage 0.
    load_tile<HD, kDecodeRows, 32>(shared + stage_size, head.query, head.stride, query, T);
    const int begin = first_seen_key(query, window, kKeyRows<HD>);
    load_tile<HD, kKeyRows<HD>, 32>(shared, head.key, head.stride, begin, T);
    load_tile<HD, kKeyRows<HD>, 32>(shared + kKeyRows<HD> * kStride<HD>, head.value, head.stride, begin, T);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const RowWindows<false> windows{window};
    ForwardState<HD, 1> state;
    load_fragments<HD>(state.query, shared + stage_size);
    set_zero(state.output);
    for (int half = 0; half < 2; half++) {
        state.maximum[half] = float_from_bits(0xff800000u);
        state.sum[half] = 0.0f;
    }

    const int seen_keys = query + kDecodeRows < T ? query + kDecodeRows : T;
    const int tiles = (seen_keys - begin + kKeyRows<HD> - 1) / kKeyRows<HD>;
    for (int tile = 0; tile < tiles; tile++) {
        // Load: this tile has arrived, and the warp is done with the other stage, which is filled next.
        cp_async_wait<0>();
        __syncthreads();
        const int first_key = begin + tile * kKeyRows<HD>;
        const bf16* stage = shared + (tile & 1) * stage_size;
        if (tile + 1 < tiles) {
            bf16* next = shared + (~tile & 1) * stage_size;
            load_tile<HD, kKeyRows<HD>, 32>(next, head.key, head.stride, first_key + kKeyRows<HD>, T);
            load_tile<HD, kKeyRows<HD>, 32>(next + kKeyRows<HD> * kStride<HD>, head.value, head.stride,
                                            first_key + kKeyRows<HD>, T);
            cp_async_commit();
        }
        // Multiply, softmax, accumulate.
        forward_tile<true>(state, stage, scale_log2, query + (lane >> 2) - first_key - (lane & 3) * 2, windows);
    }

    // Store, through shared memory for 16-byte accesses.
    const float inverse[2] = {1.0f / state.output[0][HD / 8][0], 1.0f / state.output[0][HD / 8][2]};
    __syncthreads();
    split_to_rows(shared, shared + stage_size, state, inverse);
    __syncwarp();
    const size_t offset = static_cast<size_t>(h) * HD, stride = static_cast<size_t>(NH) * HD;
    store_rows<HD, kDecodeRows>(out + offset, stride, shared, row, rows);
    if (out_low) store_rows<HD, kDecodeRows>(out_low + offset, stride, shared + stage_size, row, rows);
}

// ---- FP32: the lanes of a row per query ----------------------------------------------------------------------------

template <int HD>
static __global__ void __launch_bounds__(kRowLanes<HD>* kDecodeRows)
    attention_decode_fp32_kernel(float* __restrict__ out, const float* __restrict__ qkv, int first, int rows, int NH,
                                 int NKV, float scale_log2, int window) {
    const size_t h = blockIdx.y, head = h * HD, stride = static_cast<size_t>(NH + 2 * NKV) * HD;
    const float* const keys = qkv + (NH + h / (NH / NKV)) * HD;
    const int row = static_cast<int>(blockIdx.x) * kDecodeRows + static_cast<int>(threadIdx.x) / kRowLanes<HD>,
              T = first + rows;
    const int query = first + row, last_of_warp = first + last_row_of_warp<HD>(row);
    QueryRow<HD> state;
    state.attend(qkv + head + static_cast<size_t>(query < T ? query : T - 1) * stride, keys,
                 keys + static_cast<size_t>(NKV) * HD, stride, query, first + first_row_of_warp<HD>(row),
                 last_of_warp < T ? last_of_warp : T - 1, scale_log2, Windows<false>{window, nullptr, 0, T});
    if (row >= rows) return;
    state.output.scale(1.0f / state.sum);
    state.output.store(out + head + static_cast<size_t>(row) * NH * HD);
}

}  // namespace attention

template <class Real>
void attention_decode(Real* out, Real* out_low, const Real* qkv, int first, int rows, const AttentionHeads& heads,
                      stream_t stream) {
    using namespace attention;
    if (first < 0 || rows < 1) throw Error(ExitCode::failure, "attention_decode: {} rows from row {} on", rows, first);
    check_shape(1, first + rows, heads);
    const dim3 grid(div_up(rows, kDecodeRows), heads.NH, 1);
    const float scale_log2 = heads.softmax_scale() * kLog2E;
    const int window = heads.window_in(first + rows);
    const size_t n = elements(1, rows, heads.NH, heads.HD);
    const auto sequence = in(qkv, elements(1, first + rows, heads.rows(), heads.HD));
    with_head_dimension(heads.HD, [&]<int HD>() {
        if constexpr (sizeof(Real) == 2)
            host::launch_or_loop<attention_decode_kernel<HD>, host::attention_decode<HD>>(
                {grid, dim3(32), kDecodeBytes<HD>, stream}, llmc::out(out, n), llmc::out(out_low, n), sequence, first,
                rows, heads.NH, heads.NKV, scale_log2, window);
        else
            host::launch_or_loop<attention_decode_fp32_kernel<HD>, host::attention_decode_fp32<HD>>(
                {grid, dim3(kRowLanes<HD> * kDecodeRows), 0, stream}, llmc::out(out, n), sequence, first, rows,
                heads.NH, heads.NKV, scale_log2, window);
    });
}
LLMC_INSTANTIATE_BOTH(attention_decode, float, bf16);

}  // namespace llmc
