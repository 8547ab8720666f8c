// Causal attention backward in BF16 for Hopper, in one kernel; see hopper/attention.h. Head dimension 64.
//
// A block owns a whole head of keys and values, so that nothing is added up across blocks: no atomics, no order that
// could change. It walks over tiles of 128 keys, from the last to the first, and for each over the tiles of 128 queries
// that see it:
//
//   S^T = K Q^T    dP^T = V dO^T    P^T = exp(S^T - lse)    dS^T = P^T * (dP^T - delta)
//   dV += P^T dO   dK += dS^T Q     dQ += dS K
//
// Five products instead of the seven of two kernels. Consumer warpgroup w holds 64 keys of S^T and dP^T, dK and dV in
// registers. dS^T also goes to shared memory, from which warpgroup w computes dQ of 64 queries. Between two tiles of
// keys the sums of dQ wait in global memory, in the order of the registers; they stay in L2.
#include "llmc/kernels/hopper/attention.h"

#if LLMC_ON_GPU
#include "llmc/kernels/hopper/attention_tiles.cuh"

namespace llmc {
namespace hopper {

constexpr int kBackwardHD = 64;
constexpr int kBackwardStages = 2;
constexpr int kSumsPerTile = kGradientRows * kBackwardHD / 4;  // float4 of dQ

// One step of a block: a tile of keys and a tile of queries. Producers walk over the steps. Consumers have no registers
// left for that, and read each field from shared memory when they need it.
struct BackwardStep {
    int b, kv, h, m, n;
    int sums;                        // the tile of partial sums
    bool masked;                     // false if all queries see all keys
    bool new_keys;                   // dK and dV start at 0
    bool keys_done;                  // dK and dV are complete after this step
    bool new_queries, queries_done;  // the same for dQ
    bool last;                       // the block's last step
};

// Shared memory: 168 KB.
struct BackwardShared {
    struct alignas(kTileAlignment) Tile {
        bf16 panel[1][kGradientRows * kTileColumns];
    };
    Tile keys, values;
    Tile queries[kBackwardStages], dout[kBackwardStages];
    Tile ds[2];                                                        // [64 queries][128 keys][the queries], swizzled
    alignas(128) bf16 out[2][kGradientRows * attention::kStride<64>];  // gradients on their way to memory
    float lse[kBackwardStages][kGradientRows], delta[kBackwardStages][kGradientRows];
    int windows[kGradientRows];  // how many queries see a key of the tile, the first of them its own
    BackwardStep steps[kBackwardStages];
    Barrier keys_full, keys_empty, full[kBackwardStages], empty[kBackwardStages];
};

// ---- the walk ------------------------------------------------------------------------------------------------------

struct BackwardShape {
    int B, T, NH, NKV;
    LLMC_DEVICE int group() const { return NH / NKV; }
    LLMC_DEVICE int tiles() const { return (T + kGradientRows - 1) / kGradientRows; }
};

// The block's work, the same for all producers: keys_begin(b, kv, n), and then step() for each query head of the group
// and each tile of queries that see the tile of keys.
template <bool kDocuments, class KeysBegin, class Step>
LLMC_DEVICE void walk(const BackwardShape& shape, int window, const int* documents, KeysBegin&& keys_begin,
                      Step&& step) {
    const int group = shape.group(), tiles = shape.tiles(), all = shape.B * shape.NKV;
    LLMC_NO_UNROLL
    for (int work = static_cast<int>(blockIdx.x); work < all; work += static_cast<int>(gridDim.x)) {
        const int b = work / shape.NKV, kv = work % shape.NKV;
        const attention::Windows<kDocuments> windows{window, documents, b * shape.T, shape.T};
        LLMC_NO_UNROLL
        for (int n = tiles - 1; n >= 0; n--) {
            const int end = (n + 1) * kGradientRows, last_key = (end < shape.T ? end : shape.T) - 1;
            const int last_query = last_key + windows.of_key(last_key) - 1;  // that sees a key of the tile
            const int last_tile = (last_query < shape.T ? last_query : shape.T - 1) / kGradientRows;
            const int all_see = n * kGradientRows + windows.of_key(n * kGradientRows);  // before this query
            keys_begin(b, kv, n, windows);
            LLMC_NO_UNROLL
            for (int g = 0; g < group; g++) {
                LLMC_NO_UNROLL
                for (int m = n; m <= last_tile; m++) {
                    BackwardStep at{b, kv, kv * group + g, m, n};
                    at.sums = (static_cast<int>(blockIdx.x) * group + g) * tiles + m;
                    at.masked = m == n || (m + 1) * kGradientRows > all_see;
                    at.new_keys = g == 0 && m == n;
                    at.keys_done = g == group - 1 && m == last_tile;
                    at.new_queries = m == n;
                    const int query = m * kGradientRows;
                    at.queries_done =
                        attention::first_seen_key(query, windows(query), kGradientRows) >= n * kGradientRows;
                    at.last = at.keys_done && n == 0 && work + static_cast<int>(gridDim.x) >= all;
                    step(at);
                }
            }
        }
    }
}

// ---- producers -----------------------------------------------------------------------------------------------------

// One thread loads tiles of keys and values, queries and dout.
template <bool kDocuments>
LLMC_DEVICE void produce_tiles(BackwardShared& shared, const CUtensorMap& qkv, const CUtensorMap& dout,
                               const BackwardShape& shape, int window, const int* documents) {
    constexpr int HD = kBackwardHD, tile_bytes = sizeof(BackwardShared::Tile);
    RingPosition<kBackwardStages> at;
    RingPosition<1> keys_at;
    walk<kDocuments>(
        shape, window, documents,
        [&](int b, int kv, int n, const auto&) {
            wait(shared.keys_empty, keys_at.parity ^ 1);
            keys_at.advance();
            arrive_and_expect(shared.keys_full, 2 * tile_bytes);
            load_panels(shared.keys.panel, qkv, shared.keys_full, (shape.NH + kv) * HD, n * kGradientRows, b);
            load_panels(shared.values.panel, qkv, shared.keys_full, (shape.NH + shape.NKV + kv) * HD, n * kGradientRows,
                        b);
        },
        [&](const BackwardStep& step) {
            wait(shared.empty[at.stage], at.parity ^ 1);
            arrive_and_expect(shared.full[at.stage], 2 * tile_bytes);
            const int row = step.m * kGradientRows;
            load_panels(shared.queries[at.stage].panel, qkv, shared.full[at.stage], step.h * HD, row, step.b);
            load_panels(shared.dout[at.stage].panel, dout, shared.full[at.stage], step.h * HD, row, step.b);
            at.advance();
        });
}

// One thread of another warp writes the steps.
template <bool kDocuments>
LLMC_DEVICE void produce_steps(BackwardShared& shared, const BackwardShape& shape, int window, const int* documents) {
    RingPosition<kBackwardStages> at;
    walk<kDocuments>(
        shape, window, documents, [](int, int, int, const auto&) {},
        [&](const BackwardStep& step) {
            wait(shared.empty[at.stage], at.parity ^ 1);
            shared.steps[at.stage] = step;
            arrive(shared.full[at.stage]);
            at.advance();
        });
}

// A third warp writes windows, lse in base 2, and delta. From T on lse is infinite, so that P is exp2(-infinity) = 0.
template <bool kDocuments>
LLMC_DEVICE void produce_statistics(BackwardShared& shared, const float* lse, const float* delta,
                                    const BackwardShape& shape, int window, const int* documents) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    RingPosition<kBackwardStages> at;
    RingPosition<1> keys_at;
    walk<kDocuments>(
        shape, window, documents,
        [&](int, int, int n, const auto& windows) {
            wait(shared.keys_empty, keys_at.parity ^ 1);
            keys_at.advance();
            LLMC_NO_UNROLL
            for (int i = lane; i < kGradientRows; i += 32) {
                const int key = n * kGradientRows + i;
                shared.windows[i] = windows.of_key(key < shape.T ? key : shape.T - 1);
            }
            arrive(shared.keys_full);
        },
        [&](const BackwardStep& step) {
            const size_t offset = attention::row_statistics_offset(step.b, step.h, shape.T, shape.NH);
            wait(shared.empty[at.stage], at.parity ^ 1);
            LLMC_NO_UNROLL
            for (int i = 0; i < kGradientRows; i += 32) {
                const int query = step.m * kGradientRows + i + lane;
                const QueryStatistics own(lse + offset, delta + offset, query, shape.T);
                shared.lse[at.stage][i + lane] = own.lse;
                shared.delta[at.stage][i + lane] = own.delta;
            }
            arrive(shared.full[at.stage]);
            at.advance();
        });
}

// ---- consumers -----------------------------------------------------------------------------------------------------

// Writes a warp's 16 keys of dS^T (16, 128 queries) to the two tiles, where a key is a row of 64 queries.
LLMC_DEVICE void store_score_gradients(BackwardShared::Tile (&tiles)[2], const uint32_t (&ds)[8][4], int first_key) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int row = first_key + (lane & 15);
    LLMC_UNROLL
    for (int k = 0; k < 8; k++) {
        const int piece = (2 * k + (lane >> 4)) & 7;
        store_matrices(tiles[k / 4].panel[0] + row * kTileColumns + ((piece ^ (row & 7)) << 3), ds[k]);
    }
}

