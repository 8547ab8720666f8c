// Kernels and launchers of quantize_flat.h.
#include "llmc/kernels/quantize_flat.h"

#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

namespace {
constexpr int kPerThread = 16;
}

static __global__ void __launch_bounds__(kQuantizeThreads)
    quantize_flat_kernel(e4m3* codes, const float* master, size_t count, Fp8State* state, QuantizePass pass,
                         const float* factors, size_t columns, size_t begin) {
    LLMC_SHARED(QuantizeTally, tallies, [kQuantizeThreads]);
    QuantizeTally tally;
    const float scale = state->scale;
    const size_t at = static_cast<size_t>(blockIdx.x) * kQuantizeThreads * kPerThread + first_of_fours(threadIdx.x);
    LLMC_UNROLL
    for (int h = 0; h < kPerThread / 8; h++) {
        const size_t first = at + static_cast<size_t>(h) * 8 * kQuantizeThreads;
        if (first >= count) continue;
        float x[8];
        if (first + kFoursApart + 4 <= count) {
            load_fours(master + first, x);
        } else {  // zeros leave no trace
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) {
                const size_t place = first + static_cast<size_t>(place_in_fours(i));
                x[i] = place < count ? master[place] : 0.0f;
            }
        }
        if (factors != nullptr) {
            LLMC_UNROLL
            for (int i = 0; i < 8; i++) {
                const size_t place = first + static_cast<size_t>(place_in_fours(i));
                x[i] *= factors[(begin + place) % columns];
            }
        }
        uint32_t words[2] = {};
        quantize_8<e4m3>(words, tally, x, scale, pass);
        if (!writes_fp8(pass)) continue;
        LLMC_UNROLL
        for (int four = 0; four < 2; four++) {
            const size_t to = first + static_cast<size_t>(four) * kFoursApart;
            if (to + 4 <= count) {
                *reinterpret_cast<uint32_t*>(codes + to) = words[four];
                continue;
            }
            LLMC_UNROLL
            for (int i = 0; i < 4; i++)
                if (to + i < count) codes[to + i] = e4m3{static_cast<uint8_t>(words[four] >> (8 * i))};
        }
    }
    tallies[threadIdx.x] = tally;
    __syncthreads();
    commit_tallies(state, tallies, count, pass);
}

static __global__ void __launch_bounds__(kQuantizeThreads)
    transpose_codes_kernel(e4m3* transposed, const e4m3* codes, int R, int C) {
    LLMC_SHARED(uint32_t, tile, [kTileRows * kTileWords]);
    const TileCorner corner(C);
    const int chunk = static_cast<int>(threadIdx.x) % kTileChunks, column = corner.column + chunk * 16;
    LLMC_UNROLL
    for (int pass = 0; pass < kTilePasses; pass++) {
        const int local = static_cast<int>(threadIdx.x) / kTileChunks + pass * kTilePassRows;
        if (corner.row + local >= R || column >= C) continue;
        const e4m3* source = codes + static_cast<size_t>(corner.row + local) * C + column;
        check_aligned16(source);
        *reinterpret_cast<Bytes16*>(tile + tile_word(local, chunk)) = *reinterpret_cast<const Bytes16*>(source);
    }
    __syncthreads();
    quantize_tile_columns(transposed, tile, R, C);
}

void quantize_flat(e4m3* codes, const float* master, size_t count, Fp8State* state, QuantizePass pass, stream_t stream,
                   const ColumnFactors& of) {
    if (count == 0) return;
    if ((writes_fp8(pass) && raises_amax(pass)) || state == nullptr || reinterpret_cast<uintptr_t>(master) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(codes) % 4 != 0)
        throw Error(ExitCode::failure, "quantize_flat: weights are measured, then written, from aligned memory");
    e4m3* target = writes_fp8(pass) ? codes : nullptr;
    const unsigned blocks = static_cast<unsigned>(div_up(count, static_cast<size_t>(kQuantizeThreads) * kPerThread));
    launch<quantize_flat_kernel>({dim3(blocks), dim3(kQuantizeThreads), 0, stream}, out(target, count),
                                 in(master, count), count, state_access(state, pass), pass, in(of.factors, of.columns),
                                 of.columns, of.first);
}

void transpose_codes(e4m3* transposed, const e4m3* codes, int R, int C, stream_t stream) {
    if (R < 16 || R % 16 != 0 || C < 16 || C % 16 != 0)
        throw Error(ExitCode::failure, strprintf("transpose_codes: %d x %d are not multiples of 16", R, C));
    const size_t n = static_cast<size_t>(R) * static_cast<size_t>(C);
    const unsigned blocks = static_cast<unsigned>(div_up(R, kTileRows) * div_up(C, kTileColumns));
    launch<transpose_codes_kernel>({dim3(blocks), dim3(kQuantizeThreads), 0, stream}, out(transposed, n), in(codes, n),
                                   R, C);
}

}  // namespace llmc
