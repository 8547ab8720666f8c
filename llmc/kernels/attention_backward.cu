// Causal flash attention backward in BF16 on mma.sync (sm_80 and later); see attention.h. With P the probabilities:
//
//   delta = rowsum(dO * O)    dP = dO V^T    dS = P * (dP - delta)    dV = P^T dO    dK = dS^T Q    dQ = dS K
//
// There are three kernels: delta; dV and dK, where a block owns keys; dQ, where a block owns queries. Both gradient
// kernels recompute P from the scores and lse. An owned tile is the A side of every product, so P and dS are
// accumulators that turn into A fragments in place, and sums over the other dimension stay in registers: nothing is
// added up in memory.
#include <type_traits>

#include "llmc/device/runtime.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/attention_quantize.cuh"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/host/loops.h"

namespace llmc {
namespace attention {

// ---- delta ---------------------------------------------------------------------------------------------------------

constexpr int kDeltaThreads = 256;
constexpr int kDeltaRowsAtOnce = kDeltaThreads / 4;  // one quad per row
constexpr int kDeltaRows = 4 * kDeltaRowsAtOnce;     // per block: four rows per thread, with one reduction for all

// delta[b, h, t] = sum over HD of dout * (out + out_low), from rows (b, t, h). Reads 6 bytes per element.
template <int HD>
static __global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(float* __restrict__ delta, const bf16* __restrict__ dout, const bf16* __restrict__ out,
                           const bf16* __restrict__ out_low, size_t rows, int T, int NH) {
    const int quad_lane = static_cast<int>(threadIdx.x & 3);
    const size_t first_row = static_cast<size_t>(blockIdx.x) * kDeltaRows + (threadIdx.x >> 2);
    float sums[4];
    LLMC_UNROLL
    for (int r = 0; r < 4; r++) {
        const size_t row = first_row + static_cast<size_t>(r * kDeltaRowsAtOnce);
        sums[r] = 0.0f;
        if (row >= rows) continue;
        LLMC_UNROLL
        for (int i = 0; i < (HD + 31) / 32; i++) {
            if (HD % 32 != 0 && i * 32 + quad_lane * 8 >= HD) continue;
            const size_t at = row * HD + static_cast<size_t>(i * 32 + quad_lane * 8);
            add_to_delta(sums[r], dout + at, out + at, out_low + at);
        }
    }
    quad_sum_each(sums);
    if (quad_lane != 0) return;
    for (int r = 0; r < 4; r++) {
        const size_t row = first_row + static_cast<size_t>(r * kDeltaRowsAtOnce);
        if (row >= rows) continue;
        const size_t h = row % NH, t = row / NH % T, b = row / NH / T;
        delta[(b * NH + h) * T + t] = sums[r];
    }
}

// ---- room in shared memory -----------------------------------------------------------------------------------------

// Registers let two blocks of the following kernels run on a multiprocessor at a time. `scarce` makes stages smaller,
// so that two also fit the shared memory of cards with 99 KB per block. The chunks, and so the order of all sums, are
// the same.
enum class Room { ample, scarce };

// A multiprocessor has 1 KB more than it gives a single block, and each block takes 1 KB of it.
template <class Tiles>
constexpr bool two_blocks_fit(size_t shared_memory_per_block) {
    return 2 * (Tiles::shared_bytes + 1024) <= shared_memory_per_block + 1024;
}

// ---- owned rows ----------------------------------------------------------------------------------------------------

// The rows that a block of a gradient kernel owns, in four warps. A warp owns 32 rows, or 16 above head dimension 64.
// At 256 not even the sums for 16 rows fit a warp's registers. There two neighbouring warps own the same rows: both
// compute S and dP, and each sums up the gradients of half the channels.
template <int HD>
struct OwnedRows {
    static constexpr int fragments = HD > 64 ? 1 : 2;
    static constexpr int slices = HD == 256 ? 2 : 1;  // warps that own the same rows
    static constexpr int warps = 4;
    static constexpr int threads = 32 * warps;
    static constexpr int warp_rows = 16 * fragments;
    static constexpr int rows = warps / slices * warp_rows;
    static_assert(rows == owned_tokens(HD));
    static constexpr int columns = HD / slices;  // channels whose gradients a warp sums up
    // Number of rows of the other side whose scores and dP are in registers at a time.
    static constexpr int chunk = HD == 256 ? 16 : 32;

