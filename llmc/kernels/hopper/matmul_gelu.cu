// Matmuls with GELU, or its gradient, in their epilogues; see matmul_gelu.h.
//
// A block takes tiles of 128 x 256 by tickets (tickets.cuh), one after the other. Two warpgroups multiply: each sums 64
// rows of a tile, rounds the result to BF16, and leaves it in two slots of shared memory, 128 columns in each. The
// third warpgroup finishes: it takes the slots from there, and computes and writes the output while the next tile is
// multiplied. One thread of the first warpgroup loads operands by TMA into a ring of stages.
//
// Forward, a slot has h, which TMA also stores. Backward, a slot has the gradient of GELU(h), and TMA loads h.
//
// Products of 64 x 256 need 154 registers where the kernel starts, so a block has three warpgroups, not more.
#include "llmc/kernels/hopper/matmul_gelu.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/keywords.cuh"
#include "llmc/kernels/instantiate.h"

#if LLMC_ON_GPU
#include "llmc/device/hopper.cuh"
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/hopper/tickets.cuh"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc {
namespace hopper {

constexpr int kRows = 128, kColumns = 256;  // a tile of h
constexpr int kStageBytes = kTileRowBytes;  // a stage's part of an operand's row: 128 codes or 64 BF16 values
constexpr int kStages = 3;
constexpr int kMultipliers = 2, kGroupRows = 64;  // warpgroups that multiply, and the rows of a tile that each computes
constexpr int kSlots = 2, kSlotColumns = 128;     // a multiplier's slots
constexpr int kPanelBytes = kGroupRows * kTileRowBytes;  // 64 rows and columns of h
constexpr int kGroupThreads = 128, kThreads = (kMultipliers + 1) * kGroupThreads;
// Backward, the multipliers hold more sums: 384 threads x 168 registers at the launch >= 256 x 208 + 128 x 88.
constexpr int kMultiplierRegisters = 208, kFinisherRegisters = 88;
constexpr int kRowTilesOfBand = 16;  // rows of tiles that are computed together, so that their operands stay in L2

// The first row and column of a tile. After a block's last tile comes one without a place.
struct Place {
    int row, column;
    LLMC_DEVICE bool none() const { return row < 0; }
};

// The tiles in the order of tickets: bands of 16 rows of tiles, column after column.
LLMC_HD int tile_count(int N, int F) { return N / kRows * (F / kColumns); }
LLMC_DEVICE Place place_of(int ticket, int N, int F) {
    if (ticket >= tile_count(N, F)) return {-1, -1};
    const int rows = N / kRows, columns = F / kColumns;
    const int band = ticket / (kRowTilesOfBand * columns) * kRowTilesOfBand, rest = ticket - band * columns;
    const int height = rows - band < kRowTilesOfBand ? rows - band : kRowTilesOfBand;
    return {(band + rest % height) * kRows, rest / height * kColumns};
}

// The block's tiles on their way from the finisher, which takes tickets, to all warpgroups. A place may be overwritten
// four tiles later, because by then a slot of a later tile was filled and finished.
struct TileQueue {
    static constexpr int kTiles = 4;
    Place places[kTiles];
    Barrier full[kTiles];

