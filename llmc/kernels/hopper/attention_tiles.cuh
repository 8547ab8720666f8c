// Shared by attention's kernels for Hopper: loading panels of 64 columns, products of tiles, masks, a warpgroup's
// scores and their gradients, and gradients on their way to memory. Only nvcc sees this file.
#pragma once
#include <numeric>

#include "llmc/device/hopper.cuh"
#include "llmc/device/registers.cuh"
#include "llmc/kernels/attention_quantize.cuh"
#include "llmc/kernels/hopper/attention.h"

namespace llmc::hopper {

// ---- work ----------------------------------------------------------------------------------------------------------

// A piece of a block's work: one tile of rows of one head. Rank 0 has the longest walk over the other side.
struct WorkItem {
    int rank, head, b;
    int last;  // 1 for the last of a block's items
};

// The order in which a grid's blocks take all tiles of all heads. Blocks either stay: one runs on each multiprocessor
// and takes an item in every round, so that its loads for the next item run while it finishes the last one. Which items
// it takes is fixed, and no block waits for another one. Or there is a block for each item, head after head.
//
// If blocks stay, within a section of heads tiles with longer walks come first, and every second round runs through the
// blocks backwards, so that blocks get equal work. A section is the fewest heads that fill pairs of rounds; while it
// runs, its heads stay in L2. The last section takes the rest.
struct WorkOrder {
    int heads, tiles, items, blocks, section_heads, sections;  // `heads` of one sequence; `tiles` of one head

    WorkOrder(int B, int heads, int tiles, bool stay) : heads(heads), tiles(tiles), items(B * heads * tiles) {
        static const int multiprocessors = device_info().multiprocessors;
        blocks = stay && items > multiprocessors ? multiprocessors : items;
        section_heads = blocks < items ? 2 * blocks / std::gcd(2 * blocks, tiles) : 1;
        sections = B * heads < section_heads ? 1 : B * heads / section_heads;
    }