    // Waits for the warps that own the same rows.
    LLMC_DEVICE static void meet() {
        if constexpr (slices > 1)
            __syncthreads();
        else
            __syncwarp();
    }
    // Copies the owned rows of a finished tile, each warp its share, to rows from first_row on of a (T, HD) matrix.
    LLMC_DEVICE static void store(bf16* matrix, size_t stride, const bf16* tile, int first_row, int T) {
        constexpr int share = warp_rows / slices;
        const int first = static_cast<int>(threadIdx.x >> 5) * share;
        store_rows<HD, share>(matrix, stride, tile + first * kStride<HD>, first_row + first, T);
    }
};

// ---- dK and dV -----------------------------------------------------------------------------------------------------

// A block walks over the queries that see its keys, for each head in turn of the group that shares the keys. Products
// are transposed, keys down and queries across: S^T = K Q^T. The owned keys and values are read from shared memory
// again for every product; as fragments they would not fit into the registers next to dK and dV.
template <int HD, Room room = Room::ample>
struct KeyGradientTiles : OwnedRows<HD> {
    using Owned = OwnedRows<HD>;
    using Owned::chunk, Owned::threads;
    static constexpr int key_rows = Owned::rows;
    // There are two stages: one is filled while the other is used. With a single stage the block waits, and the other
    // block on the multiprocessor computes.
    static constexpr int stages = room == Room::ample ? 2 : 1;
    static constexpr int query_rows = HD > 64 || room == Room::scarce ? chunk : 2 * chunk;  // a stage
    // Shared memory, in rows of a tile: [keys][values], then for each stage [queries][dout]; then floats, for each
    // stage: [lse in base 2][delta]. After the loop a warp's own rows of keys and values hold its dK and dV on their
    // way to memory.
    static constexpr int stage_rows = 2 * query_rows;
    static constexpr size_t tile_bytes = (2 * key_rows + stages * stage_rows) * kRowBytes<HD>;
    static constexpr size_t shared_bytes = tile_bytes + stages * stage_rows * sizeof(float);
    static_assert(stage_rows <= threads && query_rows % chunk == 0 && key_rows % query_rows == 0);
    static_assert(stages * stage_rows * kRowBytes<HD> >= 64 * threads, "scratch of quantize_gradients");
};

// Turns S^T into P^T and dP^T into dS^T, without the softmax scale, which is applied once at the end. A column is a
// query; `diagonal` is (this lane's first key) - (its first query), and `windows` begin with that key's. `lse_log2` and
// `delta` start at the chunk's queries.
template <bool Masked, int F, int N, bool kDocuments>
LLMC_DEVICE void score_gradients_transposed(float (&s)[F][N][4], float (&dp)[F][N][4], const float* lse_log2,
                                            const float* delta, float scale_log2, int diagonal,
                                            const RowWindows<kDocuments>& windows) {
    const int lane_column = static_cast<int>(threadIdx.x & 3) * 2;
    if constexpr (Masked && kDocuments) mask_rows<true>(s, -diagonal, windows);
    LLMC_UNROLL
    for (int j = 0; j < N; j++) {
        const float* lse_pair = lse_log2 + 8 * j + lane_column;
        const float* delta_pair = delta + 8 * j + lane_column;
        const float row_lse[2] = {lse_pair[0], lse_pair[1]}, row_delta[2] = {delta_pair[0], delta_pair[1]};
        LLMC_UNROLL
        for (int f = 0; f < F; f++) {
            for (int i = 0; i < 4; i++) {
                float p = exp2_fast(s[f][j][i] * scale_log2 - row_lse[i & 1]);
                if (Masked && !kDocuments && !in_window(8 * j + (i & 1) - diagonal - 16 * f - 8 * (i >> 1), windows[0]))
                    p = 0.0f;
                s[f][j][i] = p;
                dp[f][j][i] = p * (dp[f][j][i] - row_delta[i & 1]);
            }
        }
    }
}

// Processes one chunk of queries against a warp's keys. dK and dV are the N column tiles from `column` on.
template <bool Masked, int HD, int F, int N, bool kDocuments>
LLMC_DEVICE void key_gradient_chunk(float (&dk)[F][N][4], float (&dv)[F][N][4], const bf16* keys, const bf16* values,
                                    const bf16* queries, const bf16* dout, int column, const float* lse_log2,
                                    const float* delta, float scale_log2, int diagonal,
                                    const RowWindows<kDocuments>& windows) {
    constexpr int chunk = KeyGradientTiles<HD>::chunk;
    float s[F][chunk / 8][4], dp[F][chunk / 8][4];
    multiply<HD>(s, keys, queries);
    multiply<HD>(dp, values, dout);
    score_gradients_transposed<Masked>(s, dp, lse_log2, delta, scale_log2, diagonal, windows);
    accumulate<HD>(dv, s, dout + column);
    accumulate<HD>(dk, dp, queries + column);
}

// lse of a query in base 2, as the exponent's offset. From T on it is infinite, so that such a query's P is exp2(-inf)
// = 0.
LLMC_DEVICE float query_lse_log2(const float* lse, int query, int T) {
    return query < T ? lse[query] * kLog2E : float_from_bits(kFloatInfinityBits);
}

// Thread i < 2 Rows holds one number of a stage of Rows queries: lse of query i, or delta of query i - Rows.
template <int Rows>
struct StageStatistic {
    int slot;
    const float* rows;  // statistics of the group's first head