    // `n` counts the block's tiles.
    LLMC_DEVICE void put(int n, const Place& place) {
        places[n % kTiles] = place;
        arrive(full[n % kTiles]);
    }
    LLMC_DEVICE Place get(int n) {
        wait(full[n % kTiles], n / kTiles % 2);
        return again(n);
    }
    // For threads that have waited for it, or have met the thread that put it there.
    LLMC_DEVICE Place again(int n) const { return places[n % kTiles]; }
};

// The stage that is loaded next: `depth` of a tile. In shared memory, because multipliers have no registers for it.
struct NextStage {
    int tile, depth;  // `tile` counts the block's tiles
    Place place;
    RingPosition<kStages> at;
};

// A block's shared memory, all 227 KB that it may have. A slot has 64 rows in two panels of 64 columns, as TMA sees
// them.
struct alignas(kTileAlignment) GeluShared {
    alignas(kTileAlignment) uint8_t a[kStages][kRows * kStageBytes];
    alignas(kTileAlignment) uint8_t b[kStages][kColumns * kStageBytes];
    alignas(kTileAlignment) uint8_t slots[kMultipliers][kSlots][2 * kPanelBytes];
    alignas(kTileAlignment) uint8_t other[2 * kPanelBytes];  // forward: a slot's codes, if any; backward: its h
    union {
        alignas(16) bf16 bias[kMultipliers][2][kColumns];  // forward: that of this tile and of the next
        alignas(16) float column_sums[4][kSlotColumns];    // backward: those of each warp
    };
    Barrier full[kStages], empty[kStages], h_full;
    TileQueue tiles;
    NextStage next_stage;
};

// The arguments of an epilogue whose output is T: codes, or BF16 in rows, without scales and state. `bias` (F) is read
// forward, and `parts` (N / 128, F) are written backward.
template <class T>
struct GeluOutput {
    const float *a_scale_inv, *b_scale_inv;
    T *row, *transposed;
    const bf16* bias;
    float* parts;
    Fp8State* state;
    int N, F;
    QuantizePass pass;
};
template <class T>
constexpr bool kIsCode = !std::is_same_v<T, bf16>;
// dgrad sums over the rows of a BF16 weight; codes are transposed.
template <class T, bool kBackward>
constexpr bool kSumsOverRows = kBackward && !kIsCode<T>;
template <class T, bool kBackward>
constexpr bool kSplitsSums = (kIsCode<T> && kBackward);  // sum_split()

// Named barriers. For a multiplier's slot, `filled` follows its last write, and `freed` the last read.
LLMC_DEVICE int filled(int multiplier, int slot) { return 1 + 4 * multiplier + 2 * slot; }
LLMC_DEVICE int freed(int multiplier, int slot) { return 2 + 4 * multiplier + 2 * slot; }
constexpr int kCodesWritten = 1 + 4 * kMultipliers, kBothGroups = 2 * kGroupThreads;

// ---- loads ---------------------------------------------------------------------------------------------------------

using StagePosition = RingPosition<kStages>;

constexpr int kBPanelBytes = kTileColumns * kTileRowBytes;  // 64 rows and columns of b, if sums are over its rows

// Loads the operands of the block's tiles, stage after stage. One thread calls its functions.
struct StageLoader {
    const CUtensorMap &a, &b;
    const int depths;
    const bool sums_over_rows;  // b is (K, F), so a stage holds 64 rows of it: four panels of 64 columns

    // Loads the first stages, all but one.
    LLMC_DEVICE void start(GeluShared& shared) const {
        shared.next_stage = {};
        LLMC_NO_UNROLL
        for (int stage = 0; stage < kStages - 1; stage++) load_next(shared);
    }
    // Loads the next stage as soon as both multipliers have read what it held.
    LLMC_DEVICE void load_next(GeluShared& shared) const {
        NextStage next = shared.next_stage;
        if (next.depth == 0) next.place = shared.tiles.get(next.tile);
        if (next.place.none()) return;
        const int stage = next.at.stage;
        wait(shared.empty[stage], next.at.parity ^ 1);
        Barrier& full = shared.full[stage];
        arrive_and_expect(full, (kRows + kColumns) * kStageBytes);
        // For TMA two codes are one BF16 number.
        const int first = next.depth * kTileColumns;
        load_tile(shared.a[stage], a, full, first, next.place.row, 0);
        if (!sums_over_rows) load_tile(shared.b[stage], b, full, first, next.place.column, 0);
        for (int panel = 0; sums_over_rows && panel < kColumns / kTileColumns; panel++)
            load_tile(shared.b[stage] + panel * kBPanelBytes, b, full, next.place.column + panel * kTileColumns, first,
                      0);
        next.at.advance();
        if (++next.depth == depths) {
            next.depth = 0;
            next.tile++;
        }
        shared.next_stage = next;
    }
};

// ---- products ------------------------------------------------------------------------------------------------------

// A thread of a multiplier, and its place in the ring.
struct Multiplier {
    GeluShared& shared;
    StageLoader loader;
    int group;
    StagePosition at;