// Sums of dQ in global memory: eight float4 of a thread, `kGradientConsumers` threads side by side.
LLMC_DEVICE void load_sums(float (&dq)[32], const float4* sums) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float4 x = sums[i * kGradientConsumers];
        dq[4 * i] = x.x, dq[4 * i + 1] = x.y, dq[4 * i + 2] = x.z, dq[4 * i + 3] = x.w;
    }
}
LLMC_DEVICE void store_sums(float4* sums, const float (&dq)[32]) {
    LLMC_UNROLL
    for (int i = 0; i < 8; i++)
        sums[i * kGradientConsumers] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
}

// The thread's index, which nvcc would otherwise keep in registers together with all addresses made of it.
LLMC_DEVICE int forgotten_thread() {
    int thread = static_cast<int>(threadIdx.x);
    forget_always(thread);
    return thread;
}
// The shape, in the same way: strides of the gradients made of it would stay in registers.
LLMC_DEVICE BackwardShape forgotten(BackwardShape shape) {
    forget_always(shape.T);
    forget_always(shape.NH);
    forget_always(shape.NKV);
    return shape;
}

template <class Out>
LLMC_DEVICE void store_query_gradients(BackwardShared& shared, const attention::Gradients<Out>& to,
                                       const BackwardStep& step, const float (&dq)[32], const BackwardShape& shape,
                                       float scale) {
    constexpr int HD = kBackwardHD;
    const int warp = forgotten_thread() / 32;
    if constexpr (attention::kIsFp8<Out>) named_barrier<1, kGradientConsumers>();  // all are done with `out`
    round_rows<HD>(shared.out[0] + warp * 16 * attention::kStride<HD>, dq, scale);
    store_gradients<HD>(to, {shared.out[0]}, reinterpret_cast<float*>(shared.ds[0].panel[0]),
                        {0, shape.NH, shape.NH + 2 * shape.NKV},
                        {step.m * kGradientRows, step.b, step.h, shape.T, shape.B}, warp);
}

