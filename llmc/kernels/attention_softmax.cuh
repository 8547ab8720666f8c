// Arithmetic of BF16 attention's forward, for a tile of keys and values at a time: an online softmax between two
// products, in a warp's registers (flash attention 2, arXiv 2307.08691). A query's result depends only on its own row
// and the keys that it sees, in tiles of kKeyRows<HD> that start at multiples of it. Other contents of a block or batch
// do not matter.
#pragma once
#include "llmc/kernels/attention.h"
#include "llmc/kernels/attention_tiles.cuh"

namespace llmc::attention {

// The output of head dimension 256 leaves registers for the scores of fewer keys.
template <int HD>
constexpr int kKeyRows = HD == 256 ? 32 : 64;

// Registers of a warp. Per-row values are indexed 2 f + half: rows g and g + 8 of fragment f.
template <int HD, int F>
struct ForwardState {
    uint32_t query[F][HD / 16][4];
    // Output before the division by the row sum. The last column tile holds the row sums of the probabilities *as
    // rounded to BF16*. Dividing by these makes the weights of V's rows add up to exactly 1. A component common to all
    // of V then passes without the probabilities' rounding errors, which would enter delta undiminished.
    float output[F][HD / 8 + 1][4];
    float maximum[2 * F];  // maximum of the raw scores seen so far
    float sum[2 * F];      // sum of the unrounded probabilities in this lane's columns, for lse
};

// Turns raw scores into probabilities relative to the row's maximum so far, in base 2, and rescales the sums
// accumulated under the previous maximum. `diagonal` is (this lane's first query) - (its first key), and `windows`
// begin with that query's: visible are keys 0 to windows[row] - 1 places before the query. In a masked tile a window
// may leave rows that have seen no key yet; they keep the maximum -infinity, and 0 is used instead.
template <bool Masked, int HD, int F, int N, bool kDocuments>
LLMC_DEVICE void online_softmax(ForwardState<HD, F>& state, float (&scores)[F][N][4], float scale_log2, int diagonal,
                                const RowWindows<kDocuments>& windows) {
    const float minus_infinity = float_from_bits(0xff800000u);
    if constexpr (Masked && kDocuments) mask_rows<false>(scores, diagonal, windows);
    float maximum[2 * F];
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        maximum[2 * f] = state.maximum[2 * f];
        maximum[2 * f + 1] = state.maximum[2 * f + 1];
        LLMC_UNROLL
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < 4; i++) {
                float& score = scores[f][j][i];
                if (Masked && !kDocuments && !in_window(diagonal + 16 * f + 8 * (i >> 1) - 8 * j - (i & 1), windows[0]))
                    score = minus_infinity;
                maximum[2 * f + (i >> 1)] = max_float(maximum[2 * f + (i >> 1)], score);
            }
        }
    }
    quad_max_each(maximum);
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        float correction[2], offset[2];
        for (int half = 0; half < 2; half++) {
            const int row = 2 * f + half;
            const float base = Masked && maximum[row] == minus_infinity ? 0.0f : maximum[row];
            correction[half] = exp2_fast((state.maximum[row] - base) * scale_log2);
            offset[half] = base * scale_log2;
            state.maximum[row] = maximum[row];
            state.sum[row] *= correction[half];
        }
        LLMC_UNROLL
        for (int j = 0; j < HD / 8 + 1; j++)
            for (int i = 0; i < 4; i++) state.output[f][j][i] *= correction[i >> 1];
        LLMC_UNROLL
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < 4; i++) scores[f][j][i] = exp2_fast(scores[f][j][i] * scale_log2 - offset[i >> 1]);
            state.sum[2 * f] += scores[f][j][0] + scores[f][j][1];
            state.sum[2 * f + 1] += scores[f][j][2] + scores[f][j][3];
        }
    }
}

// Processes one tile of keys, and their values after it.
template <bool Masked, int HD, int F, bool kDocuments>
LLMC_DEVICE void forward_tile(ForwardState<HD, F>& state, const bf16* keys, float scale_log2, int diagonal,
                              const RowWindows<kDocuments>& windows) {
    float scores[F][kKeyRows<HD> / 8][4];
    multiply<HD>(scores, state.query, keys);
    online_softmax<Masked>(state, scores, scale_log2, diagonal, windows);
    accumulate<HD>(state.output, scores, keys + kKeyRows<HD> * kStride<HD>);
}

// Rounds a warp's finished output into its rows of two tiles: `high`, and `low` for the rounding error. `inverse` is 1
// / row sum.
template <int HD, int F>
LLMC_DEVICE void split_to_rows(bf16* high, bf16* low, const ForwardState<HD, F>& state, const float* inverse) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    LLMC_UNROLL
    for (int f = 0; f < F; f++) {
        LLMC_UNROLL
        for (int half = 0; half < 2; half++) {
            const int corner = (16 * f + 8 * half + (lane >> 2)) * kStride<HD> + (lane & 3) * 2;
            LLMC_UNROLL
            for (int j = 0; j < HD / 8; j++) {
                const float a = state.output[f][j][2 * half] * inverse[2 * f + half];
                const float b = state.output[f][j][2 * half + 1] * inverse[2 * f + half];
                const uint32_t pair = pack_bf16x2(a, b);
                store_word(high + corner + j * 8, pair);
                store_word(low + corner + j * 8, pack_bf16x2(a - bf16x2_low(pair), b - bf16x2_high(pair)));
            }
        }
    }
}

}  // namespace llmc::attention