    // In the warpgroup; unsigned, because division is then one instruction. Read again for each use, so that it takes
    // no register of the main loop.
    LLMC_DEVICE unsigned thread() const { return static_cast<unsigned>(thread_of_warpgroup()); }
    LLMC_DEVICE uint64_t a() const {
        return tile_descriptor(shared.a[at.stage]) + group * (kGroupRows / 16 * kSixteenRows);
    }
    LLMC_DEVICE uint64_t b() const {
        return loader.sums_over_rows ? panels_descriptor(shared.b[at.stage], kBPanelBytes)
                                     : tile_descriptor(shared.b[at.stage]);
    }
    LLMC_DEVICE void wait_for_stage() const { wait(shared.full[at.stage], at.parity); }
    // The warpgroup has read the stage.
    LLMC_DEVICE void release(int stage) const {
        if (thread() % 32 == 0) arrive(shared.empty[stage]);  // for its warp
    }
    // While a stage's products run, loads the stage after the next.
    LLMC_DEVICE void load_next() const {
        if (group == 0 && thread() == 0) loader.load_next(shared);
    }
};

constexpr int kHalfTile = kSlotColumns / 16 * kSixteenRows;  // 128 rows further in a descriptor

// Sums the group's 64 rows of a tile as the tensor cores accumulate them. While a stage's products run, the next
// stage's are issued.
template <class T, bool kBackward>
LLMC_DEVICE void sum_fast(float (&sums)[2][64], Multiplier& own) {
    float(&all)[128] = reinterpret_cast<float(&)[128]>(sums);
    int last = 0;
    const auto add_stage = [&]<bool kFirst>() {
        own.wait_for_stage();
        const uint64_t a = own.a(), b = own.b();
        fence_accumulators(all);
        begin_products();
        for (int k = 0; k < 4; k++) {
            const bool accumulate = !kFirst || k > 0;
            if constexpr (kIsCode<T>)
                multiply_codes<T>(all, a + k * kSixteenColumns, b + k * kSixteenColumns, accumulate);
            else if constexpr (kBackward)
                multiply_columns(all, a + k * kSixteenColumns, b + k * kSixteenRows, accumulate);
            else
                multiply_rows(all, a + k * kSixteenColumns, b + k * kSixteenColumns, accumulate);
        }
        commit_products();
        wait_for_products<1>();
        if (!kFirst) own.release(last);
        own.load_next();
        last = own.at.stage;
        own.at.advance();
    };
    // The first stage is not part of the loop: there, ptxas before CUDA 12.9 would serialize all products, because it
    // would find the sums undefined.
    add_stage.template operator()<true>();
    LLMC_NO_UNROLL
    for (int depth = 1; depth < own.loader.depths; depth++) add_stage.template operator()<false>();
    wait_for_products<0>();
    fence_accumulators(all);
    own.release(last);
}

// The same sums, of which the tensor cores accumulate 128 terms of 128 columns at a time. The products of the other
// multiplier run while this one adds.
template <class F8>
LLMC_DEVICE void sum_split(float (&sums)[2][64], Multiplier& own) {
    LLMC_UNROLL
    for (int i = 0; i < 128; i++) sums[i / 64][i % 64] = 0.0f;
    LLMC_NO_UNROLL
    for (int depth = 0; depth < own.loader.depths; depth++, own.at.advance()) {
        own.wait_for_stage();
        LLMC_UNROLL
        for (int half = 0; half < 2; half++) {
            const uint64_t a = own.a(), b = own.b();
            float part[64];
            fence_accumulators(part);
            begin_products();
            for (int k = 0; k < 4; k++)
                multiply_codes<F8>(part, a + k * kSixteenColumns, b + half * kHalfTile + k * kSixteenColumns, k > 0);
            commit_products();
            wait_for_products<0>();
            fence_accumulators(part);
            if (half == 1) own.release(own.at.stage);
            LLMC_UNROLL
            for (int i = 0; i < 64; i++) sums[half][i] += part[i];
            if (half == 0) own.load_next();
        }
    }
}

// Writes sums * factor, forward with the bias added, to a slot. A thread has sums[4 j + 2 r + e], those of row
// 16 warp + 8 r + lane / 4 and column 8 j + 2 (lane % 4) + e.
template <bool kBackward>
LLMC_DEVICE void fill_slot(uint8_t* slot, const float (&sums)[64], float factor, const bf16* bias, unsigned thread) {
    const unsigned lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    const uint32_t row_address = shared_address(slot) + row * kTileRowBytes;
    LLMC_UNROLL
    for (int p = 0; p < kSlotColumns / 16; p++) {
        uint32_t words[2][2];
        LLMC_UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t both = kBackward ? 0 : load_word(bias + 16 * p + 8 * i + 2 * (lane % 4));
            for (int r = 0; r < 2; r++) {
                const float* const pair = sums + 8 * p + 4 * i + 2 * r;
                words[i][r] = kBackward ? pack_bf16x2(pair[0] * factor, pair[1] * factor)
                                        : pack_bf16x2(fmaf(pair[0], factor, bf16x2_low(both)),
                                                      fmaf(pair[1], factor, bf16x2_high(both)));
            }
        }
        const unsigned piece = 2 * p % 8 ^ lane / 16 ^ row % 8;  // of 8 columns
        store_matrices(row_address + p / 4 * kPanelBytes + piece * 16, words[0][0], words[0][1], words[1][0],
                       words[1][1]);
    }
}