template <class Out>
LLMC_DEVICE void store_key_gradients(BackwardShared& shared, const attention::Gradients<Out>& to,
                                     const BackwardStep& step, const float (&dk)[32], const float (&dv)[32],
                                     const BackwardShape& shape, float scale) {
    constexpr int HD = kBackwardHD;
    const int warp = forgotten_thread() / 32, rows = warp * 16 * attention::kStride<HD>;
    if constexpr (attention::kIsFp8<Out>) named_barrier<1, kGradientConsumers>();  // all are done with `out`
    round_rows<HD>(shared.out[0] + rows, dk, scale);
    round_rows<HD>(shared.out[1] + rows, dv, 1.0f);
    store_gradients<HD>(to, {shared.out[0], shared.out[1]}, reinterpret_cast<float*>(shared.ds[0].panel[0]),
                        {shape.NH, shape.NKV, shape.NH + 2 * shape.NKV},
                        {step.n * kGradientRows, step.b, step.kv, shape.T, shape.B}, warp);
}

template <class Out>
LLMC_DEVICE void consume(BackwardShared& shared, const attention::Gradients<Out>& to, float4* partials,
                         const BackwardShape& shape, float scale) {
    constexpr int Rows = kGradientRows, Threads = kGradientConsumers;
    const float scale_log2 = scale * attention::kLog2E;
    RingPosition<kBackwardStages> at;
    RingPosition<1> keys_at;
    float dk[32], dv[32];
    bool last;
    LLMC_NO_UNROLL
    do {
        const int thread = forgotten_thread(), lane = thread & 31, warp = thread / 32;
        const int warpgroup = same_in_warp(thread / 128);
        const BackwardStep& step = shared.steps[at.stage];
        wait(shared.full[at.stage], at.parity);
        if (step.new_keys) {
            LLMC_UNROLL
            for (int i = 0; i < 32; i++) dk[i] = dv[i] = 0.0f;
            wait(shared.keys_full, keys_at.parity);
            keys_at.advance();
        }
        const uint64_t own_keys = tile_descriptor(shared.keys.panel[0] + warpgroup * 64 * kTileColumns);
        const uint64_t own_values = tile_descriptor(shared.values.panel[0] + warpgroup * 64 * kTileColumns);
        const uint64_t queries = tile_descriptor(shared.queries[at.stage].panel[0]);
        const uint64_t dout = tile_descriptor(shared.dout[at.stage].panel[0]);
        float s[64], dp[64];
        begin_products();
        LLMC_UNROLL
        for (int k = 0; k < 4; k++)
            multiply_rows(s, own_keys + k * kSixteenColumns, queries + k * kSixteenColumns, k > 0);
        commit_products();
        LLMC_UNROLL
        for (int k = 0; k < 4; k++)
            multiply_rows(dp, own_values + k * kSixteenColumns, dout + k * kSixteenColumns, k > 0);
        commit_products();
        wait_for_products<1>();
        fence_accumulators(s);
        const int column = (lane & 3) * 2, row = warp * 16 + (lane >> 2);
        const OfColumns lse{shared.lse[at.stage] + column};
        if (step.masked) {
            const int windows[2] = {shared.windows[row], shared.windows[row + 8]};
            probabilities<true>(s, lse, scale_log2, (step.m - step.n) * Rows + column - row, windows);
        } else {
            probabilities<false>(s, lse, scale_log2, 0, {});
        }
        wait_for_products<0>();
        fence_accumulators(dp);
        score_gradients(dp, s, OfColumns{shared.delta[at.stage] + column});
        uint32_t p[8][4], ds[8][4];
        round_fragments(p, s);
        round_fragments(ds, dp);

        named_barrier<2, Threads>();  // both warpgroups are done with the last dS and with `out`
        store_score_gradients(shared.ds, ds, warp * 16);
        fence_async_proxy();
        fence_accumulators(dv);
        begin_products();
        multiply_fragments(dv, p, dout);
        commit_products();
        float4* const sums = partials + static_cast<size_t>(step.sums) * kSumsPerTile + forgotten_thread();
        float dq[32];
        if (step.new_queries) {
            LLMC_UNROLL
            for (int i = 0; i < 32; i++) dq[i] = 0.0f;
        } else {
            load_sums(dq, sums);
        }
        named_barrier<1, Threads>();  // all of dS is there
        const uint64_t all_keys = tile_descriptor(shared.keys.panel[0]);
        const uint64_t own_ds = tile_descriptor(shared.ds[warpgroup].panel[0]);
        fence_accumulators(dq);
        begin_products();
        LLMC_UNROLL
        for (int k = 0; k < 8; k++) multiply_columns(dq, own_ds + k * kSixteenRows, all_keys + k * kSixteenRows);
        commit_products();
        fence_accumulators(dk);
        begin_products();
        multiply_fragments(dk, ds, queries);
        commit_products();
        wait_for_products<1>();
        fence_accumulators(dv);
        fence_accumulators(dq);
        const bool queries_done = step.queries_done;
        if (!queries_done) store_sums(sums, dq);
        wait_for_products<0>();
        fence_accumulators(dk);
        const BackwardStep now = step;
        last = now.last;
        __syncwarp();
        if (lane == 0) {
            arrive(shared.empty[at.stage]);
            if (now.keys_done) arrive(shared.keys_empty);
        }
        at.advance();
        if (queries_done) store_query_gradients(shared, to, now, dq, forgotten(shape), scale);
        if (now.keys_done) store_key_gradients(shared, to, now, dk, dv, forgotten(shape), scale);
    } while (!last);
}

