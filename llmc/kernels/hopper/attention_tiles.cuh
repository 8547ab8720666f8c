// Shared by attention's kernels for Hopper: loading panels of 64 columns, products of tiles, masks, a warpgroup's
// scores and their gradients, and gradients on their way to memory. Only nvcc sees this file.
#pragma once
#include <algorithm>
#include <numeric>

#include "llmc/device/hopper.cuh"
#include "llmc/kernels/attention_quantize.cuh"
#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/hopper/tickets.cuh"

namespace llmc::hopper {

// Calls f.template operator()<HD, kDocuments>(), the launch of one of these kernels, for heads that they can run.
template <class F>
void with_head_dimension(const AttentionHeads& heads, const int* documents, F&& f) {
    with_one_of<64, 128>(heads.HD, [&]<int HD>() {
        documents ? f.template operator()<HD, true>() : f.template operator()<HD, false>();
    });
}

// ---- work ----------------------------------------------------------------------------------------------------------

// A piece of a worker's work: one tile of rows of one head. Rank 0 has the longest walk over the other side.
struct WorkItem {
    int rank, head, b;
    LLMC_DEVICE bool none() const { return rank < 0; }  // comes after a worker's last item
};

// The order in which a grid's workers take all tiles of all heads, by tickets. A worker is a block, or one of its
// teams. There is one block per multiprocessor, and while it finishes an item, its loads for the next one already run.
//
// Within a section of heads tiles with longer walks come first. A section is the fewest heads that give each worker a
// whole number of items. While it runs, its heads stay in L2. The last section takes the rest.
struct WorkOrder {
    Tickets tickets;
    int heads, tiles, section_heads, sections;  // `heads` of one sequence; `tiles` of one head
    int blocks;                                 // worker w is in block w % blocks

    WorkOrder(unsigned* counter, int B, int heads, int tiles, int teams = 1) : heads(heads), tiles(tiles) {
        static const int multiprocessors = device_info().multiprocessors;
        const int items = B * heads * tiles;
        tickets = {counter, items, std::min(items, multiprocessors * teams)};
        blocks = std::min(items, multiprocessors);
        section_heads = tickets.workers / std::gcd(tickets.workers, tiles);
        sections = std::max(1, B * heads / section_heads);
    }

