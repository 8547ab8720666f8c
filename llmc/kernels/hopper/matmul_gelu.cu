// FP8 products with GELU, or its gradient, in their epilogues; see matmul_gelu.h.
//
// A block has two teams of two math warpgroups, which take turns at tiles of 128 x 128 of h, or of its gradient. Each
// warpgroup computes 64 rows of its team's tile. One thread fills a ring of stages by TMA for both teams, so that the
// next tile's first stages arrive while the last tile's products run. While one team is in its epilogue, with two warps
// per scheduler, the other one has the tensor cores.
//
// Codes go through shared memory in the order in which threads have them. A thread then takes 16 codes of a row, or by
// ldmatrix 16 of a column, and writes them to memory at once.
#include "llmc/kernels/hopper/matmul_gelu.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/keywords.cuh"

#if LLMC_ON_GPU
#include "llmc/device/hopper.cuh"
#include "llmc/device/registers.cuh"
#include "llmc/kernels/activation.cuh"
#include "llmc/kernels/column_sums.cuh"
#include "llmc/kernels/hopper/attention.h"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc {
namespace hopper {

constexpr int kProductTile = 128;   // rows and columns
constexpr int kProductDepth = 128;  // codes of a row in a stage
constexpr int kProductStages = 5;
constexpr int kProductTileBytes = kProductTile * kProductDepth;
constexpr int kPanelBytes = 64 * kTileRowBytes;  // 64 rows and columns of h
constexpr int kGroupRows = 64, kGroupThreads = 128, kGroups = 4, kTeamThreads = 2 * kGroupThreads;
constexpr int kProductThreads = (kGroups + 1) * kGroupThreads;
// 640 threads x 96 registers at the launch >= 128 x 24 + 512 x 112.
constexpr int kProducerRegisters = 24, kMathRegisters = 112;
constexpr int kTilesOfBand = 16;  // rows of tiles that are computed together, so that their operands stay in L2

// A block's shared memory, all 227 KB that it may have. A warpgroup's staging holds its 64 rows of h in BF16, as TMA
// sees them; or its codes; or its sums of columns.
struct alignas(kTileAlignment) ProductShared {
    alignas(kTileAlignment) uint8_t a[kProductStages][kProductTileBytes];
    alignas(kTileAlignment) uint8_t b[kProductStages][kProductTileBytes];
    alignas(kTileAlignment) uint8_t staging[kGroups][kGroupRows * kProductTile * sizeof(bf16)];
    alignas(16) bf16 bias[kGroups][kProductTile];  // forward: that of a warpgroup's tile
    float column_sums[kGroups / 2][kProductTile];  // backward: those of a team's second warpgroup
    Barrier full[kProductStages], empty[kProductStages], h_full[kGroups];
};

// The arguments of an epilogue. `bias` (F) is read forward, and `parts` (N / 128, F) are written backward.
template <class F8>
struct GeluOutput {
    const float *a_scale_inv, *b_scale_inv;
    F8 *row, *transposed;
    float* parts;
    Fp8State* state;
    const bf16* bias;
    int N, F;
    QuantizePass pass;

    LLMC_DEVICE float factor() const { return *a_scale_inv * *b_scale_inv; }
};

// How values are noted, whatever the pass: a test of it for every eight values would take registers that the epilogues
// do not have. So passes that count losses have kernels of their own, and passes that change no state drop what was
// noted.
template <bool kCounts>
constexpr QuantizePass kNotingPass = kCounts ? QuantizePass::train_counted : QuantizePass::train;

// The tiles that a block takes, and their places: bands of 16 rows of tiles, column after column.
struct TileWalk {
    int N, F;
    struct Place {
        int row, column;
    };
    LLMC_HD int count() const { return N / kProductTile * (F / kProductTile); }
    LLMC_DEVICE Place place(int tile) const {
        const int rows = N / kProductTile, columns = F / kProductTile;
        const int band = tile / (kTilesOfBand * columns) * kTilesOfBand, rest = tile - band * columns;
        const int height = rows - band < kTilesOfBand ? rows - band : kTilesOfBand;
        return {(band + rest % height) * kProductTile, rest / height * kProductTile};
    }
    // Calls take(place, is_last) for every `stride`-th of the block's tiles, from its tile `first` on. is_last: the
    // block has no further tile.
    template <class Take>
    LLMC_DEVICE void each_tile(int first, int stride, Take&& take) const {
        const int step = static_cast<int>(gridDim.x);
        int tile = static_cast<int>(blockIdx.x) + first * step;
        LLMC_NO_UNROLL
        for (;; tile += stride * step) {
            TileWalk same = *this;  // read again for each tile, so that it takes no registers meanwhile
            forget(same.N);
            forget(same.F);
            if (tile >= same.count()) return;
            take(same.place(tile), tile + step >= same.count());
        }
    }
};

// A thread of a math warpgroup. Of its warpgroup's 64 rows of products it has sums[4 j + 2 r + e], those of row
// 16 warp + 8 r + lane / 4 and column 8 j + 2 (lane % 4) + e.
struct GroupThread {
    int group;
    unsigned index, warp, lane;  // unsigned, because division is then one instruction
    uint8_t* staging;