template <class T, bool kBackward>
LLMC_DEVICE void multiply_tiles(Multiplier own, const GeluOutput<T>& to) {
    if (own.group == 0 && own.thread() == 0) own.loader.start(own.shared);
    LLMC_NO_UNROLL
    for (int tile = 0;; tile++) {
        const Place place = own.shared.tiles.get(tile);
        if (place.none()) return;
        float sums[2][64];
        bf16* bias = nullptr;
        if constexpr (kSplitsSums<T, kBackward>) {
            sum_split<T>(sums, own);
        } else if constexpr (kBackward) {
            sum_fast<T, true>(sums, own);
        } else {
            // Loaded before the main loop, which hides its latency.
            const uint32_t own_bias = load_word(to.bias + place.column + 2 * own.thread());
            sum_fast<T, false>(sums, own);
            bias = own.shared.bias[own.group][tile % 2];  // threads that are behind still read the last tile's
            store_word(bias + 2 * own.thread(), own_bias);
        }
        const float factor = kIsCode<T> ? *to.a_scale_inv * *to.b_scale_inv : 1.0f;
        LLMC_UNROLL
        for (int slot = 0; slot < kSlots; slot++) {
            named_barrier(freed(own.group, slot), kBothGroups);
            fill_slot<kBackward>(own.shared.slots[own.group][slot], sums[slot], factor, bias + slot * kSlotColumns,
                                 own.thread());
            if (!kBackward) fence_async_proxy();
            arrive_at_barrier(filled(own.group, slot), kBothGroups);
        }
    }
}

// ---- epilogue ------------------------------------------------------------------------------------------------------

// The offset of 16 codes of a row. Pieces are exchanged so that writing rows and reading columns have no bank
// conflicts.
LLMC_DEVICE unsigned code_offset(unsigned row, unsigned piece) {
    return row * kSlotColumns + (piece ^ (row & 7) ^ (row >> 4 & 3) << 1) * 16;
}

// Notes a thread's values. A single test for all of them lets their exponentials and casts overlap.
template <class F8, bool kCounts, int kRows>
LLMC_DEVICE void note_rows(QuantizeTally& tally, const float (&x)[kRows][8], float scale) {
    uint32_t largest = 0;
    LLMC_UNROLL
    for (int i = 0; i < kRows; i++) largest = max(largest, largest_magnitude(x[i]));
    if (!kCounts && largest < kFloatInfinityBits) {
        tally.amax = max(tally.amax, largest);
        return;
    }
    LLMC_UNROLL
    for (int i = 0; i < kRows; i++) {
        note_values(tally, x[i]);
        if constexpr (kCounts) note_losses<F8>(tally, x[i], scale);
    }
}

// A thread of the finisher has eight columns of every eighth row of a slot.
constexpr int kThreadRows = kGroupRows / 8;

struct SlotThread {
    unsigned first_row, piece;  // of 8 columns
    LLMC_DEVICE explicit SlotThread(unsigned thread) : first_row(thread / 16), piece(thread % 16) {}
    LLMC_DEVICE unsigned row(int i) const { return 8 * i + first_row; }
    LLMC_DEVICE const bf16* values(const uint8_t* slot, int i) const {
        return reinterpret_cast<const bf16*>(slot + piece / 8 * kPanelBytes + row(i) * kTileRowBytes +
                                             (piece % 8 ^ first_row) * 16);
    }
};