    // Takes a ticket. A worker's one thread calls it until there is none.
    LLMC_DEVICE WorkItem take() const {
        const int ticket = tickets.take(), in_order = ticket / (section_heads * tiles);
        if (ticket >= tickets.items) return {-1, 0, 0};
        const int section = in_order < sections ? in_order : sections - 1, first_head = section * section_heads;
        const int width = section < sections - 1 ? section_heads : tickets.items / tiles - first_head;
        const int place = ticket - first_head * tiles, head = first_head + place % width;
        return {place / width, head % heads, head / heads};
    }
};

// ---- load ----------------------------------------------------------------------------------------------------------

// Loads rows from `first_row` on into tiles of 64 columns, whose bytes the caller has announced to `full`. The tensor
// map's box has 64 rows.
template <int Panels, int Elements>
LLMC_DEVICE void load_panels(bf16 (&panels)[Panels][Elements], const CUtensorMap& map, Barrier& full, int column,
                             int first_row, int batch) {
    LLMC_UNROLL
    for (int p = 0; p < Panels; p++) {
        LLMC_UNROLL
        for (int r = 0; r < Elements / kTileColumns; r += 64)
            load_tile(panels[p] + r * kTileColumns, map, full, column + p * kTileColumns, first_row + r, batch);
    }
}

// The first columns of the queries, keys and values of query head h in a row of qkv, and in a row of dout.
template <int HD>
struct HeadColumns {
    int query, key, value;
    LLMC_DEVICE HeadColumns(int h, int kv, int NH, int NKV)
        : query(h * HD), key((NH + kv) * HD), value((NH + NKV + kv) * HD) {}
};

// lse of a query. From T on it is infinite, so that P is exp2(-infinity) = 0.
LLMC_DEVICE float lse_at(const float* lse_of, int query, int T) {
    return query < T ? lse_of[query] : float_from_bits(kFloatInfinityBits);
}

// ---- multiply ------------------------------------------------------------------------------------------------------

// c (64, 2 N) = a b^T over panels of 64 channels: 64 rows of `a`, 2 N rows of `b`. A panel of `a` has ARows rows, a
// panel of `b` has BRows.
template <int Panels, int ARows, int BRows, int N>
LLMC_DEVICE void multiply_panels(float (&c)[N], const bf16* a, const bf16* b) {
    LLMC_UNROLL
    for (int p = 0; p < Panels; p++) {
        const uint64_t rows = tile_descriptor(a + p * ARows * kTileColumns);
        const uint64_t columns = tile_descriptor(b + p * BRows * kTileColumns);
        for (int k = 0; k < 4; k++)
            multiply_rows(c, rows + k * kSixteenColumns, columns + k * kSixteenColumns, p + k > 0);
    }
}

// d (64, 64) += a (64, 16 K) b: 16 K rows of a tile.
template <int K>
LLMC_DEVICE void multiply_fragments(float (&d)[32], const uint32_t (&a)[K][4], uint64_t b) {
    LLMC_UNROLL
    for (int k = 0; k < K; k++) multiply_registers(d, a[k], b + k * kSixteenRows);
}
// The same for every panel of b.
template <int Panels, int K>
LLMC_DEVICE void multiply_fragments(float (&d)[Panels][32], const uint32_t (&a)[K][4],
                                    const bf16 (&b)[Panels][16 * K * kTileColumns]) {
    LLMC_UNROLL
    for (int p = 0; p < Panels; p++) multiply_fragments(d[p], a, tile_descriptor(b[p]));
}
template <int Panels>
LLMC_DEVICE void fence_panels(float (&d)[Panels][32]) {
    LLMC_UNROLL
    for (int p = 0; p < Panels; p++) fence_accumulators(d[p]);
}

// Rounds accumulators to BF16: the A operand of the next product.
template <int N>
LLMC_DEVICE void round_fragments(uint32_t (&a)[N / 8][4], const float (&x)[N]) {
    LLMC_UNROLL
    for (int i = 0; i < N / 2; i++) a[i / 4][i % 4] = pack_bf16x2(x[2 * i], x[2 * i + 1]);
}

// ---- mask ----------------------------------------------------------------------------------------------------------

// How much of a warpgroup's tile of scores is visible: nothing, a part that needs a mask, or all.
enum class Sight { nothing, part, all };

// How much the queries first_query to last_query see of the keys first_key to last_key. `widest`, which decides whether
// they see anything, is the window of the first query or of the last key; `narrowest` is the window of the last query
// or of the first key.
LLMC_DEVICE Sight sight_of(int first_query, int last_query, int first_key, int last_key, int widest, int narrowest) {
    if (first_key > last_query || first_query - last_key >= widest) return Sight::nothing;
    return last_key > first_query || last_query - first_key >= narrowest ? Sight::part : Sight::all;
}

// ---- scores and their gradients ------------------------------------------------------------------------------------

// One number (lse or delta) for each query of a warpgroup's tile. pair(j) returns the two numbers for column tile j;
// accumulator i uses number which(i) of them. After load() all numbers of a thread are in registers.
struct OfColumns {  // queries are columns; `first` is the thread's first, in shared memory
    const float* first;
    static constexpr bool rows = false;
    LLMC_DEVICE float2 pair(int j) const { return *reinterpret_cast<const float2*>(first + 8 * j); }
    LLMC_DEVICE static int which(int i) { return i & 1; }