    LLMC_DEVICE GroupThread(int g, unsigned i, uint8_t* s)
        : group(g), index(i), warp(i / 32), lane(i % 32), staging(s) {}
    // The same thread. Its places are computed again from it, because the main loop has no registers for them.
    LLMC_DEVICE GroupThread again() const {
        int same = static_cast<int>(index);
        forget(same);
        return {group, static_cast<unsigned>(same), staging};
    }
    LLMC_DEVICE bool is_first() const { return index == 0; }
    LLMC_DEVICE void meet() const { named_barrier(3 + group, kGroupThreads); }
    // The lane's row in stmatrix or ldmatrix of rows 16 warp to 16 warp + 15 and columns 8 j to 8 j + 15 of 64 rows of
    // BF16, which lie in two tiles of 64 columns.
    LLMC_DEVICE uint32_t bf16_place(int j) const {
        const unsigned row = 16 * warp + lane % 16, piece = j + lane / 16;
        return shared_address(staging) + piece / 8 * kPanelBytes + row * kTileRowBytes + (piece % 8 ^ row % 8) * 16;
    }
    // The offset of 16 codes of a row. Pieces are exchanged so that writing them and reading rows and columns have no
    // bank conflicts.
    LLMC_DEVICE static unsigned code_offset(unsigned row, unsigned piece) {
        return row * kProductTile + (piece ^ (row & 7) ^ (row >> 4 & 3) << 1) * 16;
    }
};

// ---- main loop -----------------------------------------------------------------------------------------------------

using ProductPosition = RingPosition<kProductStages>;

LLMC_DEVICE void produce(ProductShared& shared, const CUtensorMap& a, const CUtensorMap& b, const TileWalk& walk,
                         int depths) {
    ProductPosition at;
    walk.each_tile(0, 1, [&](const TileWalk::Place& place, bool) {
        LLMC_NO_UNROLL
        for (int d = 0; d < depths; d++, at.advance()) {
            Barrier& full = shared.full[at.stage];
            wait(shared.empty[at.stage], at.parity ^ 1);
            arrive_and_expect(full, 2 * kProductTileBytes);
            // For TMA two codes are one BF16 number.
            load_tile(shared.a[at.stage], a, full, d * kTileColumns, place.row, 0);
            load_tile(shared.b[at.stage], b, full, d * kTileColumns, place.column, 0);
        }
    });
}

constexpr int kHalfTile = 4 * kSixteenRows;  // 64 rows further in a descriptor

// A warpgroup's sums as the tensor cores accumulate them. While a stage's products run, the next stage's are issued.
// Calls pass_turn() when it has seen all of the tile's stages. `half` is the warpgroup's place in its team.
template <class F8, class PassTurn>
LLMC_DEVICE void sum_fast(float (&sums)[64], ProductShared& shared, ProductPosition& at, int depths, int half,
                          bool arrives, const PassTurn& pass_turn) {
    int last = 0;
    LLMC_NO_UNROLL
    for (int depth = 0; depth < depths; depth++) {
        wait(shared.full[at.stage], at.parity);
        const uint64_t a = tile_descriptor(shared.a[at.stage]) + half * kHalfTile;
        const uint64_t b = tile_descriptor(shared.b[at.stage]);
        fence_accumulators(sums);
        begin_products();
        LLMC_UNROLL
        for (int k = 0; k < 4; k++)
            multiply_codes<F8>(sums, a + k * kSixteenColumns, b + k * kSixteenColumns, depth > 0 || k > 0);
        commit_products();
        wait_for_products<1>();
        if (depth > 0 && arrives) arrive(shared.empty[last]);
        last = at.stage;
        at.advance();
    }
    pass_turn();
    wait_for_products<0>();
    fence_accumulators(sums);
    if (arrives) arrive(shared.empty[last]);
}

// The same sums, of which the tensor cores accumulate 128 terms of 64 columns at a time. The products of the team's
// other warpgroup run while this one adds.
template <class F8, class PassTurn>
LLMC_DEVICE void sum_split(float (&sums)[64], ProductShared& shared, ProductPosition& at, int depths, int half,
                           bool arrives, const PassTurn& pass_turn) {
    LLMC_UNROLL
    for (int i = 0; i < 64; i++) sums[i] = 0.0f;
    LLMC_NO_UNROLL
    for (int depth = 0; depth < depths; depth++) {
        wait(shared.full[at.stage], at.parity);
        const uint64_t a = tile_descriptor(shared.a[at.stage]) + half * kHalfTile;
        const uint64_t b = tile_descriptor(shared.b[at.stage]);
        LLMC_UNROLL
        for (int columns = 0; columns < 2; columns++) {
            float part[32];
            fence_accumulators(part);
            begin_products();
            LLMC_UNROLL
            for (int k = 0; k < 4; k++)
                multiply_codes<F8>(part, a + k * kSixteenColumns, b + columns * kHalfTile + k * kSixteenColumns, k > 0);
            commit_products();
            wait_for_products<0>();
            fence_accumulators(part);
            if (columns == 1 && arrives) arrive(shared.empty[at.stage]);
            LLMC_UNROLL
            for (int i = 0; i < 32; i++) sums[32 * columns + i] += part[i];
        }
        at.advance();
    }
    pass_turn();
}

// ---- epilogues -----------------------------------------------------------------------------------------------------

// A thread's codes: [p][r] are four of its row r, of columns 16 p to 16 p + 15.
using TileCodes = uint32_t[8][2];

// Quantizes eight values of 16 columns. Their h are in `words`, those of columns 8 i + 2 (lane % 4) and the next in
// words[i][r]; value(x, i, r, e) is the value of one.
template <class F8, bool kCounts, class Value>
LLMC_DEVICE void quantize_eight(uint32_t (&codes)[2], QuantizeTally& tally, const uint32_t (&words)[2][2], float scale,
                                const Value& value) {
    float x[8];
    LLMC_UNROLL
    for (int n = 0; n < 8; n++) {
        const int r = n / 4, i = n / 2 % 2, e = n % 2;
        x[n] = value(e ? bf16x2_high(words[i][r]) : bf16x2_low(words[i][r]), i, r, e);
    }
    quantize_8<F8, kCounts>(codes, tally, x, scale, kNotingPass<kCounts>);
}

// Writes the codes to the staging, whose contents are no longer needed. An element of an stmatrix matrix is two codes,
// so sixteen columns are stored in the order in which threads have them: 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
LLMC_DEVICE void put_codes(const GroupThread& own, const TileCodes& codes) {
    LLMC_UNROLL
    for (int p = 0; p < 8; p += 2)
        store_matrices(
            shared_address(own.staging) + GroupThread::code_offset(16 * own.warp + own.lane % 16, p + own.lane / 16),
            codes[p][0], codes[p][1], codes[p + 1][0], codes[p + 1][1]);
    own.meet();
}

// Eight lanes write 128 bytes of a row.
template <class F8>
LLMC_DEVICE void write_code_rows(const GroupThread& own, F8* to, int F) {
    LLMC_UNROLL
    for (int i = 0; i < 4; i++) {
        const unsigned row = 16 * i + own.index / 8, piece = own.index % 8;
        const Bytes16 c = load16(own.staging + GroupThread::code_offset(row, piece));
        store16(to + static_cast<size_t>(row) * F + 16 * piece,
                Bytes16{{__byte_perm(c.word[0], c.word[1], 0x5410), __byte_perm(c.word[2], c.word[3], 0x5410),
                         __byte_perm(c.word[0], c.word[1], 0x7632), __byte_perm(c.word[2], c.word[3], 0x7632)}});
    }
}

// Four lanes write 64 bytes of a column. ldmatrix gives a lane two columns of the rows whose addresses are so chosen
// that it gets 16 consecutive ones.
template <class F8>
LLMC_DEVICE void write_code_columns(const GroupThread& own, F8* to, int N) {
    LLMC_UNROLL
    for (int i = 0; i < 2; i++) {
        const unsigned piece = 4 * i + own.warp;
        uint32_t c[2][4];  // rows 2 n and 2 n + 1 of the lane's sixteen are in word n, two codes each
        LLMC_UNROLL
        for (int n = 0; n < 2; n++) {
            const unsigned row = 16 * (own.lane % 8 / 2) + 2 * (4 * n + own.lane / 8) + own.lane % 2;
            load_transposed_matrices(shared_address(own.staging) + GroupThread::code_offset(row, piece), c[n]);
        }
        const unsigned pair = own.lane / 4, column = 16 * piece + 8 * (pair % 2) + 2 * (pair / 2);
        LLMC_UNROLL
        for (int e = 0; e < 2; e++) {
            const unsigned bytes = e ? 0x7531 : 0x6420;
            store16(to + static_cast<size_t>(column + e) * N + 16 * (own.lane % 4),
                    Bytes16{{__byte_perm(c[0][0], c[0][1], bytes), __byte_perm(c[0][2], c[0][3], bytes),
                             __byte_perm(c[1][0], c[1][1], bytes), __byte_perm(c[1][2], c[1][3], bytes)}});
        }
    }
}

template <class F8>
LLMC_DEVICE void write_codes(const GroupThread& own, const GeluOutput<F8>& to, const TileWalk::Place& at) {
    if (to.row) write_code_rows(own, to.row + static_cast<size_t>(at.row) * to.F + at.column, to.F);
    if (to.transposed) write_code_columns(own, to.transposed + static_cast<size_t>(at.column) * to.N + at.row, to.N);
}

// h = sums * factor + bias goes through the staging, from where TMA stores 64 columns while the next are computed. The
// codes then take the place of the first 64 columns.
template <bool kCounts>
LLMC_DEVICE void finish_forward(const GroupThread& own, const float (&sums)[64], const GeluOutput<e4m3>& to,
                                bf16 (&bias)[kProductTile], bf16 own_bias, const CUtensorMap& map,
                                const TileWalk::Place& at, QuantizeTally& tally) {
    const float factor = to.factor(), scale = to.state->scale;
    TileCodes codes;
    bias[own.index] = own_bias;
    if (own.is_first()) wait_until_stores_have_read();
    own.meet();  // all threads have read the previous contents of the staging
    LLMC_UNROLL
    for (int panel = 0; panel < 2; panel++) {
        LLMC_UNROLL
        for (int p = 4 * panel; p < 4 * panel + 4; p++) {
            uint32_t h[2][2];
            LLMC_UNROLL
            for (int i = 0; i < 2; i++) {
                const uint32_t both = load_word(bias + 16 * p + 8 * i + 2 * (own.lane % 4));
                const float* const four = sums + 8 * p + 4 * i;
                LLMC_UNROLL
                for (int r = 0; r < 2; r++)
                    h[i][r] = pack_bf16x2(fmaf(four[2 * r], factor, bf16x2_low(both)),
                                          fmaf(four[2 * r + 1], factor, bf16x2_high(both)));
            }
            store_matrices(own.bf16_place(2 * p), h[0][0], h[0][1], h[1][0], h[1][1]);
            quantize_eight<e4m3, kCounts>(codes[p], tally, h, scale,
                                          [](float x, int, int, int) { return Gelu::value(x); });
        }
        fence_async_proxy();
        if (panel == 1 && own.is_first()) wait_until_stores_have_read();
        own.meet();
        if (!own.is_first()) continue;
        store_tile(own.staging + panel * kPanelBytes, map, at.column + panel * kTileColumns, at.row, 0);
        commit_stores();
    }
    put_codes(own, codes);
    write_codes(own, to, at);
}

// Starts the load of the warpgroup's rows of h into the staging. One thread calls it.
LLMC_DEVICE void fetch_h(const GroupThread& own, Barrier& full, const CUtensorMap& map, const TileWalk::Place& at) {
    arrive_and_expect(full, kGroupRows * kProductTile * sizeof(bf16));
    LLMC_UNROLL
    for (int panel = 0; panel < 2; panel++)
        load_tile(own.staging + panel * kPanelBytes, map, full, at.column + panel * kTileColumns, at.row, 0);
}

// The sum over the warpgroup's rows of the thread's own column. Each of 32 threads with the same columns leaves its
// sums of two rows in the staging, from where one thread adds them in a fixed order.
LLMC_DEVICE float sum_column(const GroupThread& own, const float (&sums)[16][2]) {
    float* const mine = reinterpret_cast<float*>(own.staging) + own.index / 4 * kProductTile + own.lane % 4 * 32;
    LLMC_UNROLL
    for (int i = 0; i < 8; i++) {
        const float four[4] = {sums[2 * i][0], sums[2 * i][1], sums[2 * i + 1][0], sums[2 * i + 1][1]};
        store4(mine + (i ^ own.lane % 8) * 4, four);  // exchanged, against bank conflicts
    }
    own.meet();
    float total[2] = {};  // the sums of even owners, and those of odd ones
    LLMC_UNROLL
    for (int owner = 0; owner < 32; owner++) {
        const unsigned piece = own.lane / 4 ^ own.warp ^ owner % 2 * 4;
        total[owner % 2] += reinterpret_cast<const float*>(
            own.staging)[owner * kProductTile + own.warp * 32 + piece * 4 + own.lane % 4];
    }
    own.meet();
    return total[0] + total[1];
}

template <class F8, bool kCounts>
LLMC_DEVICE void finish_backward(const GroupThread& own, const float (&sums)[64], const GeluOutput<F8>& to,
                                 ProductShared& shared, const TileWalk::Place& at, QuantizeTally& tally) {
    const float factor = to.factor(), scale = to.state->scale;
    TileCodes codes;
    float column_sums[16][2] = {};
    LLMC_UNROLL
    for (int p = 0; p < 8; p++) {
        uint32_t h[2][2];
        load_matrices(own.bf16_place(2 * p), h[0][0], h[0][1], h[1][0], h[1][1]);
        const auto value = [&](float x, int i, int r, int e) {
            const float* const pair = sums + 8 * p + 4 * i + 2 * r;
            const uint32_t rounded = pack_bf16x2(pair[0] * factor, pair[1] * factor);
            const float gradient = (e ? bf16x2_high(rounded) : bf16x2_low(rounded)) * Gelu::derivative(x);
            column_sums[2 * p + i][e] += gradient;
            return gradient;
        };
        piece_by_piece([&] { quantize_eight<F8, kCounts>(codes[p], tally, h, scale, value); });
    }
    own.meet();  // all have read the staging
    const float total = sum_column(own, column_sums);
    const int team = own.group / 2, both_done = 7 + team;  // a named barrier
    float& second = shared.column_sums[team][own.index];
    if (own.group % 2 == 1) {
        second = total;
        arrive_at_barrier(both_done, kTeamThreads);
    }
    put_codes(own, codes);
    write_codes(own, to, at);
    if (own.group % 2 == 1) return;
    named_barrier(both_done, kTeamThreads);
    to.parts[static_cast<size_t>(at.row / kProductTile) * to.F + at.column + 8 * (own.lane / 2) + 2 * own.warp +
             own.lane % 2] = total + second;
}

// ---- kernel --------------------------------------------------------------------------------------------------------

// A warpgroup's tiles, one after the other. `h` is written forward, and read backward.
template <class F8, bool kBackward, bool kCounts>
LLMC_DEVICE void compute(const GroupThread& own, ProductShared& shared, const GeluOutput<F8>& to, const CUtensorMap& h,
                         const TileWalk& walk, int depths) {
    const int team = own.group / 2, half = own.group % 2;
    const int turn = 1 + team, other_turn = 2 - team;  // named barriers
    if (team == 1) arrive_at_barrier(other_turn, 2 * kTeamThreads);
    const bool arrives = own.lane == 0;  // for its warp
    ProductPosition at;
    if (team == 1) at.advance(depths);
    int h_parity = 0;
    QuantizeTally tally;
    walk.each_tile(team, 2, [&](TileWalk::Place place, bool is_last) {
        const auto pass_turn = [&] {
            if (!is_last) arrive_at_barrier(other_turn, 2 * kTeamThreads);
        };
        place.row += half * kGroupRows;
        float sums[64];
        if constexpr (kBackward) {
            fence_async_proxy();
            own.meet();  // all threads have read the staging of the last tile
            if (own.is_first()) fetch_h(own, shared.h_full[own.group], h, place);
        }
        // Loaded before the main loop, which hides its latency.
        const bf16 bias = kBackward ? bf16{} : to.bias[place.column + own.index];
        // A wait for a stage of this tile tells phases apart only if the other team's last tile has had all its stages.
        named_barrier(turn, 2 * kTeamThreads);
        if constexpr (kBackward) {
            sum_split<F8>(sums, shared, at, depths, half, arrives, pass_turn);
            wait(shared.h_full[own.group], h_parity);
            h_parity ^= 1;
            finish_backward<F8, kCounts>(own.again(), sums, to, shared, place, tally);
        } else {
            sum_fast<F8>(sums, shared, at, depths, half, arrives, pass_turn);
            finish_forward<kCounts>(own.again(), sums, to, shared.bias[own.group], bias, h, place, tally);
        }
        at.advance(depths);
    });
    if constexpr (!kCounts) tally.saturated = tally.underflowed = 0;
    const bool counts_elements = blockIdx.x == 0 && own.group == 0 && own.is_first();
    commit_tally(to.state, tally, counts_elements ? static_cast<size_t>(to.N) * to.F : 0, to.pass);
    if (!kBackward && own.is_first()) wait_until_stores_have_read();
}

// Grid: at most one block per tile. a (N, K) and b (F, K) are codes.
template <class F8, bool kBackward, bool kCounts>
static __global__ void __launch_bounds__(kProductThreads, 1)
    hopper_matmul_gelu_kernel(const GeluOutput<F8> to, const __grid_constant__ CUtensorMap a,
                              const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap h, int K) {
#if LLMC_HOPPER
    extern __shared__ __align__(kTileAlignment) unsigned char hopper_shared[];
    ProductShared& shared = *reinterpret_cast<ProductShared*>(hopper_shared);
    if (threadIdx.x == 0) {
        for (int s = 0; s < kProductStages; s++) {
            init(shared.full[s], 1);
            init(shared.empty[s], kTeamThreads / 32);
        }
        for (int g = 0; kBackward && g < kGroups; g++) init(shared.h_full[g], 1);
        publish_barriers();
    }
    __syncthreads();
    const TileWalk walk{to.N, to.F};
    const int depths = div_up(K, kProductDepth), thread = static_cast<int>(threadIdx.x);
    const int group = same_in_warp(thread / kGroupThreads);
    if (group == kGroups) {
        give_registers<kProducerRegisters>();
        if (thread % kGroupThreads == 0) produce(shared, a, b, walk, depths);
        return;
    }
    take_registers<kMathRegisters>();
    const GroupThread own(group, threadIdx.x % kGroupThreads, shared.staging[group]);
    compute<F8, kBackward, kCounts>(own, shared, to, h, walk, depths);
#endif
}

// Launches it on one block per multiprocessor, or on as many as there are pairs of tiles where other kernels hold some
// (shares_multiprocessors()). More are needed where a warp would count 2^24 values (commit_tally()).
template <class F8, bool kBackward>
static void launch_product(const GeluOutput<F8>& to, const bf16* h, const Codes<F8>& a, const Codes<e4m3>& b, int K,
                           std::initializer_list<Access> accesses, stream_t stream) {
    static const int multiprocessors = device_info().multiprocessors;
    constexpr int kMostTiles = (1 << 24) / (kGroupRows * kProductTile / 4) - 1;  // that a team may take
    const auto map = [&](const auto* codes, int rows) {
        return tensor_map(reinterpret_cast<const bf16*>(codes), 1, rows, static_cast<size_t>(K) / 2, kProductTile);
    };
    const int tiles = TileWalk{to.N, to.F}.count(), pairs = div_up(tiles, 2);
    const int blocks = shares_multiprocessors() ? pairs : std::max(multiprocessors, div_up(pairs, kMostTiles));
    const LaunchConfig config(dim3(static_cast<unsigned>(std::min(blocks, tiles))), dim3(kProductThreads),
                              sizeof(ProductShared), stream);
    const auto run = [&]<bool kCounts>() {
        launch<hopper_matmul_gelu_kernel<F8, kBackward, kCounts>>(
            config, accesses, to, map(a.codes, to.N), map(b.codes, to.F),
            tensor_map(h, 1, to.N, static_cast<size_t>(to.F), 64), K);
    };
    if (counts_losses(to.pass))
        run.template operator()<true>();
    else
        run.template operator()<false>();
}

static void check_product(const char* launcher, const Fp8State* state, int N, int K, int F, QuantizePass pass) {
    if (!can_multiply_with_gelu(N, K, F))
        throw Error(ExitCode::failure, "{}: N={} K={} F={}; N and F must be multiples of 128 and K one of 16", launcher,
                    N, K, F);
    if (state == nullptr) throw Error(ExitCode::failure, "{}: the FP8 state is missing", launcher);
    if (!writes_fp8(pass)) throw Error(ExitCode::failure, "{}: measures nothing on its own", launcher);
}

void multiply_gelu_forward(const Quantized<e4m3>& to, bf16* h, const Codes<e4m3>& x, const Codes<e4m3>& weight,
                           const bf16* bias, int N, int K, int F, QuantizePass pass, stream_t stream) {
    check_product("multiply_gelu_forward", to.state, N, K, F, pass);
    const size_t n = static_cast<size_t>(N) * F, k = static_cast<size_t>(K);
    launch_product<e4m3, false>(
        {x.scale_inv, weight.scale_inv, to.row, to.transposed, nullptr, to.state, bias, N, F, pass}, h, x, weight, K,
        {out(h, n), out(to.row, n), out(to.transposed, n), state_access(to.state, pass), in(x.codes, N * k),
         in(weight.codes, F * k), in(bias, static_cast<size_t>(F))},
        stream);
}

template <class F8>
void multiply_gelu_backward(const Quantized<F8>& to, const BiasGradient& bias, const Codes<F8>& dout,
                            const Codes<e4m3>& weight, const bf16* h, int N, int K, int F, QuantizePass pass,
                            stream_t stream) {
    check_product("multiply_gelu_backward", to.state, N, K, F, pass);
    const size_t n = static_cast<size_t>(N) * F, k = static_cast<size_t>(K);
    const int parts = N / kProductTile;
    launch_product<F8, true>(
        {dout.scale_inv, weight.scale_inv, to.row, to.transposed, bias.scratch, to.state, nullptr, N, F, pass}, h, dout,
        weight, K,
        {out(to.row, n), out(to.transposed, n), out(bias.scratch, static_cast<size_t>(parts) * F),
         state_access(to.state, pass), in(h, n), in(dout.codes, N * k), in(weight.codes, F * k)},
        stream);
    reduce_column_parts(bias.dbias, nullptr, bias.scratch, parts, F, F, bias.accumulate, stream);
}

}  // namespace hopper
}  // namespace llmc

#else

namespace llmc::hopper {

// The host device has none of these instructions, and no run plans these kernels for it.
static void refuse_product() { throw Error(ExitCode::failure, "products with GELU are for Hopper"); }

void multiply_gelu_forward(const Quantized<e4m3>&, bf16*, const Codes<e4m3>&, const Codes<e4m3>&, const bf16*, int, int,
                           int, QuantizePass, stream_t) {
    refuse_product();
}
template <class F8>
void multiply_gelu_backward(const Quantized<F8>&, const BiasGradient&, const Codes<F8>&, const Codes<e4m3>&,
                            const bf16*, int, int, int, QuantizePass, stream_t) {
    refuse_product();
}

}  // namespace llmc::hopper

#endif

namespace llmc::hopper {
template void multiply_gelu_backward(const Quantized<e4m3>&, const BiasGradient&, const Codes<e4m3>&,
                                     const Codes<e4m3>&, const bf16*, int, int, int, QuantizePass, stream_t);
template void multiply_gelu_backward(const Quantized<e5m2>&, const BiasGradient&, const Codes<e5m2>&,
                                     const Codes<e4m3>&, const bf16*, int, int, int, QuantizePass, stream_t);
}  // namespace llmc::hopper