    LLMC_DEVICE StageStatistic(const float* lse, const float* delta, size_t offset)
        : slot(static_cast<int>(threadIdx.x)), rows((slot < Rows ? lse : delta) + offset) {}
    LLMC_DEVICE float load(int member, int first_query, int T) const {
        const int query = first_query + slot % Rows;
        const float* const row = rows + static_cast<size_t>(member) * T;
        if (slot < Rows) return query_lse_log2(row, query, T);
        return slot < 2 * Rows && query < T ? row[query] : 0.0f;
    }
    LLMC_DEVICE void store(float* stage, float number) const {
        if (slot < 2 * Rows) stage[slot] = number;
    }
};

// Starts copying a stage: queries from first_query on of one head of the group, and their dout.
template <int HD, int Rows, int Threads>
LLMC_DEVICE void load_queries(bf16* stage, const Head& head, const bf16* dout, size_t dout_stride, int member,
                              int first_query, int T) {
    load_tile<HD, Rows, Threads>(stage, head.query + member * HD, head.stride, first_query, T);
    load_tile<HD, Rows, Threads>(stage + Rows * kStride<HD>, dout + member * HD, dout_stride, first_query, T);
    cp_async_commit();
}

template <int HD, Room room, bool kDocuments, class Out>
static __global__ void __launch_bounds__(KeyGradientTiles<HD>::threads, HD == 32 ? 2 : 1)
    attention_key_gradient_kernel(Out* __restrict__ dqkv, Out* __restrict__ transposed, float* __restrict__ parts,
                                  Fp8State* __restrict__ fp8, const bf16* __restrict__ dout,
                                  const bf16* __restrict__ qkv, const float* __restrict__ lse,
                                  const float* __restrict__ delta, int T, int NH, int NKV, int group, float scale,
                                  int window, QuantizePass pass, const int* __restrict__ documents) {
    using Tiles = KeyGradientTiles<HD, room>;
    constexpr int query_rows = Tiles::query_rows, threads = Tiles::threads, chunk = Tiles::chunk;
    constexpr int stages = Tiles::stages, stage_size = Tiles::stage_rows * kStride<HD>;
    LLMC_DYNAMIC_SHARED(bf16, shared);
    bf16* const keys = shared;
    bf16* const values = keys + Tiles::key_rows * kStride<HD>;
    bf16* const stage_tiles = values + Tiles::key_rows * kStride<HD>;
    float* const statistics = reinterpret_cast<float*>(stage_tiles + stages * stage_size);

    const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) / Tiles::slices;
    const int column = static_cast<int>(threadIdx.x >> 5) % Tiles::slices * Tiles::columns;
    const int kv = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const int first_key = static_cast<int>(blockIdx.x) * Tiles::key_rows;  // the first keys are seen by most queries
    const int warp_key = first_key + warp * Tiles::warp_rows, last_own = warp_key + Tiles::warp_rows - 1;
    const int warp_offset = warp * Tiles::warp_rows * kStride<HD>;
    const int h = kv * group;  // the group's first query head; the others lie HD further, or T further in lse and delta
    const Head head = head_of<HD>(qkv, b, h, kv, T, NH, NKV);
    const bf16* head_dout = dout + head_offset<HD>(b, h, T, NH);
    const size_t dout_stride = static_cast<size_t>(NH) * HD;