    struct Loaded {
        float2 pairs[8];
        static constexpr bool rows = false;
        LLMC_DEVICE float2 pair(int j) const { return pairs[j]; }
        LLMC_DEVICE static int which(int i) { return OfColumns::which(i); }
    };
    LLMC_DEVICE Loaded load() const {
        Loaded loaded;
        for (int j = 0; j < 8; j++) loaded.pairs[j] = pair(j);
        return loaded;
    }
};
struct OfRows {  // queries are rows, of which a thread has two
    float2 both;
    static constexpr bool rows = true;
    LLMC_DEVICE float2 pair(int) const { return both; }
    LLMC_DEVICE static int which(int i) { return i >> 1; }
    LLMC_DEVICE OfRows load() const { return *this; }
};

// Turns scores into probabilities. `diagonal` is (this thread's first query) - (its first key). A thread's row, which
// is a query or a key, sees or is seen up to windows[row] - 1 places away.
template <bool Masked, class Lse, int N>
LLMC_DEVICE void probabilities(float (&s)[N], const Lse& lse, float scale_log2, int diagonal, const int (&windows)[2]) {
    LLMC_UNROLL
    for (int j = 0; j < N / 4; j++) {
        const float2 offset = lse.pair(j);
        for (int i = 0; i < 4; i++) {
            float& x = s[4 * j + i];
            const int row = 8 * (i >> 1), column = 8 * j + (i & 1);
            x = exp2_fast(x * scale_log2 - (Lse::which(i) ? offset.y : offset.x));
            if (Masked && !attention::in_window(diagonal + (Lse::rows ? row - column : column - row), windows[i >> 1]))
                x = 0.0f;
        }
    }
}
// Turns dP into dS, without the softmax scale.
template <class Delta, int N>
LLMC_DEVICE void score_gradients(float (&dp)[N], const float (&p)[N], const Delta& delta) {
    LLMC_UNROLL
    for (int j = 0; j < N / 4; j++) {
        const float2 own = delta.pair(j);
        for (int i = 0; i < 4; i++) dp[4 * j + i] = p[4 * j + i] * (dp[4 * j + i] - (Delta::which(i) ? own.y : own.x));
    }
}

// ---- store ---------------------------------------------------------------------------------------------------------

constexpr int kGradientRows = kBackwardTile;                // whose gradients a block computes at a time
constexpr int kGradientConsumers = 256;                     // threads in two warpgroups
constexpr int kGradientThreads = kGradientConsumers + 128;  // and the producers

// Rounds a warp's 16 rows of a gradient, times `factor`, into 64 columns of a padded tile. `x` becomes the rounded
// values.
template <int HD>
LLMC_DEVICE void round_rows(bf16* rows, float (&x)[32], float factor) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int half = 0; half < 2; half++) {
        bf16* const corner = rows + (8 * half + (lane >> 2)) * attention::kStride<HD> + (lane & 3) * 2;
        for (int j = 0; j < 8; j++) {
            float *const left = &x[4 * j + 2 * half], *const right = left + 1;
            const uint32_t pair = pack_bf16x2(*left * factor, *right * factor);
            store_word(corner + j * 8, pair);
            *left = bf16x2_low(pair);
            *right = bf16x2_high(pair);
        }
    }
}

// ---- FP8 codes -----------------------------------------------------------------------------------------------------
//
// A warpgroup quantizes its 64 rows by itself, so that the others multiply meanwhile. Values go from the accumulators
// to codes in shared memory, and after a barrier of the warpgroup from there to both layouts.

// The codes of a warpgroup's 64 rows in shared memory: HD / 4 words a row, four of them for 16 columns. Word t of the
// four holds the columns 2t, 2t + 1, 2t + 8 and 2t + 9 of the 16, which are those of one thread.
template <int HD>
constexpr int kCodeWords = 64 * HD / 4;

// The place of the four words of 16 columns. Groups of four are exchanged so that eight rows of one group lie in
// different banks, and so do, at head dimension 128, the groups that a warp reads from rows 16 apart.
template <int HD>
LLMC_DEVICE int code_group(int row, int group) {
    static_assert(HD == 64 || HD == 128);
    const int exchange = HD == 64 ? (row >> 1 ^ row >> 4) & 3 : (row ^ (row >> 3 & 6)) & 7;
    return row * (HD / 4) + (group ^ exchange) * 4;
}

// Notes a thread's 32 values of a panel as the pass requires. The rare case is one branch for all of them.
template <class F8>
LLMC_DEVICE void note_panel(QuantizeTally& tally, const float (&x)[32], float scale, QuantizePass pass) {
    if (!changes_state(pass)) return;
    const auto eight = [&](int k) -> const float(&)[8] { return reinterpret_cast<const float(&)[8]>(x[8 * k]); };
    uint32_t largest = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t magnitude = largest_magnitude(eight(k));
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= kFloatInfinityBits || counts_losses(pass)) {
        for (int k = 0; k < 4; k++) {
            note_values(tally, eight(k));
            note_losses<F8>(tally, eight(k), scale);
        }
    } else {
        tally.amax = largest > tally.amax ? largest : tally.amax;
    }
}

