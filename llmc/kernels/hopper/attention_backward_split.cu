// Causal attention backward in BF16 for Hopper, in two kernels; see hopper/attention.h. Head dimensions 64 and 128.
//
// A block of one kernel owns 128 keys of a head, a block of the other 128 queries; both walk over tiles of the other
// side, and compute all scores and their gradients again:
//
//   keys:     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q
//   queries:  S = Q K^T      dP = dO V^T      dQ += dS K
//
// These are seven products; a kernel that owned whole heads would have five. But no sums go through global memory, so
// any T and any group runs, and even a few heads give enough blocks to fill a card.
//
// Each of two consumer warpgroups has 64 of the block's rows. P and dS stay in its registers as the left operands of
// the next products, and so do the sums of the gradients. A warpgroup skips tiles in which no query sees a key.
//
// The kernel that owns queries runs first. It computes delta = rowsum(dO * O) of its rows, and writes it for the other
// kernel. All of a sum's terms are added in the portable kernel's order, so delta has the same bits.
//
// A block takes many tiles of rows, one after the other, by tickets (WorkOrder). While its consumers store a tile's
// gradients, the producers already load the next tile. Each warpgroup turns its gradients into FP8 codes by itself, and
// two other warps sum up the rounded gradients for the bias gradient.
#include "llmc/kernels/hopper/attention.h"

#if LLMC_ON_GPU
#include "llmc/kernels/hopper/attention_tiles.cuh"
#include "llmc/kernels/instantiate.h"

namespace llmc {
namespace hopper {

enum class Own { keys, queries };

// Sizes. dK and dV leave registers for the scores of 64 queries only.
template <Own own, int HD>
struct SplitTiles {
    static constexpr int panels = HD / 64;
    static constexpr int columns = own == Own::keys ? 64 : 128;  // of a tile of scores: rows of the other side
    static constexpr int stages = HD == 128 ? 2 : own == Own::keys ? 4 : 3;
    static constexpr int row_stages = HD == 64 ? 2 : 1;  // buffers for the block's own rows
    // The last product of a tile runs together with the first ones of the next, and lse and delta are loaded before
    // they are needed. For HD 128 there are too few registers.
    static constexpr bool works_ahead = HD == 64;
    static constexpr int gradients = own == Own::keys ? 2 : 1;  // dK and dV, or dQ
    // A warp writes lse and delta of the queries into shared memory: of columns, or of the block's own rows, one item
    // ahead. The kernel that owns queries has no room for them at HD 128, where its consumers compute their own.
    static constexpr bool shares_statistics = own == Own::keys || HD == 64;
    static constexpr bool computes_delta_ahead = own == Own::queries && HD == 64;
    static constexpr int statistics_stages = own == Own::keys ? stages : row_stages;
    static constexpr int statistics_rows = !shares_statistics ? 1 : own == Own::keys ? columns : kGradientRows;
    // Arrivals when a stage is full: the tiles, and lse and delta from each lane of that warp.
    static constexpr int stage_arrivals = own == Own::keys ? 33 : 1;
};

// Shared memory of the kernels that own keys and queries: 167 and 213 KB for HD 64, 198 and 227 KB for HD 128. Of
// either side, tile 0 is an operand of S (queries or keys), and tile 1 an operand of dP (dout or values).
template <Own own, int HD>
struct SplitShared {
    using Tiles = SplitTiles<own, HD>;
    struct alignas(kTileAlignment) OwnTile {
        bf16 panel[Tiles::panels][kGradientRows * kTileColumns];
    };
    struct alignas(kTileAlignment) OtherTile {
        bf16 panel[Tiles::panels][Tiles::columns * kTileColumns];
    };
    struct Nothing {};
    OwnTile rows[Tiles::row_stages][2];
    OtherTile columns[Tiles::stages][2];
    std::conditional_t<Tiles::computes_delta_ahead, OwnTile[2], Nothing> outputs;     // out and out_low of the own rows
    alignas(128) bf16 out[Tiles::gradients][kGradientRows * attention::kStride<HD>];  // gradients, to be stored
    using Statistics = float[Tiles::statistics_stages][Tiles::statistics_rows];
    Statistics lse, delta;
    WorkItem items[Tiles::row_stages];
    Barrier rows_full[Tiles::row_stages], rows_empty[Tiles::row_stages], full[Tiles::stages], empty[Tiles::stages];
    Barrier out_full, out_empty;                                         // for the warps that sum up FP8 gradients
    Barrier outputs_full, outputs_empty, delta_full[Tiles::row_stages];  // for the warp that computes delta ahead