    const Windows<kDocuments> windows{window, documents, b * T, T};
    const RowWindows<kDocuments> block_windows =
        row_windows<Tiles::key_rows, threads>(reinterpret_cast<int*>(statistics + stages * Tiles::stage_rows), windows,
                                              [&](int row) { return windows.of_key(first_key + row); });
    const RowWindows<kDocuments> warp_windows = block_windows.from(warp * Tiles::warp_rows);
    const StageStatistic<query_rows> statistic(lse, delta, row_statistics_offset(b, h, T, NH));

    // Load: the owned keys and values, and the first stage, which is queries from the diagonal on.
    load_tile<HD, Tiles::key_rows, threads>(keys, head.key, head.stride, first_key, T);
    load_tile<HD, Tiles::key_rows, threads>(values, head.value, head.stride, first_key, T);
    load_queries<HD, query_rows, threads>(stage_tiles, head, head_dout, dout_stride, 0, first_key, T);
    statistic.store(statistics, statistic.load(0, first_key, T));
    float dk[Tiles::fragments][Tiles::columns / 8][4], dv[Tiles::fragments][Tiles::columns / 8][4];
    set_zero(dk);
    set_zero(dv);

    const float scale_log2 = scale * kLog2E;
    const int last_key = first_key + Tiles::key_rows - 1;
    for (int first_query = first_key, member = 0, stage = 0; member < group; stage ^= stages - 1) {
        // Load: this stage has arrived for all threads, and all are done with the stage that is filled next: the other
        // one, or a single one after its products. The next lse and delta travel through a register and are stored once
        // they have had time to arrive.
        cp_async_wait<0>();
        __syncthreads();
        const bf16* queries = stage_tiles + stage * stage_size;
        int next_query = first_query + query_rows;
        if (next_query >= T || next_query - last_key >= (kDocuments ? block_windows[Tiles::key_rows - 1] : window))
            next_query = first_key, member++;  // continues with the group's next head
        float next_statistic = 0.0f;
        if (member < group) {
            if (stages == 2)
                load_queries<HD, query_rows, threads>(stage_tiles + (stage ^ 1) * stage_size, head, head_dout,
                                                      dout_stride, member, next_query, T);
            next_statistic = statistic.load(member, next_query, T);
        }
        // Multiply, softmax, accumulate: chunk by chunk, except those before the diagonal or beyond the end.
        for (int row = 0; row < query_rows; row += chunk) {
            const int query = first_query + row, last_query = query + chunk - 1;
            if (query >= T || warp_key >= T || last_query < warp_key ||
                query - last_own >= (kDocuments ? warp_windows[Tiles::warp_rows - 1] : window))
                continue;
            const int diagonal = warp_key + (lane >> 2) - query - (lane & 3) * 2;
            const bf16* chunk_queries = queries + row * kStride<HD>;
            const bf16* chunk_dout = chunk_queries + query_rows * kStride<HD>;
            const float* chunk_statistics = statistics + stage * Tiles::stage_rows + row;
            const auto multiply_chunk = [&]<bool Masked>() {
                key_gradient_chunk<Masked, HD>(dk, dv, keys + warp_offset, values + warp_offset, chunk_queries,
                                               chunk_dout, column, chunk_statistics, chunk_statistics + query_rows,
                                               scale_log2, diagonal, warp_windows.from(lane >> 2));
            };
            if (query < last_own || last_query - warp_key >= (kDocuments ? warp_windows[0] : window))
                multiply_chunk.template operator()<true>();
            else
                multiply_chunk.template operator()<false>();
        }
        if (stages == 1) {
            __syncthreads();  // all threads are done with the stage
            if (member < group)
                load_queries<HD, query_rows, threads>(stage_tiles, head, head_dout, dout_stride, member, next_query, T);
        }
        statistic.store(statistics + (stage ^ (stages - 1)) * Tiles::stage_rows, next_statistic);
        first_query = next_query;
    }