// ---- the kernel ----------------------------------------------------------------------------------------------------

template <bool kDocuments, class Out>
static __global__ void __launch_bounds__(kGradientThreads, 1)
    hopper_attention_backward_kernel(Out* __restrict__ dqkv, Out* __restrict__ transposed, float* __restrict__ parts,
                                     Fp8State* __restrict__ fp8, float* __restrict__ partials,
                                     const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                                     const float* __restrict__ lse, const float* __restrict__ delta,
                                     BackwardShape shape, float scale, int window, QuantizePass pass,
                                     const int* __restrict__ documents) {
#if LLMC_HOPPER
    extern __shared__ __align__(kTileAlignment) unsigned char hopper_shared[];
    BackwardShared& shared = *reinterpret_cast<BackwardShared*>(hopper_shared);
    if (threadIdx.x == 0) {
        init(shared.keys_full, 1 + 32);                    // the tiles; windows, from each lane
        init(shared.keys_empty, kGradientConsumers / 32);  // one arrival per warp
        for (int i = 0; i < kBackwardStages; i++) {
            init(shared.full[i], 2 + 32);  // the tiles; the step; lse and delta, from each lane
            init(shared.empty[i], kGradientConsumers / 32);
        }
        publish_barriers();
    }
    __syncthreads();
    const int warp = same_in_warp(static_cast<int>(threadIdx.x) / 32);
    if (warp >= kGradientConsumers / 32) {
        give_registers<40>();
        if (threadIdx.x == kGradientConsumers) produce_tiles<kDocuments>(shared, qkv, dout, shape, window, documents);
        if (threadIdx.x == kGradientConsumers + 32) produce_steps<kDocuments>(shared, shape, window, documents);
        if (warp == kGradientConsumers / 32 + 2)
            produce_statistics<kDocuments>(shared, lse, delta, shape, window, documents);
        return;
    }
    take_registers<232>();
    consume<Out>(shared, {dqkv, transposed, parts, fp8, pass}, reinterpret_cast<float4*>(partials), shape, scale);
#endif
}