    // FP8 codes of a warpgroup's gradient go through its half of the block's own rows, which are no longer needed then.
    static_assert(kCodeWords<HD> * sizeof(uint32_t) <= 64 * kTileColumns * sizeof(bf16));
    LLMC_DEVICE uint32_t* codes(int row_stage, int gradient, int warpgroup) {
        return reinterpret_cast<uint32_t*>(rows[row_stage][gradient].panel[0] + warpgroup * 64 * kTileColumns);
    }
};

struct SplitShape {
    int B, T, NH, NKV;
};

// Tensor maps of what TMA loads. The output is loaded where delta is computed ahead.
struct SplitMaps {
    CUtensorMap qkv, dout, out, out_low;
};

// An item's rows, and the columns that they meet: tiles from `begin` up to `end` of each query head of a group, or of
// the one key head.
template <Own own, int HD, bool kDocuments>
struct SplitWalk {
    int b, h, kv, first_row, begin, end, heads;
    attention::Windows<kDocuments> windows;

    LLMC_DEVICE SplitWalk(const WorkItem& item, const SplitShape& shape, int window, const int* documents)
        : b(item.b), windows{window, documents, b * shape.T, shape.T} {
        const int group = shape.NH / shape.NKV, T = shape.T;
        const int tile = own == Own::keys ? item.rank : div_up(T, kGradientRows) - 1 - item.rank;
        first_row = tile * kGradientRows;
        const int after = first_row + kGradientRows < T ? first_row + kGradientRows : T;
        if constexpr (own == Own::keys) {
            kv = item.head, h = kv * group, heads = group;
            begin = first_row;
            const int unseen = after - 1 + windows.of_key(after - 1);  // the first query that sees no key
            end = unseen < T ? unseen : T;
        } else {
            h = item.head, kv = h / group, heads = 1;
            begin = attention::first_seen_key(first_row, windows(first_row), SplitTiles<own, HD>::columns);
            end = after;
        }
    }
    // Calls step(member of the group, first column) for each tile.
    template <class Step>
    LLMC_DEVICE void each_tile(Step&& step) const {
        LLMC_NO_UNROLL
        for (int member = 0; member < heads; member++) {
            LLMC_NO_UNROLL
            for (int column = begin; column < end; column += SplitTiles<own, HD>::columns) step(member, column);
        }
    }
    LLMC_DEVICE int window_of(int row) const { return own == Own::keys ? windows.of_key(row) : windows(row); }
};

// ---- producers -----------------------------------------------------------------------------------------------------

// One thread takes items, and loads an item's rows, and then tiles of columns as stages become free. The consumers are
// behind by as many tiles as there are stages, so they do not wait for a ticket's answer. The block's other warps read
// an item with its rows, or the end.
template <Own own, int HD, bool kDocuments>
LLMC_DEVICE void produce_tiles(SplitShared<own, HD>& shared, const SplitMaps& maps, const SplitShape& shape,
                               const WorkOrder& order, int window, const int* documents) {
    using Tiles = SplitTiles<own, HD>;
    RingPosition<Tiles::row_stages> rows_at;
    RingPosition<Tiles::stages> at;
    RingPosition<1> outputs_at;
    LLMC_NO_UNROLL
    while (true) {
        const WorkItem item = order.take();
        Barrier& rows_full = shared.rows_full[rows_at.stage];
        wait(shared.rows_empty[rows_at.stage], rows_at.parity ^ 1);
        shared.items[rows_at.stage] = item;
        if (item.none()) return arrive(rows_full);
        const SplitWalk<own, HD, kDocuments> walk(item, shape, window, documents);
        const HeadColumns<HD> head(walk.h, walk.kv, shape.NH, shape.NKV);
        const auto load = [&](auto& tiles, Barrier& full, bool keys, int member, int row) {
            const int query = head.query + member * HD;
            arrive_and_expect(full, sizeof(tiles));
            load_panels(tiles[0].panel, maps.qkv, full, keys ? head.key : query, row, walk.b);
            load_panels(tiles[1].panel, keys ? maps.qkv : maps.dout, full, keys ? head.value : query, row, walk.b);
        };
        load(shared.rows[rows_at.stage], rows_full, own == Own::keys, 0, walk.first_row);
        rows_at.advance();
        if constexpr (Tiles::computes_delta_ahead) {
            wait(shared.outputs_empty, outputs_at.parity ^ 1);
            arrive_and_expect(shared.outputs_full, sizeof(shared.outputs));
            load_panels(shared.outputs[0].panel, maps.out, shared.outputs_full, head.query, walk.first_row, walk.b);
            load_panels(shared.outputs[1].panel, maps.out_low, shared.outputs_full, head.query, walk.first_row, walk.b);
            outputs_at.advance();
        }
        walk.each_tile([&](int member, int column) {
            wait(shared.empty[at.stage], at.parity ^ 1);
            load(shared.columns[at.stage], shared.full[at.stage], own != Own::keys, member, column);
            at.advance();
        });
    }
}

// A warp writes lse in base 2 and delta of each tile of queries that meets the block's keys. All loads are under way
// before the first result is used: one after the other they took longer than a tile's products.
template <int HD, bool kDocuments>
LLMC_DEVICE void produce_statistics(SplitShared<Own::keys, HD>& shared, const float* lse, const float* delta,
                                    const SplitShape& shape, int window, const int* documents) {
    using Tiles = SplitTiles<Own::keys, HD>;
    const int lane = static_cast<int>(threadIdx.x & 31), T = shape.T;
    RingPosition<Tiles::row_stages> rows_at;
    RingPosition<Tiles::stages> at;
    LLMC_NO_UNROLL
    while (true) {
        wait(shared.rows_full[rows_at.stage], rows_at.parity);
        const WorkItem item = shared.items[rows_at.stage];
        if (item.none()) return;
        rows_at.advance();
        const SplitWalk<Own::keys, HD, kDocuments> walk(item, shape, window, documents);
        walk.each_tile([&](int member, int column) {
            const size_t rows = attention::row_statistics_offset(walk.b, walk.h + member, T, shape.NH);
            float loaded[Tiles::columns / 32][2];
            LLMC_UNROLL
            for (int i = 0; i < Tiles::columns / 32; i++) {
                const int query = column + i * 32 + lane;
                loaded[i][0] = lse_at(lse + rows, query, T);
                loaded[i][1] = query < T ? delta[rows + static_cast<size_t>(query)] : 0.0f;
            }
            wait(shared.empty[at.stage], at.parity ^ 1);
            LLMC_UNROLL
            for (int i = 0; i < Tiles::columns / 32; i++) {
                shared.lse[at.stage][i * 32 + lane] = loaded[i][0] * attention::kLog2E;
                shared.delta[at.stage][i * 32 + lane] = loaded[i][1];
            }
            arrive(shared.full[at.stage]);
            at.advance();
        });
    }
}

// A warp computes delta of the block's own queries one item ahead, four lanes a row, from tiles in shared memory. It
// writes delta and lse in base 2 for the consumers, and delta for the other kernel. Rows from T on have arrived as
// zeros.
template <int HD>
LLMC_DEVICE void produce_delta(SplitShared<Own::queries, HD>& shared, const float* lse, float* delta,
                               const SplitShape& shape) {
    static_assert(HD == kTileColumns);
    const int lane = static_cast<int>(threadIdx.x & 31), T = shape.T;
    const int quad_row = lane >> 3 | (lane & 4);  // neighbouring quads take rows whose pieces lie in different banks
    RingPosition<SplitTiles<Own::queries, HD>::row_stages> at;
    RingPosition<1> outputs_at;
    LLMC_NO_UNROLL
    while (true) {
        wait(shared.rows_full[at.stage], at.parity);
        const WorkItem item = shared.items[at.stage];
        if (item.none()) return;
        const int first_query = (div_up(T, kGradientRows) - 1 - item.rank) * kGradientRows + lane;
        const size_t rows = attention::row_statistics_offset(item.b, item.head, T, shape.NH);
        float own_lse[kGradientRows / 32];
        LLMC_UNROLL
        for (int i = 0; i < kGradientRows / 32; i++) own_lse[i] = lse_at(lse + rows, first_query + i * 32, T);
        wait(shared.outputs_full, outputs_at.parity);
        LLMC_NO_UNROLL  // with two rows in one step ptxas spills
            for (int row = quad_row; row < kGradientRows; row += 8) {
            float sum[1] = {};
            for (int piece = 0; piece < 8; piece += 4) {
                const int place = row * kTileColumns + ((piece + (lane & 3)) ^ quad_row) * 8;
                attention::add_to_delta(sum[0], shared.rows[at.stage][1].panel[0] + place,
                                        shared.outputs[0].panel[0] + place, shared.outputs[1].panel[0] + place);
            }
            quad_sum_each(sum);
            if ((lane & 3) == 0) shared.delta[at.stage][row] = sum[0];
        }
        __syncwarp();
        if (lane == 0) arrive(shared.outputs_empty);
        LLMC_UNROLL
        for (int i = 0; i < kGradientRows / 32; i++) {
            const int query = first_query + i * 32;
            shared.lse[at.stage][i * 32 + lane] = own_lse[i] * attention::kLog2E;
            if (query < T) delta[rows + static_cast<size_t>(query)] = shared.delta[at.stage][i * 32 + lane];
        }
        arrive(shared.delta_full[at.stage]);
        at.advance();
        outputs_at.advance();
    }
}

// Two warps sum up the rounded gradients of an item's tokens for the bias gradient, two channels a thread, while the
// consumers store codes. Numbers are added in the portable kernel's order.
constexpr int kSummingThreads = 64;
template <Own own, int HD>
LLMC_DEVICE void sum_gradients(SplitShared<own, HD>& shared, float* parts, const SplitShape& shape, int thread) {
    constexpr int rows_at_once = attention::ChunkOwner<HD, kGradientConsumers>::rows_at_once, pairs = HD / 2;
    const int heads = shape.NH + 2 * shape.NKV, tiles = div_up(shape.T, kGradientRows);
    RingPosition<SplitTiles<own, HD>::row_stages> rows_at;
    RingPosition<1> at;
    LLMC_NO_UNROLL
    while (true) {
        wait(shared.rows_full[rows_at.stage], rows_at.parity);
        const WorkItem item = shared.items[rows_at.stage];
        if (item.none()) return;
        __syncwarp();
        if (thread % 32 == 0) arrive(shared.rows_empty[rows_at.stage]);
        rows_at.advance();
        const int tile = own == Own::keys ? item.rank : tiles - 1 - item.rank;
        const int rows = shape.T - tile * kGradientRows;  // of which the tile has at most kGradientRows
        wait(shared.out_full, at.parity);
        for (int i = thread; i < SplitTiles<own, HD>::gradients * pairs; i += kSummingThreads) {
            const int gradient = i / pairs, channel = i % pairs * 2;
            const int head = own == Own::keys ? shape.NH + gradient * shape.NKV + item.head : item.head;
            const bf16* const column = shared.out[gradient] + channel;
            float2 total = {};
            for (int first = 0; first < rows_at_once && first < rows; first++) {
                float2 sum = {};
                LLMC_UNROLL
                for (int r = 0; r < kGradientRows; r += rows_at_once) {
                    if (first + r >= rows) continue;
                    const uint32_t pair = load_word(column + (first + r) * attention::kStride<HD>);
                    sum.x += bf16x2_low(pair);
                    sum.y += bf16x2_high(pair);
                }
                total.x += sum.x;
                total.y += sum.y;
            }
            const size_t part = (static_cast<size_t>(item.b) * tiles + tile) * heads + head;
            *reinterpret_cast<float2*>(parts + part * HD + channel) = total;
        }
        __syncwarp();
        if (thread % 32 == 0) arrive(shared.out_empty);
        at.advance();
    }
}

// ---- consumers -----------------------------------------------------------------------------------------------------

// Waits for all products of a warpgroup.
template <int Gradients, int Panels>
LLMC_DEVICE void finish_sums(float (&sums)[Gradients][Panels][32]) {
    wait_for_products<0>();
    LLMC_UNROLL
    for (auto& sum : sums) fence_panels(sum);
}

// Adds a tile to a warpgroup's sums: [0] dK or dQ, [1] dV. `rows` are its 64 of the two tiles. Calls last_is_done()
// when the last tile's products are complete. If it works ahead, this tile's last product still runs afterwards.
template <Own own, int HD, class Statistics, class Done>
LLMC_DEVICE void add_tile(float (&sums)[SplitTiles<own, HD>::gradients][HD / 64][32], const bf16* rows_0,
                          const bf16* rows_1, const typename SplitShared<own, HD>::OtherTile (&columns)[2],
                          const Statistics& lse, const Statistics& delta, float scale_log2, bool masked, int diagonal,
                          const int (&windows)[2], Done&& last_is_done) {
    using Tiles = SplitTiles<own, HD>;
    constexpr int panels = HD / 64, N = Tiles::columns;
    const auto load = [&]<class Numbers>(const Numbers& numbers) {
        if constexpr (Tiles::works_ahead)
            return numbers.load();
        else
            return numbers;
    };
    float s[N / 2], dp[N / 2];
    begin_products();
    multiply_panels<panels, kGradientRows, N>(s, rows_0, columns[0].panel[0]);
    commit_products();
    multiply_panels<panels, kGradientRows, N>(dp, rows_1, columns[1].panel[0]);
    commit_products();
    const auto own_lse = load(lse);
    wait_for_products<1>();
    fence_accumulators(s);
    last_is_done();
    if (masked)
        probabilities<true>(s, own_lse, scale_log2, diagonal, windows);
    else
        probabilities<false>(s, own_lse, scale_log2, diagonal, windows);
    uint32_t p[N / 16][4], ds[N / 16][4];
    if constexpr (own == Own::keys) {  // dV, while dS is computed
        round_fragments(p, s);
        fence_panels(sums[1]);
        begin_products();
        multiply_fragments(sums[1], p, columns[1].panel);
        commit_products();
    }
    const auto own_delta = load(delta);
    wait_for_products<own == Own::keys ? 1 : 0>();
    fence_accumulators(dp);
    score_gradients(dp, s, own_delta);
    round_fragments(ds, dp);
    fence_panels(sums[0]);
    begin_products();
    multiply_fragments(sums[0], ds, columns[0].panel);
    commit_products();
    if constexpr (!Tiles::works_ahead) finish_sums(sums);
}

// Global memory of the statistics. The consumers use it where delta is not computed ahead.
template <Own own>
struct SplitStatistics {
    const bf16 *dout, *out, *out_low;
    const float* lse;
    std::conditional_t<own == Own::queries, float, const float>* delta;
};

// Computes delta of a thread's two rows, four lanes a row, and writes it for the other kernel. Rows from T on repeat
// the last one, so that no branch separates the loads; their P is 0, and their gradients are not stored.
template <int HD>
LLMC_DEVICE float2 own_deltas(const SplitStatistics<Own::queries>& from, const SplitShape& shape, int b, int h,
                              int row) {
    const int T = shape.T, quad_lane = static_cast<int>(threadIdx.x & 3);
    float* const to = from.delta + attention::row_statistics_offset(b, h, T, shape.NH);
    float sums[2] = {};
    LLMC_UNROLL
    for (int half = 0; half < 2; half++) {
        const int query = row + 8 * half < T ? row + 8 * half : T - 1;
        const size_t first =
            attention::head_offset<HD>(b, h, T, shape.NH) + static_cast<size_t>(query) * shape.NH * HD + quad_lane * 8;
        LLMC_UNROLL
        for (int i = 0; i < HD; i += 32)
            attention::add_to_delta(sums[half], from.dout + first + i, from.out + first + i, from.out_low + first + i);
    }
    quad_sum_each(sums);
    for (int half = 0; half < 2; half++)
        if (quad_lane == 0 && row + 8 * half < T) to[row + 8 * half] = sums[half];
    return {sums[0], sums[1]};
}

// Walks over an item's tiles. `at` is the place in the ring of columns, which all items share.
template <Own own, int HD, bool kDocuments>
LLMC_DEVICE void add_tiles(float (&sums)[SplitTiles<own, HD>::gradients][HD / 64][32], SplitShared<own, HD>& shared,
                           int row_stage, RingPosition<SplitTiles<own, HD>::stages>& at,
                           const SplitStatistics<own>& from, const SplitShape& shape, float scale_log2,
                           const SplitWalk<own, HD, kDocuments>& walk) {
    using Tiles = SplitTiles<own, HD>;
    constexpr bool owns_keys = own == Own::keys;
    constexpr int N = Tiles::columns;
    const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
    const int warpgroup = same_in_warp(thread / 128), first = walk.first_row + warpgroup * 64, last = first + 63;
    const int row = walk.first_row + thread / 32 * 16 + (lane >> 2), lane_column = (lane & 3) * 2;
    const int windows[2] = {walk.window_of(row), walk.window_of(row + 8)};
    const int widest = walk.window_of(owns_keys ? last : first), narrowest = walk.window_of(owns_keys ? first : last);
    OfRows own_lse = {}, own_delta = {};
    if constexpr (!owns_keys && Tiles::shares_statistics) {
        const int place = row - walk.first_row;
        own_lse.both = {shared.lse[row_stage][place], shared.lse[row_stage][place + 8]};
        own_delta.both = {shared.delta[row_stage][place], shared.delta[row_stage][place + 8]};
    } else if constexpr (!owns_keys) {
        const float* const lse = from.lse + attention::row_statistics_offset(walk.b, walk.h, shape.T, shape.NH);
        own_lse.both = {lse_at(lse, row, shape.T) * attention::kLog2E,
                        lse_at(lse, row + 8, shape.T) * attention::kLog2E};
        own_delta.both = own_deltas<HD>(from, shape, walk.b, walk.h, row);
    }
    const bf16* const rows_0 = shared.rows[row_stage][0].panel[0] + warpgroup * 64 * kTileColumns;
    const bf16* const rows_1 = shared.rows[row_stage][1].panel[0] + warpgroup * 64 * kTileColumns;
    const auto release = [&](int stage) {
        // All lanes are done with lse and delta, and have seen this phase of `full` complete. At HD 64 the wait for
        // products has made sure of the latter.
        if constexpr (owns_keys || !Tiles::works_ahead) __syncwarp();
        if (lane == 0) arrive(shared.empty[stage]);
    };
    int running = -1;  // the stage of the last tile, if its last product may still run
    const auto release_last = [&] {
        if (running >= 0) release(running);
        running = -1;
    };
    walk.each_tile([&](int, int column) {
        wait(shared.full[at.stage], at.parity);
        const Sight sight = owns_keys ? sight_of(column, column + N - 1, first, last, widest, narrowest)
                                      : sight_of(first, last, column, column + N - 1, widest, narrowest);
        const auto add = [&](const auto& lse_of, const auto& delta_of, int diagonal) {
            add_tile<own, HD>(sums, rows_0, rows_1, shared.columns[at.stage], lse_of, delta_of, scale_log2,
                              sight == Sight::part, diagonal, windows, release_last);
        };
        if (sight == Sight::nothing) {
            // The producers may need the last stage before the next product comes. With finish_sums() ptxas would
            // serialize all products (C7514).
            if constexpr (Tiles::works_ahead) wait_for_products<0>();
            release_last();
        } else if constexpr (owns_keys) {
            add(OfColumns{shared.lse[at.stage] + lane_column}, OfColumns{shared.delta[at.stage] + lane_column},
                column + lane_column - row);
        } else {
            add(own_lse, own_delta, row - column - lane_column);
        }
        if (Tiles::works_ahead && sight != Sight::nothing)
            running = at.stage;
        else
            release(at.stage);
        at.advance();
    });
    if constexpr (Tiles::works_ahead) finish_sums(sums);
    release_last();
}

// Quantizes a warpgroup's gradients, and writes the codes. `sums` are those that round_rows() wrote.
template <Own own, int HD>
LLMC_DEVICE void store_codes(SplitShared<own, HD>& shared, int row_stage, const attention::Gradients<e5m2>& to,
                             float (&sums)[SplitTiles<own, HD>::gradients][HD / 64][32], float scale,
                             const SplitShape& shape, int first_token, const WorkItem& item) {
    constexpr int gradients = SplitTiles<own, HD>::gradients;
    const int thread = static_cast<int>(threadIdx.x), warpgroup = same_in_warp(thread / 128);
    const int group_token = first_token + warpgroup * 64, first_row = group_token + thread % 128 / 32 * 16;
    const size_t width = static_cast<size_t>(shape.NH + 2 * shape.NKV) * HD;
    const size_t token = static_cast<size_t>(item.b) * shape.T, tokens = static_cast<size_t>(shape.B) * shape.T;
    if (group_token >= shape.T) return;  // a warpgroup without rows
    QuantizeTally tally;
    warpgroup_barrier(warpgroup);  // all are done with their rows
    LLMC_UNROLL
    for (int i = 0; i < gradients; i++)
        quantize_fragments<e5m2, HD>(shared.codes(row_stage, i, warpgroup), tally, sums[i], scale, first_row, shape.T,
                                     to.pass);
    warpgroup_barrier(warpgroup);
    LLMC_UNROLL
    for (int i = 0; i < gradients; i++) {
        const uint32_t* const codes = shared.codes(row_stage, i, warpgroup);
        const int head = (own == Own::keys ? shape.NH + i * shape.NKV : 0) + item.head;
        const size_t channel = static_cast<size_t>(head) * HD;
        if (to.row) store_code_rows<HD>(to.row + token * width + channel, width, codes, group_token, shape.T);
        if (to.transposed)
            store_code_columns<HD>(to.transposed + channel * tokens + token, tokens, codes, group_token, shape.T);
    }
    const bool counts_elements = group_token + item.b + item.head + thread == 0;
    const int heads = own == Own::keys ? 2 * shape.NKV : shape.NH;
    commit_warp(to.fp8, tally, counts_elements ? tokens * (heads * HD) : 0, to.pass);
}

// Takes the block's items. Warps have BF16 gradients of their own to store, and do not wait for each other; with FP8
// codes the warps of a warpgroup do.
template <Own own, int HD, bool kDocuments, class Out>
LLMC_DEVICE void consume(SplitShared<own, HD>& shared, const attention::Gradients<Out>& to,
                         const SplitStatistics<own>& from, const SplitShape& shape, float scale, int window,
                         const int* documents) {
    using Tiles = SplitTiles<own, HD>;
    constexpr bool kFp8 = attention::kIsFp8<Out>;
    const int lane = static_cast<int>(threadIdx.x & 31), warp = same_in_warp(static_cast<int>(threadIdx.x) / 32);
    RingPosition<Tiles::row_stages> rows_at;
    RingPosition<Tiles::stages> at;
    RingPosition<1> out_at;
    float code_scale = 1.0f;
    if constexpr (kFp8) code_scale = to.fp8->scale;
    LLMC_NO_UNROLL
    while (true) {
        wait(shared.rows_full[rows_at.stage], rows_at.parity);
        const WorkItem item = shared.items[rows_at.stage];
        if (item.none()) return;
        if constexpr (Tiles::computes_delta_ahead) wait(shared.delta_full[rows_at.stage], rows_at.parity);
        const SplitWalk<own, HD, kDocuments> walk(item, shape, window, documents);
        float sums[Tiles::gradients][Tiles::panels][32] = {};
        add_tiles(sums, shared, rows_at.stage, at, from, shape, scale * attention::kLog2E, walk);

        const auto release_rows = [&] {
            __syncwarp();
            if (lane == 0) arrive(shared.rows_empty[rows_at.stage]);
        };
        if constexpr (kFp8) {
            if (to.parts) wait(shared.out_empty, out_at.parity ^ 1);
        } else {
            release_rows();
        }
        const auto rows_of = [&](int gradient) { return shared.out[gradient] + warp * 16 * attention::kStride<HD>; };
        LLMC_UNROLL
        for (int i = 0; i < Tiles::gradients; i++) {
            LLMC_UNROLL
            for (int p = 0; p < Tiles::panels; p++)
                round_rows<HD>(rows_of(i) + p * 64, sums[i][p], i == 0 ? scale : 1.0f);
        }
        __syncwarp();
        if constexpr (kFp8) {
            if (lane == 0 && to.parts) arrive(shared.out_full);
            store_codes<own, HD>(shared, rows_at.stage, to, sums, code_scale, shape, walk.first_row, item);
            fence_async_proxy();  // codes were written where TMA writes next
            release_rows();
            out_at.advance();
        } else {
            const size_t width = static_cast<size_t>(shape.NH + 2 * shape.NKV) * HD;
            LLMC_UNROLL
            for (int i = 0; i < Tiles::gradients; i++) {
                const int head = (own == Own::keys ? shape.NH + i * shape.NKV : 0) + item.head;
                attention::store_rows<HD, 16>(to.row + static_cast<size_t>(walk.b) * shape.T * width + head * HD, width,
                                              rows_of(i), walk.first_row + warp * 16, shape.T);
            }
            __syncwarp();
        }
        rows_at.advance();
    }
}

// ---- the kernel ----------------------------------------------------------------------------------------------------

// Grid: order.blocks.
template <Own own, int HD, bool kDocuments, class Out>
static __global__ void __launch_bounds__(kGradientThreads, 1)
    hopper_attention_split_kernel(Out* __restrict__ dqkv, Out* __restrict__ transposed, float* __restrict__ parts,
                                  Fp8State* __restrict__ fp8, const __grid_constant__ SplitMaps maps,
                                  SplitStatistics<own> from, SplitShape shape, WorkOrder order, float scale, int window,
                                  QuantizePass pass, const int* __restrict__ documents) {
#if LLMC_HOPPER
    using Tiles = SplitTiles<own, HD>;
    extern __shared__ __align__(kTileAlignment) unsigned char hopper_shared[];
    SplitShared<own, HD>& shared = *reinterpret_cast<SplitShared<own, HD>*>(hopper_shared);
    const bool sums = attention::kIsFp8<Out> && parts != nullptr;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Tiles::row_stages; i++) {
            init(shared.rows_full[i], 1);
            init(shared.rows_empty[i], (kGradientConsumers + (sums ? kSummingThreads : 0)) / 32);  // one per warp
            if constexpr (Tiles::computes_delta_ahead) init(shared.delta_full[i], 32);
        }
        if constexpr (Tiles::computes_delta_ahead) {
            init(shared.outputs_full, 1);
            init(shared.outputs_empty, 1);
        }
        for (int i = 0; i < Tiles::stages; i++) {
            init(shared.full[i], Tiles::stage_arrivals);
            init(shared.empty[i], kGradientConsumers / 32);
        }
        init(shared.out_full, kGradientConsumers / 32);
        init(shared.out_empty, kSummingThreads / 32);
        publish_barriers();
    }
    __syncthreads();
    const int warp = same_in_warp(static_cast<int>(threadIdx.x) / 32);
    if (warp >= kGradientConsumers / 32) {
        give_registers<40>();
        if (threadIdx.x == kGradientConsumers)
            produce_tiles<own, HD, kDocuments>(shared, maps, shape, order, window, documents);
        if (warp == kGradientConsumers / 32 + 1) {
            if constexpr (own == Own::keys)
                produce_statistics<HD, kDocuments>(shared, from.lse, from.delta, shape, window, documents);
            else if constexpr (Tiles::computes_delta_ahead)
                produce_delta<HD>(shared, from.lse, from.delta, shape);
        }
        if (sums && warp >= kGradientThreads / 32 - kSummingThreads / 32)
            sum_gradients<own, HD>(shared, parts, shape,
                                   static_cast<int>(threadIdx.x) - (kGradientThreads - kSummingThreads));
        return;
    }
    take_registers<232>();
    consume<own, HD, kDocuments, Out>(shared, {dqkv, transposed, parts, fp8, pass}, from, shape, scale, window,
                                      documents);
#endif
}

