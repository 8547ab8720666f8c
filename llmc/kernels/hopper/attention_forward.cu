// Causal flash attention forward in BF16 for Hopper: TMA loads, mbarriers and wgmma; see hopper/attention.h.
//
// A team of two consumer warpgroups owns 128 queries of a head, 64 for each, and walks over the keys that they see, 64
// or 128 at a time, from the last to the first. A thread of the producer warpgroup loads; each consumer warpgroup
// multiplies and keeps its scores, probabilities and output in registers. While the tensor cores compute the scores of
// the next tile, and the product of this tile's probabilities with its values, the softmax of the next tile runs
// (FlashAttention-3, arXiv 2407.08608). A warpgroup skips tiles of which it sees no key.
//
// At head dimension 64 a block has two teams. Each has its own shared memory and takes its own tiles of queries, so one
// multiplies while the other starts or finishes a tile. At 128 there is room for one.
//
// A team takes many tiles of queries, one after the other, by tickets (WorkOrder). While its consumers store a tile's
// output, the producer already loads the next tile.
#include "llmc/kernels/hopper/attention.h"

#if LLMC_ON_GPU
#include "llmc/kernels/hopper/attention_tiles.cuh"

namespace llmc {
namespace hopper {

// Sizes by head dimension. Registers: the launch gives each thread the same number, the producers hand most of theirs
// to the consumers. 640 threads x 96 >= 128 x 24 + 512 x 112; 384 threads x 168 = 128 x 40 + 256 x 232.
template <int HD>
struct ForwardTiles {
    static constexpr int teams = HD == 64 ? 2 : 1;
    static constexpr int consumers = 2;  // warpgroups of a team
    static constexpr int consumer_threads = 128 * consumers, threads = teams * consumer_threads + 128;
    static constexpr int query_rows = 64 * consumers, key_rows = HD == 64 ? 64 : 128, stages = HD == 64 ? 3 : 2;
    static constexpr int panels = HD / 64;             // tiles of 64 columns side by side
    static constexpr bool room_for_output = HD == 64;  // in shared memory, next to the queries
    static constexpr int producer_registers = HD == 64 ? 24 : 40, consumer_registers = HD == 64 ? 112 : 232;
};

// Shared memory of a team: 111 KB for HD 64, 213 KB for HD 128. The output and what its rounding left, `out_low`, wait
// there on their way to memory, rows padded as in attention_tiles.cuh. With HD 128 they overwrite the queries. FP8
// codes wait in `codes`.
template <int HD>
struct ForwardShared {
    using Tiles = ForwardTiles<HD>;
    struct alignas(kTileAlignment) Queries {
        bf16 panel[Tiles::panels][Tiles::query_rows * kTileColumns];
    };
    struct alignas(kTileAlignment) Keys {
        bf16 panel[Tiles::panels][Tiles::key_rows * kTileColumns];
    };
    static constexpr int output_elements = Tiles::query_rows * attention::kStride<HD>;
    static constexpr int output_bytes = 2 * output_elements * static_cast<int>(sizeof(bf16));

    Keys keys[Tiles::stages], values[Tiles::stages];
    Queries queries;
    alignas(128) unsigned char behind_queries[output_bytes - (Tiles::room_for_output ? 0 : sizeof(Queries))];
    alignas(128) uint32_t codes[Tiles::consumers][kCodeWords<HD>];
    WorkItem item;
    Barrier queries_full, queries_empty, keys_full[Tiles::stages], keys_empty[Tiles::stages],
        values_full[Tiles::stages], values_empty[Tiles::stages];

    LLMC_DEVICE bf16* out() {
        return Tiles::room_for_output ? reinterpret_cast<bf16*>(behind_queries) : queries.panel[0];
    }
    LLMC_DEVICE bf16* out_low() { return out() + output_elements; }
};

// An item's queries, and the tiles of keys that they meet.
template <int HD, bool kDocuments>
struct ForwardWalk {
    int b, h, first_query, first_key, tiles;
    attention::Windows<kDocuments> windows;