// Computes a thread's values: GELU of a slot, or the slot times GELU's derivative of h, whose columns are then added to
// `sums`. Writes rows of them to memory, if `row` is not nullptr, and codes also to shared memory.
template <class T, bool kBackward, bool kCounts>
LLMC_DEVICE void finish_slot(uint8_t* codes, QuantizeTally& tally, float (&sums)[8], T* row, int F, const uint8_t* slot,
                             const uint8_t* h, float scale, const SlotThread& own) {
    constexpr int kTogether = !kBackward ? kThreadRows : kCounts ? 1 : kIsCode<T> ? 2 : 4;  // rows
    LLMC_UNROLL
    for (int first = 0; first < kThreadRows; first += kTogether) {
        float x[kTogether][8];
        LLMC_UNROLL
        for (int i = 0; i < kTogether; i++) load8(own.values(slot, first + i), x[i]);
        if constexpr (kBackward && kIsCode<T>) __syncwarp();  // codes take the place of rows that the warp has read
        LLMC_UNROLL
        for (int i = 0; i < kTogether; i++) {
            if constexpr (kBackward) {
                float inputs[8];
                load8(own.values(h, first + i), inputs);
                for (int n = 0; n < 8; n++) {
                    x[i][n] *= Gelu::derivative(inputs[n]);
                    sums[n] += x[i][n];
                }
            } else {
                for (int n = 0; n < 8; n++) x[i][n] = Gelu::value(x[i][n]);
            }
            const unsigned at = own.row(first + i);
            const size_t place = static_cast<size_t>(at) * F + 8 * own.piece;
            if constexpr (kIsCode<T>) {
                uint32_t words[2];
                quantize_8<T>(words, tally, x[i], scale, QuantizePass::replay);
                const uint2 both = make_uint2(words[0], words[1]);
                *reinterpret_cast<uint2*>(codes + code_offset(at, own.piece / 2) + own.piece % 2 * 8) = both;
                if (row) *reinterpret_cast<uint2*>(row + place) = both;
            } else {
                store8(row + place, x[i]);
            }
        }
        if constexpr (kIsCode<T>) note_rows<T, kCounts>(tally, x, scale);
    }
}

// Writes the columns of `codes`. Four lanes write 64 bytes of one. An element of ldmatrix is two codes, and the rows
// whose addresses a lane passes are so chosen that it gets 16 consecutive ones of two columns.
template <class F8>
LLMC_DEVICE void write_columns(F8* to, int N, const uint8_t* codes, unsigned thread) {
    const unsigned warp = thread / 32, lane = thread % 32;
    LLMC_UNROLL
    for (int i = 0; i < kSlotColumns / 64; i++) {
        const unsigned piece = 4 * i + warp;
        uint32_t c[2][4];  // rows 2 n and 2 n + 1 of the lane's sixteen are in word n, two codes each
        for (int n = 0; n < 2; n++) {
            const unsigned row = 16 * (lane % 8 / 2) + 2 * (4 * n + lane / 8) + lane % 2;
            load_transposed_matrices(shared_address(codes) + code_offset(row, piece), c[n]);
        }
        for (int e = 0; e < 2; e++) {
            const unsigned bytes = e ? 0x7531 : 0x6420, column = 16 * piece + 2 * (lane / 4) + e;
            store16(to + static_cast<size_t>(column) * N + 16 * (lane % 4),
                    Bytes16{{__byte_perm(c[0][0], c[0][1], bytes), __byte_perm(c[0][2], c[0][3], bytes),
                             __byte_perm(c[1][0], c[1][1], bytes), __byte_perm(c[1][2], c[1][3], bytes)}});
        }
    }
}

// Starts the load of a slot's h. One thread calls it.
LLMC_DEVICE void fetch_h(GeluShared& shared, const CUtensorMap& h, const Place& at) {
    arrive_and_expect(shared.h_full, 2 * kPanelBytes);
    for (int panel = 0; panel < 2; panel++)
        load_tile(shared.other + panel * kPanelBytes, h, shared.h_full, at.column + panel * kTileColumns, at.row, 0);
}