template <Own own, class Out>
static void launch_split(const attention::Gradients<Out>& to, float* delta, const attention::BackwardInputs& inputs,
                         int B, int T, const AttentionHeads& heads, unsigned* tickets, stream_t stream) {
    constexpr bool owns_queries = own == Own::queries;
    const size_t n = attention::elements(B, T, heads.NH, heads.HD);
    const size_t whole = attention::elements(B, T, heads.rows(), heads.HD);
    const int tiles = div_up(T, kGradientRows), own_heads = owns_queries ? heads.NH : heads.NKV;
    const size_t part_count = static_cast<size_t>(B) * tiles * heads.qkv_width();
    const auto map_of = [&](const bf16* rows, int width) {
        return tensor_map(rows, B, T, static_cast<size_t>(width), 64);
    };
    const SplitMaps maps = {map_of(inputs.qkv, heads.qkv_width()), map_of(inputs.dout, heads.width()),
                            map_of(inputs.out, heads.width()), map_of(inputs.out_low, heads.width())};
    const SplitStatistics<own> from = {inputs.dout, inputs.out, inputs.out_low, inputs.lse, delta};
    const WorkOrder order(tickets, B, own_heads, tiles);
    with_head_dimension(heads, inputs.documents, [&]<int HD, bool kDocuments>() {
        launch<hopper_attention_split_kernel<own, HD, kDocuments, Out>>(
            {dim3(static_cast<unsigned>(order.blocks)), dim3(kGradientThreads), sizeof(SplitShared<own, HD>), stream},
            {out(to.row, whole), out(to.transposed, whole), out(to.parts, part_count), state_access(to.fp8, to.pass),
             in(inputs.dout, n), in(inputs.qkv, whole), in(inputs.lse, n / HD),
             owns_queries ? Access(out(delta, n / HD)) : Access(in(delta, n / HD)),
             in(owns_queries ? inputs.out : nullptr, n), in(owns_queries ? inputs.out_low : nullptr, n),
             in(inputs.documents, attention::tokens(B, T)), tickets_access(tickets)},
            to.row, to.transposed, to.parts, to.fp8, maps, from, SplitShape{B, T, heads.NH, heads.NKV}, order,
            heads.softmax_scale(), heads.window_in(T), to.pass, inputs.documents);
    });
}

template <class Out>
void attention_backward_split(const attention::Gradients<Out>& to, float* delta,
                              const attention::BackwardInputs& inputs, int B, int T, const AttentionHeads& heads,
                              unsigned* tickets, stream_t stream) {
    launch_split<Own::queries>(to, delta, inputs, B, T, heads, tickets, stream);
    launch_split<Own::keys>(to, delta, inputs, B, T, heads, tickets, stream);
}

LLMC_INSTANTIATE_BOTH(attention_backward_split, bf16, e5m2);

}  // namespace hopper
}  // namespace llmc
#endif