// Quantizes a warp's 16 rows of accumulators. `first_row` is the first of them among the tokens, of which those from T
// on are neither noted nor stored later.
template <class F8, int HD>
LLMC_DEVICE void quantize_fragments(uint32_t* codes, QuantizeTally& tally, float (&x)[HD / 64][32], float scale,
                                    int first_row, int T, QuantizePass pass) {
    const int thread = thread_of_warpgroup(), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    LLMC_UNROLL
    for (int p = 0; p < HD / 64; p++) {
        if (first_row + 16 > T) {
            LLMC_UNROLL
            for (int i = 0; i < 32; i++)
                if (first_row + (lane >> 2) + 8 * (i >> 1 & 1) >= T) x[p][i] = 0.0f;
        }
        note_panel<F8>(tally, x[p], scale, pass);
        if (!writes_fp8(pass)) continue;
        LLMC_UNROLL
        for (int k = 0; k < 4; k++) {
            float scaled[8];
            for (int i = 0; i < 8; i++) scaled[i] = x[p][8 * k + (i & 1) + (i >> 1 & 1) * 4 + (i >> 2) * 2] * scale;
            uint32_t words[2];
            cast_8<F8>(words, scaled);
            codes[code_group<HD>(row, p * 4 + k) + (lane & 3)] = words[0];
            codes[code_group<HD>(row + 8, p * 4 + k) + (lane & 3)] = words[1];
        }
    }
}

// Writes a warpgroup's codes to the row-major output. `to` is the head's first channel of token 0, with tokens `pitch`
// apart.
template <int HD, class F8>
LLMC_DEVICE void store_code_rows(F8* to, size_t pitch, const uint32_t* codes, int first_row, int T) {
    constexpr int groups = HD / 16;
    const int thread = thread_of_warpgroup();
    LLMC_UNROLL
    for (int i = 0; i < 64 * groups / 128; i++) {
        const int place = i * 128 + thread, row = place / groups, group = place % groups;
        if (first_row + row >= T) continue;
        const Bytes16 w = load16(codes + code_group<HD>(row, group));
        const Bytes16 bytes{{__byte_perm(w.word[0], w.word[1], 0x5410), __byte_perm(w.word[2], w.word[3], 0x5410),
                             __byte_perm(w.word[0], w.word[1], 0x7632), __byte_perm(w.word[2], w.word[3], 0x7632)}};
        store16(to + static_cast<size_t>(first_row + row) * pitch + group * 16, bytes);
    }
}

// Writes them to the transposed output. `to` is the head's first channel of token 0, with channels `pitch` apart. A
// thread takes the four channels of a word, of 8 tokens at head dimension 64 and of 16 at 128; eight or four neighbours
// write 64 bytes of a channel.
template <int HD, class F8>
LLMC_DEVICE void store_code_columns(F8* to, size_t pitch, const uint32_t* codes, int first_row, int T) {
    constexpr int tokens = HD / 8, neighbours = 64 / tokens;
    const int thread = thread_of_warpgroup(), word = thread / neighbours;
    const int piece = thread % neighbours * tokens, token = first_row + piece;
    if (token >= T) return;
    F8* const first = to + static_cast<size_t>(word / 4 * 16 + word % 4 * 2) * pitch + token;
    uint32_t rows[tokens / 4][4];
    LLMC_UNROLL
    for (int r = 0; r < tokens; r++) rows[r / 4][r % 4] = codes[code_group<HD>(piece + r, word / 4) + word % 4];
    LLMC_UNROLL
    for (auto& four : rows) transpose_4x4(four);
    LLMC_UNROLL
    for (int c = 0; c < 4; c++) {
        F8* const column = first + static_cast<size_t>(c % 2 + c / 2 * 8) * pitch;
        if (tokens == 16 && T % 16 == 0) {
            store16(column, {{rows[0][c], rows[1][c], rows[tokens / 4 - 2][c], rows[tokens / 4 - 1][c]}});
        } else {
            LLMC_UNROLL
            for (int t = 0; t < tokens; t += 8)
                if (token + t < T)
                    *reinterpret_cast<uint2*>(column + t) = make_uint2(rows[t / 4][c], rows[t / 4 + 1][c]);
        }
    }
}

// Adds a warp's tally to the state. `elements` is as in commit_tally(), which the usual warp need not call: it has met
// finite values only, and counts no losses.
LLMC_DEVICE void commit_warp(Fp8State* state, const QuantizeTally& tally, size_t elements, QuantizePass pass) {
    if (!changes_state(pass)) return;
    if (counts_losses(pass) || __any_sync(~0u, tally.nonfinite != 0)) return commit_tally(state, tally, elements, pass);
    const unsigned amax = __reduce_max_sync(~0u, tally.amax);
    if (raises_amax(pass) && amax > 0 && (threadIdx.x & 31) == 0)
        atomicMax(reinterpret_cast<int*>(&state->amax), static_cast<int>(amax));
}

}  // namespace llmc::hopper