    // Store through the warp's own rows of keys and values, which no warp with other rows reads.
    Tiles::meet();
    round_to_rows<HD>(keys + warp_offset + column, dk, scale);
    round_to_rows<HD>(values + warp_offset + column, dv, 1.0f);
    if constexpr (kIsFp8<Out>) {
        quantize_gradients<HD, Tiles::key_rows, threads>({dqkv, transposed, parts, fp8, pass}, {keys, values},
                                                         reinterpret_cast<float*>(stage_tiles), {NH, NKV, NH + 2 * NKV},
                                                         first_key, b, kv, T);
    } else {
        Tiles::meet();
        Tiles::store(dqkv + (head.key - qkv), head.stride, keys, first_key, T);
        Tiles::store(dqkv + (head.value - qkv), head.stride, values, first_key, T);
    }
}

// ---- dQ ------------------------------------------------------------------------------------------------------------

// A block walks over the keys that its queries see, as the forward does. The owned queries and dout stay in registers
// as A fragments, except for HD 256, which reads them from shared memory.
template <int HD, Room room = Room::ample>
struct QueryGradientTiles : OwnedRows<HD> {
    using Owned = OwnedRows<HD>;
    using Owned::chunk, Owned::threads;
    static constexpr bool in_registers = HD < 256;
    static constexpr int query_rows = Owned::rows;
    static constexpr int key_rows = HD > 64 || room == Room::scarce ? chunk : 2 * chunk;  // a stage
    // Shared memory, in rows of a tile: [queries][stage 0: keys, values][dout; then stage 1: keys, values], or, if dout
    // is needed again, [queries][stage 0][stage 1][dout]. After the loop a warp's own rows of queries hold its dQ on
    // their way to memory.
    static constexpr int stage_rows = 2 * key_rows, rows_before_dout = query_rows + (in_registers ? 1 : 2) * stage_rows;
    static constexpr size_t shared_bytes = (rows_before_dout + query_rows) * kRowBytes<HD>;
    static_assert(key_rows % chunk == 0 && stage_rows <= query_rows);
    static_assert(stage_rows * kRowBytes<HD> >= 64 * threads, "scratch of quantize_gradients");
};

// Turns S into dS, without the softmax scale, as above but with queries down and keys across. `diagonal` and `windows`
// are as in the forward.
template <bool Masked, int F, int N, bool kDocuments>
LLMC_DEVICE void score_gradients(float (&s)[F][N][4], const float (&dp)[F][N][4], const float (&lse_log2)[2 * F],
                                 const float (&delta)[2 * F], float scale_log2, int diagonal,
                                 const RowWindows<kDocuments>& windows) {
    if constexpr (Masked && kDocuments) mask_rows<false>(s, diagonal, windows);
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        LLMC_UNROLL
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < 4; i++) {
                float p = exp2_fast(s[f][j][i] * scale_log2 - lse_log2[2 * f + (i >> 1)]);
                if (Masked && !kDocuments && !in_window(diagonal + 16 * f + 8 * (i >> 1) - 8 * j - (i & 1), windows[0]))
                    p = 0.0f;
                s[f][j][i] = p * (dp[f][j][i] - delta[2 * f + (i >> 1)]);
            }
        }
    }
}

template <int HD>
struct QueryGradientState {
    using Tiles = QueryGradientTiles<HD>;
    static constexpr int fragments = Tiles::fragments;
    using Rows = std::conditional_t<Tiles::in_registers, uint32_t[fragments][HD / 16][4], const bf16*>;
    Rows query, dout;
    float dq[fragments][Tiles::columns / 8][4];
    float lse_log2[2 * fragments], delta[2 * fragments];  // rows g and g + 8 of each fragment
};

// Processes one chunk of keys against a warp's queries. dQ are the channels from `column` on.
template <bool Masked, int HD, bool kDocuments>
LLMC_DEVICE void query_gradient_chunk(QueryGradientState<HD>& state, const bf16* keys, const bf16* values, int column,
                                      float scale_log2, int diagonal, const RowWindows<kDocuments>& windows) {
    constexpr int fragments = QueryGradientTiles<HD>::fragments, chunk = QueryGradientTiles<HD>::chunk;
    float s[fragments][chunk / 8][4], dp[fragments][chunk / 8][4];
    multiply<HD>(s, state.query, keys);
    multiply<HD>(dp, state.dout, values);
    score_gradients<Masked>(s, dp, state.lse_log2, state.delta, scale_log2, diagonal, windows);
    accumulate<HD>(state.dq, s, keys + column);
}