    LLMC_DEVICE ForwardWalk(const WorkItem& item, int T, int window, const int* documents)
        : b(item.b), h(item.head), windows{window, documents, b * T, T} {
        using Tiles = ForwardTiles<HD>;
        first_query = (div_up(T, Tiles::query_rows) - 1 - item.rank) * Tiles::query_rows;
        first_key = attention::first_seen_key(first_query, windows(first_query), Tiles::key_rows);
        const int seen_keys = first_query + Tiles::query_rows < T ? first_query + Tiles::query_rows : T;
        tiles = div_up(seen_keys - first_key, Tiles::key_rows);
    }
};

// ---- the producer --------------------------------------------------------------------------------------------------

// Takes items. For each loads the queries, then keys and values tile by tile, from the last to the first, as stages
// become free. The consumers are up to three tiles behind, so they do not wait for a ticket's answer.
template <int HD, bool kDocuments>
LLMC_DEVICE void produce(ForwardShared<HD>& shared, const CUtensorMap& qkv, const WorkOrder& order, int T, int NH,
                         int NKV, int window, const int* documents) {
    using Tiles = ForwardTiles<HD>;
    RingPosition<1> queries;
    RingPosition<Tiles::stages> at;
    LLMC_NO_UNROLL
    while (true) {
        const WorkItem item = order.take();
        wait(shared.queries_empty, queries.parity ^ 1);
        shared.item = item;
        if (item.none()) return arrive(shared.queries_full);
        const ForwardWalk<HD, kDocuments> walk(item, T, window, documents);
        const HeadColumns<HD> columns(walk.h, walk.h / (NH / NKV), NH, NKV);
        const auto load = [&](auto& tile, Barrier& full, int column, int row) {
            arrive_and_expect(full, sizeof(tile));
            load_panels(tile.panel, qkv, full, column, row, walk.b);
        };
        load(shared.queries, shared.queries_full, columns.query, walk.first_query);
        queries.advance();
        LLMC_NO_UNROLL
        for (int tile = walk.tiles - 1; tile >= 0; tile--, at.advance()) {
            const int row = walk.first_key + tile * Tiles::key_rows;
            wait(shared.keys_empty[at.stage], at.parity ^ 1);
            load(shared.keys[at.stage], shared.keys_full[at.stage], columns.key, row);
            wait(shared.values_empty[at.stage], at.parity ^ 1);
            load(shared.values[at.stage], shared.values_full[at.stage], columns.value, row);
        }
    }
}

// ---- a consumer warpgroup ------------------------------------------------------------------------------------------

// The registers of a thread. Index 0 is row g of its warp's 16 rows, index 1 row g + 8, with g = lane / 4.
template <int HD>
struct ForwardState {
    float output[HD / 64][32];  // not yet divided by rounded_sum
    float maximum[2];           // of the raw scores seen so far
    float sum[2];               // of this thread's unrounded probabilities, for lse
    // The sum of the row's probabilities after rounding to BF16. Divided by it, the weights of V's rows add up to
    // exactly 1, so a component common to all of V passes without rounding errors, which would bias backward's delta.
    float rounded_sum[2];
};

// Turns raw scores into probabilities relative to the row's maximum so far, in base 2. `correction` is the factor for
// all sums under the previous maximum. `diagonal` is (this thread's first query) - (its first key); a row sees keys 0
// to windows[row] - 1 places before it.
template <bool Masked, int N>
LLMC_DEVICE void softmax(float (&scores)[N], float (&maximum)[2], float (&sum)[2], float (&correction)[2],
                         float scale_log2, int diagonal, const int (&windows)[2]) {
    const float minus_infinity = float_from_bits(0xff800000u);
    float offset[2], previous[2] = {maximum[0], maximum[1]};
    LLMC_UNROLL
    for (int i = 0; i < N; i++) {
        const int half = i >> 1 & 1;
        if (Masked && !attention::in_window(diagonal + 8 * half - (i >> 2) * 8 - (i & 1), windows[half]))
            scores[i] = minus_infinity;
        maximum[half] = max_float(maximum[half], scores[i]);
    }
    quad_max_each(maximum);
    for (int half = 0; half < 2; half++) {
        // A row that has seen no key yet keeps the maximum -infinity, and 0 takes its place.
        const float base = Masked && maximum[half] == minus_infinity ? 0.0f : maximum[half];
        correction[half] = exp2_fast((previous[half] - base) * scale_log2);
        offset[half] = base * scale_log2;
        sum[half] *= correction[half];
    }
    LLMC_UNROLL
    for (int i = 0; i < N; i++) {
        const int half = i >> 1 & 1;
        scores[i] = exp2_fast(scores[i] * scale_log2 - offset[half]);
        sum[half] += scores[i];
    }
}

// Rounds probabilities to BF16, as the A operand of the next product, and adds them up. A product with a matrix of ones
// takes one instruction per 16 keys, where unpacking and adding take 16. All lanes of a row get the sum of its keys.
template <int N>
LLMC_DEVICE void round_probabilities(uint32_t (&rounded)[N / 8][4], float (&rounded_sum)[2], const float (&scores)[N]) {
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    float total[2][4] = {};
    LLMC_UNROLL
    for (int k = 0; k < N / 8; k++) {
        for (int i = 0; i < 4; i++) rounded[k][i] = pack_bf16x2(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        mma_m16n8k16(total[k % 2], rounded[k], ones);
    }
    rounded_sum[0] += total[0][0] + total[1][0];
    rounded_sum[1] += total[0][2] + total[1][2];
}

// Walks over an item's tiles of keys. `keys` and `values` are the places in their rings, which all items share.
// sight_on(key) judges the tile that starts with `key`. `query` is the thread's first row.
template <int HD, class SightOfKeys>
LLMC_DEVICE void add_tiles(ForwardState<HD>& state, ForwardShared<HD>& shared,
                           RingPosition<ForwardTiles<HD>::stages>& keys, RingPosition<ForwardTiles<HD>::stages>& values,
                           int warpgroup, int first_key, int tiles, float scale_log2, int query,
                           const int (&windows)[2], SightOfKeys&& sight_on) {
    using Tiles = ForwardTiles<HD>;
    const int lane = static_cast<int>(threadIdx.x & 31);
    const bf16* const queries = shared.queries.panel[0] + warpgroup * 64 * kTileColumns;
    int key = first_key + (tiles - 1) * Tiles::key_rows, left = tiles;  // the next tile, and how many are left
    const auto skip_stage = [&](Barrier& full, Barrier& empty, auto& at) {
        wait(full, at.parity);
        __syncwarp();  // all lanes have seen this phase of `full` complete, before the next one may begin
        if (lane == 0) arrive(empty);
        at.advance();
    };
    const auto skip = [&] {
        for (; left > 0 && sight_on(key) == Sight::nothing; left--, key -= Tiles::key_rows) {
            skip_stage(shared.keys_full[keys.stage], shared.keys_empty[keys.stage], keys);
            skip_stage(shared.values_full[values.stage], shared.values_empty[values.stage], values);
        }
    };
    skip();  // tiles beyond the warpgroup's last query
    if (left == 0) return;

    float scores[Tiles::key_rows / 2], correction[2];
    uint32_t probabilities[Tiles::key_rows / 16][4];
    wait(shared.keys_full[keys.stage], keys.parity);
    begin_products();
    multiply_panels<HD / 64, Tiles::query_rows, Tiles::key_rows>(scores, queries, shared.keys[keys.stage].panel[0]);
    commit_products();
    wait_for_products<0>();
    fence_accumulators(scores);
    if (lane == 0) arrive(shared.keys_empty[keys.stage]);
    keys.advance();
    softmax<true>(scores, state.maximum, state.sum, correction, scale_log2, query - key - (lane & 3) * 2, windows);
    round_probabilities(probabilities, state.rounded_sum, scores);
    left--, key -= Tiles::key_rows;

    // Multiplies the next tile of keys and, at the same time, the last tile's probabilities with its values.
    const auto step = [&]<bool Masked>() {
        wait(shared.keys_full[keys.stage], keys.parity);
        fence_accumulators(scores);
        fence_panels(state.output);
        begin_products();
        multiply_panels<HD / 64, Tiles::query_rows, Tiles::key_rows>(scores, queries, shared.keys[keys.stage].panel[0]);
        commit_products();
        wait(shared.values_full[values.stage], values.parity);
        multiply_fragments(state.output, probabilities, shared.values[values.stage].panel);
        commit_products();
        wait_for_products<1>();
        fence_accumulators(scores);
        if (lane == 0) arrive(shared.keys_empty[keys.stage]);
        keys.advance();
        softmax<Masked>(scores, state.maximum, state.sum, correction, scale_log2, query - key - (lane & 3) * 2,
                        windows);
        wait_for_products<0>();
        fence_panels(state.output);
        if (lane == 0) arrive(shared.values_empty[values.stage]);
        values.advance();
        for (int half = 0; half < 2; half++) state.rounded_sum[half] *= correction[half];
        round_probabilities(probabilities, state.rounded_sum, scores);
        LLMC_UNROLL
        for (int p = 0; p < HD / 64; p++) {
            LLMC_UNROLL
            for (int i = 0; i < 32; i++) state.output[p][i] *= correction[i >> 1 & 1];
        }
    };
    LLMC_NO_UNROLL
    for (; left > 0; left--, key -= Tiles::key_rows) {
        const Sight sight = sight_on(key);
        if (sight == Sight::nothing) break;  // before the first query's window, and so is all that follows
        if (sight == Sight::part)
            step.template operator()<true>();
        else
            step.template operator()<false>();
    }

    wait(shared.values_full[values.stage], values.parity);
    fence_panels(state.output);
    begin_products();
    multiply_fragments(state.output, probabilities, shared.values[values.stage].panel);
    commit_products();
    wait_for_products<0>();
    fence_panels(state.output);
    if (lane == 0) arrive(shared.values_empty[values.stage]);
    values.advance();
    skip();  // tiles before the window of the warpgroup's first query
}

// Rounds a warp's finished output into its 16 rows of two tiles: `high`, and `low`, which is what rounding left. Their
// sum becomes the state's output.
template <int HD>
LLMC_DEVICE void split_rows(bf16* high, bf16* low, ForwardState<HD>& state, const float (&inverse)[2]) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int half = 0; half < 2; half++) {
        const int corner = (8 * half + (lane >> 2)) * attention::kStride<HD> + (lane & 3) * 2;
        LLMC_UNROLL
        for (int j = 0; j < HD / 8; j++) {
            float *const left = &state.output[j / 8][j % 8 * 4 + 2 * half], *const right = left + 1;
            const float a = *left * inverse[half], b = *right * inverse[half];
            const uint32_t pair = pack_bf16x2(a, b);
            const uint32_t rest = pack_bf16x2(a - bf16x2_low(pair), b - bf16x2_high(pair));
            store_word(high + corner + j * 8, pair);
            store_word(low + corner + j * 8, rest);
            *left = bf16x2_low(pair) + bf16x2_low(rest);
            *right = bf16x2_high(pair) + bf16x2_high(rest);
        }
    }
}

// The output; `row` and `transposed` only with kFp8.
struct ForwardOutput {
    bf16 *out, *out_low;
    float* lse;
    e4m3 *row, *transposed;
    Fp8State* fp8;
    QuantizePass pass;
};

// Quantizes a warpgroup's output, and writes the codes. `state.output` is the sum of what split_rows() wrote.
template <int HD>
LLMC_DEVICE void store_codes(uint32_t* codes, const ForwardOutput& to, ForwardState<HD>& state, float scale,
                             int group_query, int b, int h, int B, int T, int NH, int warpgroup) {
    const size_t width = static_cast<size_t>(NH) * HD, tokens = static_cast<size_t>(B) * T;
    const size_t channel = static_cast<size_t>(h) * HD, token = static_cast<size_t>(b) * T;
    const int first_row = group_query + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    if (group_query >= T) return;  // a warpgroup without rows
    QuantizeTally tally;
    warpgroup_barrier(warpgroup);  // all are done with the last codes
    quantize_fragments<e4m3, HD>(codes, tally, state.output, scale, first_row, T, to.pass);
    warpgroup_barrier(warpgroup);
    if (to.row) store_code_rows<HD>(to.row + token * width + channel, width, codes, group_query, T);
    if (to.transposed) store_code_columns<HD>(to.transposed + channel * tokens + token, tokens, codes, group_query, T);
    const bool counts_elements = group_query + b + h + thread_of_warpgroup() == 0;
    commit_warp(to.fp8, tally, counts_elements ? tokens * width : 0, to.pass);
}

// Takes a team's items. Warps have BF16 output of their own to store, and do not wait for each other; with FP8 codes
// the warps of a warpgroup do.
template <int HD, bool kDocuments, bool kFp8>
LLMC_DEVICE void consume(ForwardShared<HD>& shared, int team, const ForwardOutput& to, int B, int T, int NH,
                         float scale, int window, const int* documents) {
    using namespace attention;
    using Tiles = ForwardTiles<HD>;
    const int thread = static_cast<int>(threadIdx.x) - team * Tiles::consumer_threads;
    const int lane = thread & 31, warp = thread / 32, warpgroup = same_in_warp(thread / 128);
    RingPosition<1> queries;
    RingPosition<Tiles::stages> keys, values;
    float code_scale = 1.0f;
    if constexpr (kFp8) code_scale = to.fp8->scale;
    LLMC_NO_UNROLL
    while (true) {
        wait(shared.queries_full, queries.parity);
        const WorkItem item = shared.item;
        if (item.none()) return;
        const ForwardWalk<HD, kDocuments> walk(item, T, window, documents);
        const int group_query = walk.first_query + warpgroup * 64, last_query = group_query + 63;
        const int query = walk.first_query + warp * 16 + (lane >> 2);
        const int windows[2] = {walk.windows(query), walk.windows(query + 8)};
        const int first_window = walk.windows(group_query), last_window = walk.windows(last_query);
        ForwardState<HD> state = {};
        state.maximum[0] = state.maximum[1] = float_from_bits(0xff800000u);
        add_tiles<HD>(state, shared, keys, values, warpgroup, walk.first_key, walk.tiles, scale * kLog2E, query,
                      windows, [&](int key) {
                          if (group_query >= T) return Sight::nothing;
                          return sight_of(group_query, last_query, key, key + Tiles::key_rows - 1, first_window,
                                          last_window);
                      });
        const auto release_queries = [&] {
            __syncwarp();
            if (lane == 0) arrive(shared.queries_empty);
        };
        if constexpr (Tiles::room_for_output) release_queries();

        // Store, through shared memory for 16-byte accesses.
        quad_sum_each(state.sum);
        float inverse[2];
        for (int half = 0; half < 2; half++) {
            inverse[half] = 1.0f / state.rounded_sum[half];
            if ((lane & 3) == 0 && query + 8 * half < T)
                to.lse[row_statistics_offset(walk.b, walk.h, T, NH) + query + 8 * half] =
                    state.maximum[half] * scale + logf(state.sum[half]);
        }
        if constexpr (!Tiles::room_for_output)
            named_barrier<Tiles::consumers + 1, Tiles::consumer_threads>();  // all are done with the queries
        bf16* const high = shared.out() + warp * 16 * kStride<HD>;
        bf16* const low = shared.out_low() + warp * 16 * kStride<HD>;
        split_rows<HD>(high, low, state, inverse);
        __syncwarp();
        const size_t offset = head_offset<HD>(walk.b, walk.h, T, NH), stride = static_cast<size_t>(NH) * HD;
        const int first_row = walk.first_query + warp * 16;
        if (to.out) store_rows<HD, 16>(to.out + offset, stride, high, first_row, T);
        if (to.out_low) store_rows<HD, 16>(to.out_low + offset, stride, low, first_row, T);
        if constexpr (kFp8)
            store_codes<HD>(shared.codes[warpgroup], to, state, code_scale, group_query, walk.b, walk.h, B, T, NH,
                            team * Tiles::consumers + warpgroup);
        if constexpr (!Tiles::room_for_output) {
            fence_async_proxy();  // the output was written where TMA writes next
            release_queries();
        }
        queries.advance();
    }
}

// ---- the kernel ----------------------------------------------------------------------------------------------------

// Grid: order.blocks.
template <int HD, bool kDocuments, bool kFp8>
static __global__ void __launch_bounds__(ForwardTiles<HD>::threads, 1)
    hopper_attention_forward_kernel(bf16* __restrict__ out, bf16* __restrict__ out_low, float* __restrict__ lse,
                                    const __grid_constant__ CUtensorMap qkv, e4m3* __restrict__ row,
                                    e4m3* __restrict__ transposed, Fp8State* __restrict__ fp8, WorkOrder order, int B,
                                    int T, int NH, int NKV, float scale, int window, QuantizePass pass,
                                    const int* __restrict__ documents) {
#if LLMC_HOPPER
    using Tiles = ForwardTiles<HD>;
    extern __shared__ __align__(kTileAlignment) unsigned char hopper_shared[];
    ForwardShared<HD>* const of_teams = reinterpret_cast<ForwardShared<HD>*>(hopper_shared);
    if (threadIdx.x < Tiles::teams) {
        constexpr int consumer_warps = 4 * Tiles::consumers;  // each arrives once at an empty stage
        ForwardShared<HD>& shared = of_teams[threadIdx.x];
        init(shared.queries_full, 1);
        init(shared.queries_empty, consumer_warps);
        for (int i = 0; i < Tiles::stages; i++) {
            init(shared.keys_full[i], 1);
            init(shared.values_full[i], 1);
            init(shared.keys_empty[i], consumer_warps);
            init(shared.values_empty[i], consumer_warps);
        }
        publish_barriers();
    }
    __syncthreads();
    const int warpgroup = same_in_warp(static_cast<int>(threadIdx.x) / 128);
    const auto works = [&](int team) {  // a team may be left out
        return static_cast<int>(blockIdx.x + team * gridDim.x) < order.tickets.workers;
    };
    if (warpgroup == Tiles::teams * Tiles::consumers) {
        give_registers<Tiles::producer_registers>();
        const int team = same_in_warp(static_cast<int>(threadIdx.x) % 128 / 32);
        if (team < Tiles::teams && threadIdx.x % 32 == 0 && works(team))
            produce<HD, kDocuments>(of_teams[team], qkv, order, T, NH, NKV, window, documents);
        return;
    }
    take_registers<Tiles::consumer_registers>();
    const int team = warpgroup / Tiles::consumers;
    if (!works(team)) return;
    consume<HD, kDocuments, kFp8>(of_teams[team], team, {out, out_low, lse, row, transposed, fp8, pass}, B, T, NH,
                                  scale, window, documents);
#endif
}

void attention_forward(const Quantized<e4m3>& to, bf16* result, bf16* result_low, float* lse, const bf16* qkv, int B,
                       int T, const AttentionHeads& heads, QuantizePass pass, unsigned* tickets, stream_t stream,
                       const int* documents) {
    const size_t n = attention::elements(B, T, heads.NH, heads.HD);
    const CUtensorMap map = tensor_map(qkv, B, T, static_cast<size_t>(heads.qkv_width()), 64);
    const auto run = [&]<int HD, bool kDocuments, bool kFp8>() {
        using Tiles = ForwardTiles<HD>;
        const WorkOrder order(tickets, B, heads.NH, div_up(T, Tiles::query_rows), Tiles::teams);
        launch<hopper_attention_forward_kernel<HD, kDocuments, kFp8>>(
            {dim3(static_cast<unsigned>(order.blocks)), dim3(Tiles::threads), Tiles::teams * sizeof(ForwardShared<HD>),
             stream},
            {out(result, n), out(result_low, n), out(lse, n / HD), in(qkv, attention::elements(B, T, heads.rows(), HD)),
             out(to.row, n), out(to.transposed, n), state_access(to.state, pass),
             in(documents, attention::tokens(B, T)), tickets_access(tickets)},
            result, result_low, lse, map, to.row, to.transposed, to.state, order, B, T, heads.NH, heads.NKV,
            heads.softmax_scale(), heads.window_in(T), pass, documents);
    };
    with_head_dimension(heads, documents, [&]<int HD, bool kDocuments>() {
        to.state ? run.template operator()<HD, kDocuments, true>() : run.template operator()<HD, kDocuments, false>();
    });
}

}  // namespace hopper
}  // namespace llmc
#endif