// Leaves the sums of a warp's rows in shared memory.
LLMC_DEVICE void put_column_sums(float (&to)[kSlotColumns], float (&sums)[8], unsigned lane) {
    for (int n = 0; n < 8; n++) sums[n] += __shfl_xor_sync(~0u, sums[n], 16);
    if (lane >= 16) return;
    store4(to + 8 * lane, sums);
    store4(to + 8 * lane + 4, sums + 4);
}

// The order of a tile's slots: both multipliers' first, then both multipliers' second.
struct SlotOrder {
    int group, slot;
    LLMC_DEVICE explicit SlotOrder(int i) : group(i % kMultipliers), slot(i / kMultipliers) {}
    LLMC_DEVICE Place place(const Place& tile) const {
        return {tile.row + group * kGroupRows, tile.column + slot * kSlotColumns};
    }
};
constexpr int kSlotsOfTile = kMultipliers * kSlots;

// The finisher also takes the block's tickets. Multipliers begin a tile when its predecessor is finished, and load it
// up to two stages earlier, so tile n + 2 is taken while tile n is finished, and n + 3 if a tile is a single stage.
template <class T, bool kBackward, bool kCounts>
LLMC_DEVICE void finish_tiles(unsigned thread, GeluShared& shared, const GeluOutput<T>& to, const CUtensorMap& h,
                              const Tickets& tickets, int depths) {
    constexpr int kMostTiles = (1 << 24) / (kRows * kColumns / 4) - 1;  // that a warp may count (commit_tally())
    const SlotThread own(thread);
    const bool copies = thread == 0, takes_tickets = thread == kGroupThreads - 1;
    const float scale = kIsCode<T> ? to.state->scale : 1.0f;
    const int ahead = depths > 1 ? 2 : 3;
    const auto take = [&](int n) { return n > 0 && shared.tiles.again(n - 1).none() ? tickets.items : tickets.take(); };
    if (takes_tickets)
        for (int n = 0; n < ahead; n++) shared.tiles.put(n, place_of(take(n), to.N, to.F));
    const Place first = shared.tiles.get(0);
    if (first.none()) return;
    if (kCounts && thread == 0 && first.row + first.column == 0)
        atomic_add(&to.state->elements, static_cast<uint64_t>(to.N) * to.F);
    QuantizeTally tally;
    float sums[8];
    for (int i = 0; i < kSlotsOfTile; i++) arrive_at_barrier(freed(i / kSlots, i % kSlots), kBothGroups);
    if (kBackward && copies) fetch_h(shared, h, first);
    LLMC_NO_UNROLL
    for (int turn = 0;; turn++) {
        const int n = turn / kSlotsOfTile, i = turn % kSlotsOfTile;
        const auto tile = [&] { return shared.tiles.again(n); };  // not kept, because registers are few
        if (tile().none()) return;
        const SlotOrder order(i);
        const int group = order.group;
        const auto place = [&] { return order.place(tile()); };
        uint8_t *const slot = shared.slots[group][order.slot], *const codes = kBackward ? slot : shared.other;
        T* const row = to.row ? to.row + static_cast<size_t>(place().row) * to.F + place().column : nullptr;
        const auto is_last = [&] { return shared.tiles.again(n + 1).none(); };
        const auto free_slot = [&] {
            if (!is_last()) arrive_at_barrier(freed(group, order.slot), kBothGroups);
        };
        named_barrier(filled(group, order.slot), kBothGroups);  // and all have read the last slot's codes
        if constexpr (kBackward) {
            if (group == 0)
                for (float& sum : sums) sum = 0.0f;
            wait(shared.h_full, turn % 2);
            finish_slot<T, true, kCounts>(codes, tally, sums, row, to.F, slot, shared.other, scale, own);
            if (group == 1) put_column_sums(shared.column_sums[thread / 32], sums, thread % 32);
            fence_async_proxy();
        } else {
            if (copies) {
                for (int panel = 0; panel < 2; panel++)
                    store_tile(slot + panel * kPanelBytes, h, place().column + panel * kTileColumns, place().row, 0);
                commit_stores();
            }
            finish_slot<T, false, kCounts>(codes, tally, sums, row, to.F, slot, nullptr, scale, own);
            if (copies) wait_until_stores_have_read();
            free_slot();
        }
        named_barrier(kCodesWritten, kGroupThreads);  // and h has been read
        const int ticket = i == 0 && takes_tickets ? take(n + ahead) : 0;
        if (kBackward && copies) {
            if (i + 1 < kSlotsOfTile)
                fetch_h(shared, h, SlotOrder(i + 1).place(tile()));
            else if (!is_last())
                fetch_h(shared, h, shared.tiles.again(n + 1));
        }
        if (kIsCode<T> && to.transposed)
            write_columns(to.transposed + static_cast<size_t>(place().column) * to.N + place().row, to.N, codes,
                          thread);
        if constexpr (kBackward) {
            free_slot();
            if (group == 1) {
                float sum = 0.0f;
                for (int warp = 0; warp < 4; warp++) sum += shared.column_sums[warp][thread];
                to.parts[static_cast<size_t>(place().row / kRows) * to.F + place().column + thread] = sum;
            }
        }
        if (i == 0 && takes_tickets) shared.tiles.put(n + ahead, place_of(ticket, to.N, to.F));
        if (kIsCode<T> && i == kSlotsOfTile - 1 && (is_last() || n % kMostTiles == kMostTiles - 1)) {
            commit_tally(to.state, tally, 0, to.pass);
            tally = {};
        }
    }
}