template <int HD, Room room, bool kDocuments, class Out>
static __global__ void __launch_bounds__(QueryGradientTiles<HD>::threads, (kDocuments && HD == 32 ? 2 : 0))
    attention_query_gradient_kernel(Out* __restrict__ dqkv, Out* __restrict__ transposed, float* __restrict__ parts,
                                    Fp8State* __restrict__ fp8, const bf16* __restrict__ dout,
                                    const bf16* __restrict__ qkv, const float* __restrict__ lse,
                                    const float* __restrict__ delta, int T, int NH, int NKV, int group, float scale,
                                    int window, QuantizePass pass, const int* __restrict__ documents) {
    using Tiles = QueryGradientTiles<HD, room>;
    constexpr int key_rows = Tiles::key_rows, threads = Tiles::threads, chunk = Tiles::chunk;
    constexpr int stage_size = Tiles::stage_rows * kStride<HD>;
    LLMC_DYNAMIC_SHARED(bf16, shared);
    bf16* const queries = shared;
    bf16* const stages = queries + Tiles::query_rows * kStride<HD>;
    bf16* const own_dout = queries + Tiles::rows_before_dout * kStride<HD>;

    const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5) / Tiles::slices;
    const int column = static_cast<int>(threadIdx.x >> 5) % Tiles::slices * Tiles::columns;
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::query_rows;  // longest first
    const int warp_query = first_query + warp * Tiles::warp_rows, last_own = warp_query + Tiles::warp_rows - 1;
    const int warp_offset = warp * Tiles::warp_rows * kStride<HD>;
    const Head head = head_of<HD>(qkv, b, h, h / group, T, NH, NKV);
    const bf16* head_dout = dout + head_offset<HD>(b, h, T, NH);
    const size_t dout_stride = static_cast<size_t>(NH) * HD;

    // Load: the owned rows into registers, and the first keys and values.
    load_tile<HD, Tiles::query_rows, threads>(queries, head.query, head.stride, first_query, T);
    load_tile<HD, Tiles::query_rows, threads>(own_dout, head_dout, dout_stride, first_query, T);
    const Windows<kDocuments> windows{window, documents, b * T, T};
    const RowWindows<kDocuments> warp_windows =
        row_windows<Tiles::query_rows, threads>(reinterpret_cast<int*>(own_dout + Tiles::query_rows * kStride<HD>),
                                                windows, [&](int row) { return windows(first_query + row); })
            .from(warp * Tiles::warp_rows);
    const int begin = first_seen_key(first_query, windows(first_query), key_rows);
    load_tile<HD, key_rows, threads>(stages, head.key, head.stride, begin, T);
    load_tile<HD, key_rows, threads>(stages + key_rows * kStride<HD>, head.value, head.stride, begin, T);
    cp_async_commit();
    QueryGradientState<HD> state;
    LLMC_UNROLL
    for (int row = 0; row < 2 * Tiles::fragments; row++) {
        const int query = warp_query + 16 * (row >> 1) + 8 * (row & 1) + (lane >> 2);
        const size_t offset = row_statistics_offset(b, h, T, NH);
        state.lse_log2[row] = query_lse_log2(lse + offset, query, T);
        state.delta[row] = query < T ? delta[offset + query] : 0.0f;
    }
    set_zero(state.dq);
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (Tiles::in_registers) {
        load_fragments<HD>(state.query, queries + warp_offset);
        load_fragments<HD>(state.dout, own_dout + warp_offset);
    } else {
        state.query = queries + warp_offset;
        state.dout = own_dout + warp_offset;
    }

    const float scale_log2 = scale * kLog2E;
    const int seen_keys = first_query + Tiles::query_rows < T ? first_query + Tiles::query_rows : T;
    for (int first_key = begin, stage = 0; first_key < seen_keys; first_key += key_rows, stage ^= 1) {
        // Load: this stage has arrived for all threads, and all are done with the contents of the other, which is
        // filled next.
        cp_async_wait<0>();
        __syncthreads();
        const bf16* keys = stages + stage * stage_size;
        const int next_key = first_key + key_rows;
        if (next_key < seen_keys) {
            bf16* next = stages + (stage ^ 1) * stage_size;
            load_tile<HD, key_rows, threads>(next, head.key, head.stride, next_key, T);
            load_tile<HD, key_rows, threads>(next + key_rows * kStride<HD>, head.value, head.stride, next_key, T);
            cp_async_commit();
        }
        // Multiply, softmax, accumulate: chunk by chunk up to the diagonal.
        for (int row = 0; row < key_rows; row += chunk) {
            const int key = first_key + row, last_key = key + chunk - 1;
            if (warp_query >= T || key > last_own || warp_query - last_key >= warp_windows[0]) continue;
            const int diagonal = warp_query + (lane >> 2) - key - (lane & 3) * 2;
            const bf16* chunk_keys = keys + row * kStride<HD>;
            const bf16* chunk_values = chunk_keys + key_rows * kStride<HD>;
            if (last_key > warp_query || last_own - key >= warp_windows[Tiles::warp_rows - 1])
                query_gradient_chunk<true>(state, chunk_keys, chunk_values, column, scale_log2, diagonal,
                                           warp_windows.from(lane >> 2));
            else
                query_gradient_chunk<false>(state, chunk_keys, chunk_values, column, scale_log2, diagonal,
                                            warp_windows.from(lane >> 2));
        }
    }

    // Store through the warp's own rows of queries, which no warp with other rows reads.
    if constexpr (!Tiles::in_registers) Tiles::meet();
    round_to_rows<HD>(queries + warp_offset + column, state.dq, scale);
    if constexpr (kIsFp8<Out>) {
        quantize_gradients<HD, Tiles::query_rows, threads>({dqkv, transposed, parts, fp8, pass}, {queries},
                                                           reinterpret_cast<float*>(stages), {0, NH, NH + 2 * NKV},
                                                           first_query, b, h, T);
    } else {
        Tiles::meet();
        Tiles::store(dqkv + (head.query - qkv), head.stride, queries, first_query, T);
    }
}