static int backward_blocks(int B, const AttentionHeads& heads) {
    const long long work = static_cast<long long>(B) * heads.NKV;
    return static_cast<int>(work < kBackwardBlocks ? work : kBackwardBlocks);
}

template <class Out>
void attention_backward(const attention::Gradients<Out>& to, float* partials, const bf16* dout, const bf16* qkv,
                        const float* lse, const float* delta, int B, int T, const AttentionHeads& heads,
                        stream_t stream, const int* documents) {
    const size_t n = attention::elements(B, T, heads.NH, heads.HD), rows = n / heads.HD;
    const size_t whole = attention::elements(B, T, heads.rows(), heads.HD);
    const size_t part_count = static_cast<size_t>(B) * div_up(T, kGradientRows) * heads.qkv_width();
    const CUtensorMap qkv_map = tensor_map(qkv, B, T, static_cast<size_t>(heads.qkv_width()), 64);
    const CUtensorMap dout_map = tensor_map(dout, B, T, static_cast<size_t>(heads.width()), 64);
    const BackwardShape shape{B, T, heads.NH, heads.NKV};
    attention::with_documents(documents, [&]<bool kDocuments>() {
        launch<hopper_attention_backward_kernel<kDocuments, Out>>(
            {dim3(static_cast<unsigned>(backward_blocks(B, heads))), dim3(kGradientThreads), sizeof(BackwardShared),
             stream},
            {out(to.row, whole), out(to.transposed, whole), out(to.parts, part_count), state_access(to.fp8, to.pass),
             inout(partials, attention_backward_partials(B, T, heads)), in(dout, n), in(qkv, whole), in(lse, rows),
             in(delta, rows), in(documents, attention::tokens(B, T))},
            to.row, to.transposed, to.parts, to.fp8, partials, qkv_map, dout_map, lse, delta, shape,
            heads.softmax_scale(), heads.window_in(T), to.pass, documents);
    });
}

#define LLMC_INSTANTIATE(Out)                                                                                          \
    template void attention_backward(const attention::Gradients<Out>&, float*, const bf16*, const bf16*, const float*, \
                                     const float*, int, int, const AttentionHeads&, stream_t, const int*);
LLMC_INSTANTIATE(bf16)
LLMC_INSTANTIATE(e4m3)
LLMC_INSTANTIATE(e5m2)
#undef LLMC_INSTANTIATE

}  // namespace hopper
}  // namespace llmc
#endif
