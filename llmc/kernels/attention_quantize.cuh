// Quantizes a tile of results in shared memory to FP8: the last stage of attention's portable kernels.
//
// The tile's rows are tokens of one head, HD bf16 each (attention_tiles.cuh). Stage 1: a thread casts 16 channels of a
// token and writes the codes to the row-major output, and over the first 16 bytes of these channels in the tile. Stage
// 2, after a barrier: a thread takes 4 channels of 16 tokens from there and writes them to the transposed output.
#pragma once
#include <bit>
#include <type_traits>

#include "llmc/kernels/attention.h"
#include "llmc/kernels/attention_tiles.cuh"
#include "llmc/kernels/quantize_values.cuh"

namespace llmc::attention {

// The part of a tile that each thread of a block has in stage 1. The rows that a block takes at once are a power of
// two, so that they divide a tile's; with head dimensions 80 and 96 this leaves some threads idle.
template <int HD, int Threads>
struct ChunkOwner {
    static constexpr int chunks = HD / 16;
    static constexpr int rows_at_once = static_cast<int>(std::bit_floor(static_cast<unsigned>(Threads / chunks)));
    int row, chunk;
    LLMC_DEVICE ChunkOwner()
        : row(static_cast<int>(threadIdx.x) / chunks), chunk(static_cast<int>(threadIdx.x) % chunks) {}
    LLMC_DEVICE bool idle() const { return chunks * rows_at_once < Threads && row >= rows_at_once; }
};

// Stage 1 of a thread. x = tile (+ low, unless nullptr) from the tile's token first_row on, up to T. `to` is the head's
// first channel of token 0, with tokens `pitch` apart, or nullptr. The sums are those of this thread's 16 channels.
template <class F8, int HD, int Rows, int Threads>
LLMC_DEVICE void quantize_tile_rows(F8* to, size_t pitch, bf16* tile, const bf16* low, QuantizeTally& tally,
                                    float (&sums)[2][8], float scale, int first_row, int T, QuantizePass pass) {
    using Owner = ChunkOwner<HD, Threads>;
    static_assert(Rows % Owner::rows_at_once == 0);
    const Owner own;
    if (own.idle()) return;
    // Unrolled, a backward kernel would take nvcc a third longer.
    LLMC_NO_UNROLL
    for (int r = 0; r < Rows; r += Owner::rows_at_once) {
        const int row = own.row + r;
        if (first_row + row >= T) continue;
        bf16* const chunk = tile + row * kStride<HD> + own.chunk * 16;
        float x[2][8];
        load8(chunk, x[0]);
        load8(chunk + 8, x[1]);
        uint32_t codes[2][2];
        LLMC_UNROLL
        for (int half = 0; half < 2; half++) {
            if (low != nullptr) {
                float rest[8];
                load8(low + (chunk - tile) + 8 * half, rest);
                for (int i = 0; i < 8; i++) x[half][i] += rest[i];
            }
            quantize_8<F8, true>(codes[half], tally, x[half], scale, pass);
            for (int i = 0; i < 8; i++) sums[half][i] += x[half][i];
        }
        const Bytes16 bytes{{codes[0][0], codes[0][1], codes[1][0], codes[1][1]}};
        store16(chunk, bytes);
        if (to == nullptr) continue;
        F8* const target = to + static_cast<size_t>(first_row + row) * pitch + own.chunk * 16;
        store16(target, bytes);
    }
}

// Stage 2 of a thread. `to` is the head's first channel of token 0 in the transposed output, with channels `pitch`
// apart.
template <class F8, int HD, int Rows, int Threads>
LLMC_DEVICE void store_tile_columns(F8* to, size_t pitch, const bf16* tile, int first_row, int T) {
    constexpr int pieces = Rows / 16, words = HD / 4;
    for (int i = static_cast<int>(threadIdx.x); i < pieces * words; i += Threads) {
        const int piece = i % pieces * 16, word = i / pieces, token = first_row + piece;
        if (token >= T) continue;
        uint32_t codes[4][4];
        for (int r = 0; r < 16; r++)
            codes[r / 4][r % 4] = load_word(tile + (piece + r) * kStride<HD> + word / 4 * 16 + word % 4 * 2);
        F8* const column = to + static_cast<size_t>(word) * 4 * pitch + token;
        if (T % 16 == 0)
            store_columns(column, pitch, codes);
        else
            store_columns_in_halves(column, pitch, codes, token + 8 < T);
    }
}

// Quantizes a block's output, which lies in `high` and `low`, to `row` and `transposed`: both stages.
template <int HD, int Rows, int Threads>
LLMC_DEVICE void quantize_output(e4m3* row, e4m3* transposed, Fp8State* state, bf16* high, const bf16* low,
                                 int first_query, int b, int h, int B, int T, int NH, QuantizePass pass) {
    const size_t width = static_cast<size_t>(NH) * HD, tokens = static_cast<size_t>(B) * T;
    const size_t channel = static_cast<size_t>(h) * HD, token = static_cast<size_t>(b) * T;
    QuantizeTally tally;
    float unused[2][8] = {};
    __syncthreads();  // the whole tile is complete and has been written to out
    quantize_tile_rows<e4m3, HD, Rows, Threads>(row ? row + token * width + channel : nullptr, width, high, low, tally,
                                                unused, state->scale, first_query, T, pass);
    const bool counts_elements = first_query + b + h + static_cast<int>(threadIdx.x) == 0;
    commit_tally(state, tally, counts_elements ? tokens * width : 0, pass);
    if (transposed == nullptr) return;
    __syncthreads();
    store_tile_columns<e4m3, HD, Rows, Threads>(transposed + channel * tokens + token, tokens, high, first_query, T);
}

// Column sums go through shared memory, HD * rows_at_once floats (at most 64 bytes per thread): `put` before the
// barrier, `get` after it. `part` gets the sums over the tile's tokens. Threads add in a fixed order.
template <int HD, int Threads>
LLMC_DEVICE void put_channel_sums(float* shared, const float (&sums)[2][8]) {
    const ChunkOwner<HD, Threads> own;
    if (own.idle()) return;
    float* const mine = shared + own.row * HD + own.chunk * 16;
    store8(mine, sums[0]);
    store8(mine + 8, sums[1]);
}
template <int HD, int Threads>
LLMC_DEVICE void get_channel_sums(float* part, const float* shared) {
    LLMC_UNROLL
    for (int first = 0; first < HD; first += Threads) {
        const int channel = first + static_cast<int>(threadIdx.x);
        if (channel >= HD) return;
        float total = 0.0f;
        for (int r = 0; r < ChunkOwner<HD, Threads>::rows_at_once; r++) total += shared[r * HD + channel];
        part[channel] = total;
    }
}

// ---- gradients -----------------------------------------------------------------------------------------------------

// Inputs of the backward pass; `documents` may be nullptr.
struct BackwardInputs {
    const bf16 *dout, *qkv, *out, *out_low;
    const float* lse;
    const int* documents;
};

// Output of the gradients. Out is bf16 for dqkv (B, T, NH + 2 NKV, HD), or an FP8 type. For FP8, `transposed` starts at
// the first channel of the kernel's own part of (NH + 2 NKV, HD), and `parts` (blocks along the tokens of all
// sequences, NH + 2 NKV, HD) gets the sums over a block's tokens. Any of the three pointers may be nullptr.
template <class Out>
struct Gradients {
    Out *row, *transposed;
    float* parts;
    Fp8State* fp8;
    QuantizePass pass;
};
template <class Out>
constexpr bool kIsFp8 = !std::is_same_v<Out, bf16>;

// The heads that a kernel writes: Count sides (queries; or keys and values) of `heads` each, starting with head `first`
// of the `row` heads of qkv.
struct HeadPart {
    int first, heads, row;
};

// Quantizes Count tiles of a block that lie in shared memory, one after the other: head `h` of each side, sequence `b`,
// tokens from first_token up to T. `scratch` is 64 bytes per thread of shared memory whose contents are no longer
// needed. The grid is (token tiles, heads, B).
template <int HD, int Rows, int Threads, int Count>
LLMC_DEVICE void quantize_gradients(const Gradients<e5m2>& to, bf16* const (&tiles)[Count], float* scratch,
                                    const HeadPart& part, int first_token, int b, int h, int T) {
    const size_t width = static_cast<size_t>(part.row) * HD, tokens = static_cast<size_t>(gridDim.z) * T;
    const size_t token = static_cast<size_t>(b) * T;
    const bool counts_elements = blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0;
    const float scale = to.fp8->scale;
    QuantizeTally tally;
    LLMC_UNROLL
    for (int i = 0; i < Count; i++) {
        float sums[2][8] = {};
        const int own = (i * part.heads + h) * HD;  // in the kernel's part
        const int channel = part.first * HD + own;  // in a row
        e5m2* const row = to.row ? to.row + token * width + channel : nullptr;
        __syncthreads();  // the tiles are complete, and no thread needs the old contents of `scratch`
        quantize_tile_rows<e5m2, HD, Rows, Threads>(row, width, tiles[i], nullptr, tally, sums, scale, first_token, T,
                                                    to.pass);
        if (to.parts) put_channel_sums<HD, Threads>(scratch, sums);
        if (i == Count - 1) {  // here, because at the end nvcc for sm_90a would spill
            commit_tally(to.fp8, tally, counts_elements ? Count * tokens * (part.heads * HD) : 0, to.pass);
        }
        __syncthreads();
        const size_t row_of_parts = static_cast<size_t>(b) * gridDim.x + first_token / Rows;
        if (to.parts) get_channel_sums<HD, Threads>(to.parts + row_of_parts * width + channel, scratch);
        if (to.transposed)
            store_tile_columns<e5m2, HD, Rows, Threads>(to.transposed + own * tokens + token, tokens, tiles[i],
                                                        first_token, T);
    }
}

// Checks the arguments that all quantizing launchers have in common.
inline void check_quantized(const char* launcher, const Fp8State* state, int B, int T, const AttentionHeads& heads,
                            int channels, QuantizePass pass) {
    check_shape(B, T, heads);
    if (T % kQuantizedAttentionTokens != 0)
        throw Error(ExitCode::failure, "{}: T={} is not a multiple of {}; quantize in a kernel of its own", launcher, T,
                    kQuantizedAttentionTokens);
    check_quantize(launcher, state, B * T, channels);
    if (!writes_fp8(pass)) throw Error(ExitCode::failure, "{}: measures nothing on its own; use quantize()", launcher);
}

}  // namespace llmc::attention