// ---- kernel --------------------------------------------------------------------------------------------------------

// Grid: tickets.workers. a is (N, K). b is (F, K), or (K, F) if sums are over its rows. `h` is written forward, and
// read backward.
template <class T, bool kBackward, bool kCounts>
static __global__ void __launch_bounds__(kThreads, 1)
    hopper_matmul_gelu_kernel(const GeluOutput<T> to, const __grid_constant__ CUtensorMap a,
                              const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap h,
                              const Tickets tickets, int K) {
#if LLMC_HOPPER
    extern __shared__ __align__(kTileAlignment) unsigned char hopper_shared[];
    GeluShared& shared = *reinterpret_cast<GeluShared*>(hopper_shared);
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; s++) {
            init(shared.full[s], 1);
            init(shared.empty[s], kMultipliers * kGroupThreads / 32);
        }
        for (Barrier& full : shared.tiles.full) init(full, 1);
        if (kBackward) init(shared.h_full, 1);
        publish_barriers();
    }
    __syncthreads();
    const int group = same_in_warp(static_cast<int>(threadIdx.x) / kGroupThreads);
    const unsigned thread = threadIdx.x % kGroupThreads;
    const int depths = div_up(K * static_cast<int>(sizeof(T)), kStageBytes);
    if (group < kMultipliers) {
        if constexpr (kSplitsSums<T, kBackward>) take_registers<kMultiplierRegisters>();
        multiply_tiles<T, kBackward>({shared, {a, b, depths, kSumsOverRows<T, kBackward>}, group, {}}, to);
    } else {
        if constexpr (kSplitsSums<T, kBackward>) give_registers<kFinisherRegisters>();
        finish_tiles<T, kBackward, kCounts>(thread, shared, to, h, tickets, depths);
    }
#endif
}

// Launches it on one block per multiprocessor.
template <class T, bool kBackward>
static void launch_product(const GeluOutput<T>& to, const bf16* h, const T* a, const WeightOf<T>* b, int K,
                           std::initializer_list<Access> accesses, unsigned* counter, stream_t stream) {
    static const int multiprocessors = device_info().multiprocessors;
    const auto map = [](const auto* matrix, int rows, int columns, int tile_rows) {
        return tensor_map(reinterpret_cast<const bf16*>(matrix), 1, rows, columns * sizeof *matrix / sizeof(bf16),
                          tile_rows);
    };
    const auto weight = kSumsOverRows<T, kBackward> ? map(b, K, to.F, kTileColumns) : map(b, to.F, K, kColumns);
    const int tiles = tile_count(to.N, to.F), blocks = std::min(multiprocessors, tiles);
    const LaunchConfig config(dim3(static_cast<unsigned>(blocks)), dim3(kThreads), sizeof(GeluShared), stream);
    const auto run = [&]<bool kCounts>() {
        launch<hopper_matmul_gelu_kernel<T, kBackward, kCounts>>(config, accesses, to, map(a, to.N, K, kRows), weight,
                                                                 map(h, to.N, to.F, kGroupRows),
                                                                 Tickets{counter, tiles, blocks}, K);
    };
    if constexpr (kIsCode<T>)
        if (counts_losses(to.pass)) return run.template operator()<true>();
    run.template operator()<false>();
}