// ---- launch --------------------------------------------------------------------------------------------------------

// Number of blocks of a gradient kernel along a sequence, which is also the number of parts of its bias gradient.
static int token_tiles(int T, int HD) { return div_up(T, owned_tokens(HD)); }
static_assert(two_blocks_fit<KeyGradientTiles<64, Room::scarce>>(99 * 1024));
static_assert(two_blocks_fit<QueryGradientTiles<64, Room::scarce>>(99 * 1024));

// Returns the tokens of a sequence that share a row of `to.parts`.
template <class Out>
static int launch_backward(const Gradients<Out>& to, float* delta, const BackwardInputs& inputs, int B, int T,
                           const AttentionHeads& heads, [[maybe_unused]] unsigned* tickets, stream_t stream) {
    if (!inputs.out_low)
        throw Error(
            ExitCode::failure,
            "attention backward: out_low is missing; have the forward write it (a delta from the rounded output "
            "alone is biased)");
#if LLMC_ON_GPU
    if (hopper::runs(heads)) {
        hopper::attention_backward_split(to, delta, inputs, B, T, heads, tickets, stream);
        return hopper::kBackwardTile;
    }
#endif
    const int NH = heads.NH, NKV = heads.NKV, tiles = token_tiles(T, heads.HD);
    const size_t n = elements(B, T, NH, heads.HD), rows = elements(B, T, NH, 1), keys = elements(B, T, NKV, heads.HD);
    const size_t whole = n + 2 * keys, part_count = static_cast<size_t>(tiles) * B * heads.qkv_width();
    const float scale = heads.softmax_scale();
    Out* const transposed_keys = to.transposed ? to.transposed + n : nullptr;
    const auto launch_gradients = [&]<int HD, Room room, bool kDocuments>() {
        using KeyTiles = KeyGradientTiles<HD, room>;
        using QueryTiles = QueryGradientTiles<HD, room>;
        host::launch_or_loop<attention_key_gradient_kernel<HD, room, kDocuments, Out>,
                             host::attention_key_gradient<HD, Out>>(
            {dim3(tiles, NKV, B), dim3(KeyTiles::threads),
             KeyTiles::shared_bytes + kRowWindowBytes<kDocuments, KeyTiles::key_rows>, stream},
            out(to.row, whole), out(transposed_keys, 2 * keys), out(to.parts, part_count),
            state_access(to.fp8, to.pass), in(inputs.dout, n), in(inputs.qkv, whole), in(inputs.lse, rows),
            in(delta, rows), T, NH, NKV, NH / NKV, scale, heads.window_in(T), to.pass,
            in(inputs.documents, tokens(B, T)));
        host::launch_or_loop<attention_query_gradient_kernel<HD, room, kDocuments, Out>,
                             host::attention_query_gradient<HD, Out>>(
            {dim3(tiles, NH, B), dim3(QueryTiles::threads),
             QueryTiles::shared_bytes + kRowWindowBytes<kDocuments, QueryTiles::query_rows>, stream},
            out(to.row, whole), out(to.transposed, n), out(to.parts, part_count), state_access(to.fp8, to.pass),
            in(inputs.dout, n), in(inputs.qkv, whole), in(inputs.lse, rows), in(delta, rows), T, NH, NKV, NH / NKV,
            scale, heads.window_in(T), to.pass, in(inputs.documents, tokens(B, T)));
    };
    with_head_dimension(heads.HD, inputs.documents, [&]<int HD, bool kDocuments>() {
        host::launch_or_loop<attention_delta_kernel<HD>, host::attention_delta<HD>>(
            {dim3(div_up(rows, size_t{kDeltaRows})), dim3(kDeltaThreads), 0, stream}, out(delta, rows),
            in(inputs.dout, n), in(inputs.out, n), in(inputs.out_low, n), rows, T, NH);
        // With documents and both stages, nvcc would spill.
        constexpr Room room = HD == 64 && kDocuments ? Room::scarce : Room::ample;
        if constexpr (HD == 64 && !kDocuments)
            if (!two_blocks_fit<KeyGradientTiles<64>>(shared_memory_per_block()))
                return launch_gradients.template operator()<64, Room::scarce, false>();
        launch_gradients.template operator()<HD, room, kDocuments>();
    });
    return owned_tokens(heads.HD);
}

}  // namespace attention