    LLMC_DEVICE WorkItem item(int index, int last) const {
        const int section_items = section_heads * tiles, in_order = index / section_items;
        const int section = in_order < sections ? in_order : sections - 1, first_head = section * section_heads;
        const int width = section < sections - 1 ? section_heads : items / tiles - first_head;
        const int place = index - section * section_items, head = first_head + place % width;
        return {place / width, head % heads, head / heads, last};
    }
    // The index of this block's item in a round.
    LLMC_DEVICE int index(int round) const {
        const int block = static_cast<int>(blockIdx.x);
        return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    }
    // Calls take(item) for each item of this block, which has at least one.
    template <class Take>
    LLMC_DEVICE void each_item(Take&& take) const {
        LLMC_NO_UNROLL
        for (int round = 0, now = index(0), next; now < items; round++, now = next) {
            next = index(round + 1);
            take(item(now, next >= items));
        }
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

// lse of a query in base 2, and its delta. From T on lse is infinite, so that P is exp2(-infinity) = 0.
struct QueryStatistics {
    float lse, delta;
    LLMC_DEVICE QueryStatistics(const float* lse_of, const float* delta_of, int query, int T)
        : lse(query < T ? lse_of[query] * attention::kLog2E : float_from_bits(kFloatInfinityBits)),
          delta(query < T ? delta_of[query] : 0.0f) {}
};

// ---- multiply ------------------------------------------------------------------------------------------------------

// c (64, 2 N) = a b^T over panels of 64 channels: 64 rows of `a`, 2 N rows of `b`. A panel of `a` has ARows rows, a
// panel of `b` has BRows.
template <int Panels, int ARows, int BRows, int N>
LLMC_DEVICE void multiply_panels(float (&c)[N], const bf16* a, const bf16* b) {
    LLMC_UNROLL
    for (int p = 0; p < Panels; p++) {
        const uint64_t rows = tile_descriptor(a + p * ARows * kTileColumns);
        const uint64_t columns = tile_descriptor(b + p * BRows * kTileColumns);
        LLMC_UNROLL
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
// accumulator i uses number which(i) of them.
struct OfColumns {  // queries are columns; `first` is the thread's first, in shared memory
    const float* first;
    static constexpr bool rows = false;
    LLMC_DEVICE float2 pair(int j) const { return *reinterpret_cast<const float2*>(first + 8 * j); }
    LLMC_DEVICE static int which(int i) { return i & 1; }
};
struct OfRows {  // queries are rows, of which a thread has two
    float2 both;
    static constexpr bool rows = true;
    LLMC_DEVICE float2 pair(int) const { return both; }
    LLMC_DEVICE static int which(int i) { return i >> 1; }
};

// Turns scores into probabilities. `diagonal` is (this thread's first query) - (its first key). A thread's row, which
// is a query or a key, sees or is seen up to windows[row] - 1 places away.
template <bool Masked, class Lse, int N>
LLMC_DEVICE void probabilities(float (&s)[N], const Lse& lse, float scale_log2, int diagonal, const int (&windows)[2]) {
    LLMC_UNROLL
    for (int j = 0; j < N / 4; j++) {
        const float2 offset = lse.pair(j);
        LLMC_UNROLL
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
        LLMC_UNROLL
        for (int i = 0; i < 4; i++) dp[4 * j + i] = p[4 * j + i] * (dp[4 * j + i] - (Delta::which(i) ? own.y : own.x));
    }
}

// ---- store ---------------------------------------------------------------------------------------------------------

constexpr int kGradientRows = kBackwardTile;                // whose gradients a block computes at a time
constexpr int kGradientConsumers = 256;                     // threads in two warpgroups
constexpr int kGradientThreads = kGradientConsumers + 128;  // and the producers

// Rounds a warp's 16 rows of a gradient into 64 columns of a padded tile.
template <int HD>
LLMC_DEVICE void round_rows(bf16* rows, const float (&x)[32], float factor) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int half = 0; half < 2; half++) {
        bf16* const corner = rows + (8 * half + (lane >> 2)) * attention::kStride<HD> + (lane & 3) * 2;
        LLMC_UNROLL
        for (int j = 0; j < 8; j++)
            store_word(corner + j * 8, pack_bf16x2(x[4 * j + 2 * half] * factor, x[4 * j + 2 * half + 1] * factor));
    }
}

// The place of a tile of gradients, for quantize_gradients().
struct GradientPlace {
    int first_token, b, h, T, B;
    LLMC_DEVICE int batch() const { return B; }
    LLMC_DEVICE int tiles() const { return div_up(T, kGradientRows); }
    LLMC_DEVICE bool counts_elements() const { return first_token + b + h + static_cast<int>(threadIdx.x) == 0; }
    LLMC_DEVICE void meet() const { named_barrier<1, kGradientConsumers>(); }
};

// Writes Count tiles of gradients, into which each warp has rounded its own rows.
template <int HD, class Out, int Count>
LLMC_DEVICE void store_gradients(attention::Gradients<Out> to, bf16* const (&tiles)[Count], float* scratch,
                                 const attention::HeadPart& part, const GradientPlace& at, int warp) {
    using namespace attention;
    if constexpr (kIsFp8<Out>) {
        const size_t tokens = static_cast<size_t>(at.B) * at.T;
        if (to.transposed) to.transposed += part.first * HD * tokens;
        quantize_gradients<Out, HD, kGradientRows, kGradientConsumers>(to, tiles, scratch, part, at);
    } else {
        const size_t width = static_cast<size_t>(part.row) * HD;
        Out* const own = to.row + static_cast<size_t>(at.b) * at.T * width + (part.first + at.h) * HD;
        __syncwarp();
        LLMC_UNROLL
        for (int i = 0; i < Count; i++)
            store_rows<HD, 16>(own + i * part.heads * HD, width, tiles[i] + warp * 16 * kStride<HD>,
                               at.first_token + warp * 16, at.T);
        __syncwarp();
    }
}

}  // namespace llmc::hopper