template <class T>
static void check_product(const char* launcher, const Quantized<T>& to, int N, int K, int F, QuantizePass pass) {
    if (!can_multiply_with_gelu(N, K, F))
        throw Error(ExitCode::failure, "{}: N={} K={} F={}; N must be a multiple of 128, F one of 256 and K one of 16",
                    launcher, N, K, F);
    if (!kIsCode<T>) return;
    if (to.state == nullptr) throw Error(ExitCode::failure, "{}: the FP8 state is missing", launcher);
    if (!writes_fp8(pass)) throw Error(ExitCode::failure, "{}: measures nothing on its own", launcher);
}

template <class T>
void multiply_gelu_forward(const Quantized<T>& to, bf16* h, const Codes<T>& x, const Codes<T>& weight, const bf16* bias,
                           int N, int K, int F, QuantizePass pass, unsigned* tickets, stream_t stream) {
    check_product("multiply_gelu_forward", to, N, K, F, pass);
    const size_t n = static_cast<size_t>(N) * F, k = static_cast<size_t>(K);
    launch_product<T, false>(
        {x.scale_inv, weight.scale_inv, to.row, to.transposed, bias, nullptr, to.state, N, F, pass}, h, x.codes,
        weight.codes, K,
        {out(h, n), out(to.row, n), out(to.transposed, n), state_access(to.state, pass), in(x.codes, N * k),
         in(weight.codes, F * k), in(bias, static_cast<size_t>(F)), tickets_access(tickets)},
        tickets, stream);
}

template <class T>
void multiply_gelu_backward(const Quantized<T>& to, const BiasGradient& bias, const Codes<T>& dout,
                            const Codes<WeightOf<T>>& weight, const bf16* h, int N, int K, int F, QuantizePass pass,
                            unsigned* tickets, stream_t stream) {
    check_product("multiply_gelu_backward", to, N, K, F, pass);
    const size_t n = static_cast<size_t>(N) * F, k = static_cast<size_t>(K);
    const int parts = N / kRows;
    launch_product<T, true>(
        {dout.scale_inv, weight.scale_inv, to.row, to.transposed, nullptr, bias.scratch, to.state, N, F, pass}, h,
        dout.codes, weight.codes, K,
        {out(to.row, n), out(to.transposed, n), out(bias.scratch, static_cast<size_t>(parts) * F),
         state_access(to.state, pass), in(h, n), in(dout.codes, N * k), in(weight.codes, F * k),
         tickets_access(tickets)},
        tickets, stream);
    reduce_column_parts(bias.dbias, nullptr, bias.scratch, parts, F, F, bias.accumulate, stream);
}

}  // namespace hopper
}  // namespace llmc

#else

namespace llmc::hopper {

// The host device has none of these instructions, and no run plans these kernels for it.
static void refuse_product() { throw Error(ExitCode::failure, "matmuls with GELU are for Hopper"); }

template <class T>
void multiply_gelu_forward(const Quantized<T>&, bf16*, const Codes<T>&, const Codes<T>&, const bf16*, int, int, int,
                           QuantizePass, unsigned*, stream_t) {
    refuse_product();
}
template <class T>
void multiply_gelu_backward(const Quantized<T>&, const BiasGradient&, const Codes<T>&, const Codes<WeightOf<T>>&,
                            const bf16*, int, int, int, QuantizePass, unsigned*, stream_t) {
    refuse_product();
}

}  // namespace llmc::hopper

#endif

namespace llmc::hopper {
LLMC_INSTANTIATE_BOTH(multiply_gelu_forward, e4m3, bf16);
LLMC_INSTANTIATE_BOTH(multiply_gelu_backward, e5m2, bf16);
}  // namespace llmc::hopper