template <>
void attention_backward<bf16>(bf16* dqkv, float* delta, const bf16* dout, const bf16* qkv, const bf16* out,
                              const bf16* out_low, const float* lse, int B, int T, const AttentionHeads& heads,
                              unsigned* tickets, stream_t stream, const int* documents) {
    attention::check_shape(B, T, heads);
    const attention::Gradients<bf16> to{dqkv, nullptr, nullptr, nullptr, QuantizePass::replay};
    attention::launch_backward(to, delta, {dout, qkv, out, out_low, lse, documents}, B, T, heads, tickets, stream);
}

static_assert(hopper::kBackwardTile >= owned_tokens(64) && hopper::kBackwardTile >= owned_tokens(128));
size_t attention_backward_fp8_scratch(int B, int T, const AttentionHeads& heads) {
    return static_cast<size_t>(B) * attention::token_tiles(T, heads.HD) * heads.qkv_width();
}

void attention_backward_fp8(const Quantized<e5m2>& to, float* dbias, float* scratch, float* delta, const bf16* dout,
                            const bf16* qkv, const bf16* out, const bf16* out_low, const float* lse, int B, int T,
                            const AttentionHeads& heads, bool accumulate, QuantizePass pass, unsigned* tickets,
                            stream_t stream, const int* documents) {
    const int channels = heads.qkv_width();
    attention::check_quantized("attention_backward_fp8", to.state, B, T, heads, channels, pass);
    if (dbias && !scratch) throw Error(ExitCode::failure, "attention_backward_fp8: a bias gradient needs scratch");
    const attention::Gradients<e5m2> gradients{to.row, to.transposed, dbias ? scratch : nullptr, to.state, pass};
    const int tokens_of_part = attention::launch_backward(gradients, delta, {dout, qkv, out, out_low, lse, documents},
                                                          B, T, heads, tickets, stream);
    if (dbias)
        reduce_column_parts(dbias, nullptr, scratch, B * div_up(T, tokens_of_part), channels, channels, accumulate,
                            stream);
}

}  // namespace llmc
