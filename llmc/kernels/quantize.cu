// Quantization with one scale per tensor, and back (quantize.h). quantize_tile.cuh has the kernels of whole
// tiles.
#include "llmc/kernels/quantize.h"

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize_tile.cuh"

namespace llmc {

size_t quantize_scratch(int N, int C) { return static_cast<size_t>(div_up(N, kTileRows)) * C; }

// ---- activations and gradients -------------------------------------------------------------------------------------

template <class F8>
void quantize(const Quantized<F8>& to, float* dbias, float* scratch, const bf16* inp, const bf16* inp_low, int N, int C,
              bool accumulate, QuantizePass pass, stream_t stream) {
    quantize_tiles("quantize", to, dbias, scratch, Bf16Values{inp, inp_low}, N, C, accumulate, pass, stream);
}

// ---- weights -------------------------------------------------------------------------------------------------------

template <class Master>
static __global__ void __launch_bounds__(kQuantizeThreads, 3)
    quantize_weight_kernel(e4m3* row, e4m3* transposed, Fp8State* state, const Master* master, int R, int C,
                           QuantizePass pass) {
    quantize_weight_tile(row, transposed, state, state->scale, master, R, C, pass);
}

void quantize_weight(const Quantized<e4m3>& to, const StateArray& masters, int R, int C, QuantizePass pass,
                     stream_t stream) {
    const QuantizeLaunch<e4m3> l("quantize_weight", to, nullptr, nullptr, R, C, pass, stream);
    masters.typed([&]<class Master>(const Master* master) {
        host::launch_or_loop<quantize_weight_kernel<Master>, host::quantize_weight<Master>>(
            l.config, out(l.row, l.elements), out(l.transposed, l.elements), state_access(to.state, pass),
            in(master, l.elements), R, C, pass);
    });
}

// ---- a slice of a weight, and the transposition of codes -----------------------------------------------------------

constexpr int kSlicePerThread = 16;

template <class Master>
static __global__ void __launch_bounds__(kQuantizeThreads)
    quantize_flat_kernel(e4m3* codes, const Master* master, size_t count, Fp8State* state, QuantizePass pass) {
    LLMC_SHARED(QuantizeTally, tallies, [kQuantizeThreads]);
    QuantizeTally tally;
    const float scale = state->scale;
    const size_t at =
        static_cast<size_t>(blockIdx.x) * kQuantizeThreads * kSlicePerThread + first_of_fours(threadIdx.x);
    LLMC_UNROLL
    for (int h = 0; h < kSlicePerThread / 8; h++) {
        const size_t first = at + static_cast<size_t>(h) * 8 * kQuantizeThreads;
        if (first >= count) continue;
        float x[8];
        load_group(master + first, count - first, x);  // zeros change no count
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
            for (int i = 0; i < 4; i++)
                if (to + i < count) codes[to + i] = e4m3{static_cast<uint8_t>(words[four] >> (8 * i))};
        }
    }
    tallies[threadIdx.x] = tally;
    __syncthreads();
    commit_tallies(state, tallies, count, pass);
}

void quantize_flat(e4m3* codes, const StateArray& masters, size_t count, Fp8State* state, QuantizePass pass,
                   stream_t stream) {
    if (count == 0) return;
    if ((writes_fp8(pass) && raises_amax(pass)) || state == nullptr ||
        reinterpret_cast<uintptr_t>(masters.values) % 16 != 0 || reinterpret_cast<uintptr_t>(codes) % 4 != 0)
        throw Error(ExitCode::failure, "quantize_flat: weights are measured, then written, from aligned memory");
    e4m3* target = writes_fp8(pass) ? codes : nullptr;
    const unsigned blocks =
        static_cast<unsigned>(div_up(count, static_cast<size_t>(kQuantizeThreads) * kSlicePerThread));
    masters.typed([&]<class Master>(const Master* master) {
        host::launch_or_loop<quantize_flat_kernel<Master>, host::quantize_flat<Master>>(
            {dim3(blocks), dim3(kQuantizeThreads), 0, stream}, out(target, count), in(master, count), count,
            state_access(state, pass), pass);
    });
}

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads)
    transpose_codes_kernel(F8* transposed, const F8* codes, int R, int C) {
    LLMC_SHARED(uint32_t, tile, [kTileRows * kTileWords]);
    const TileCorner corner(C);
    const int chunk = static_cast<int>(threadIdx.x) % kTileChunks, column = corner.column + chunk * 16;
    LLMC_UNROLL
    for (int pass = 0; pass < kTilePasses; pass++) {
        const int local = static_cast<int>(threadIdx.x) / kTileChunks + pass * kTilePassRows;
        if (corner.row + local >= R || column >= C) continue;
        store16(tile + tile_word(local, chunk), load16(codes + static_cast<size_t>(corner.row + local) * C + column));
    }
    __syncthreads();
    quantize_tile_columns(transposed, tile, R, C);
}

template <class F8>
void transpose_codes(F8* transposed, const F8* codes, int R, int C, stream_t stream) {
    if (R < 16 || R % 16 != 0 || C < 16 || C % 16 != 0)
        throw Error(ExitCode::failure, "transpose_codes: {} x {} are not multiples of 16", R, C);
    const size_t n = static_cast<size_t>(R) * C;
    const unsigned blocks = static_cast<unsigned>(div_up(R, kTileRows) * div_up(C, kTileColumns));
    host::launch_or_loop<transpose_codes_kernel<F8>, host::transpose_codes<F8>>(
        {dim3(blocks), dim3(kQuantizeThreads), 0, stream}, out(transposed, n), in(codes, n), R, C);
}

// ---- back ----------------------------------------------------------------------------------------------------------

template <class F8>
static __global__ void __launch_bounds__(kQuantizeThreads)
    dequantize_kernel(bf16* out, const F8* codes, const void* scales, ScaleLayout layout, int rows, int K) {
    const size_t at = (static_cast<size_t>(blockIdx.x) * kQuantizeThreads + threadIdx.x) * kSlicePerThread;
    if (at >= static_cast<size_t>(rows) * K) return;
    const int r = static_cast<int>(at / K), k = static_cast<int>(at % K);
    // The 16 elements lie in one block.
    const float scale_inv = scales != nullptr ? block_scale_inv(scales, layout, rows, K, r, k) : 1.0f;
    const Bytes16 bytes = load16(codes + at);
    for (int h = 0; h < 2; h++) {
        float x[8];
        uncast_8<F8>(x, bytes.word + h * 2);
        for (int i = 0; i < 8; i++) x[i] *= scale_inv;
        store8(out + at + h * 8, x);
    }
}

template <class F8>
void dequantize(bf16* to, const F8* codes, const void* scales, ScaleLayout layout, int rows, int K, stream_t stream) {
    if (rows < 1 || K < kSlicePerThread || K % kSlicePerThread != 0)
        throw Error(ExitCode::failure, "dequantize: K={} is not a positive multiple of {}", K, kSlicePerThread);
    const size_t n = static_cast<size_t>(rows) * K, bytes = scale_bytes(layout, rows, K);
    const unsigned blocks = static_cast<unsigned>(div_up<size_t>(n, size_t{kQuantizeThreads} * kSlicePerThread));
    launch<dequantize_kernel<F8>>({blocks, kQuantizeThreads, 0, stream}, out(to, n), in(codes, n),
                                  in(static_cast<const char*>(scales), bytes), layout, rows, K);
}

static __global__ void product_factors_kernel(float* factors, const float* first, const float* second, float beta) {
    factors[0] = *first * *second;
    factors[1] = beta;
}

void product_factors(float* factors, const float* first, const float* second, float beta, stream_t stream) {
    launch<product_factors_kernel>({1, 1, 0, stream}, out(factors, 2), in(first, 1), in(second, 1), beta);
}

LLMC_INSTANTIATE_BOTH(quantize, e4m3, e5m2);
LLMC_INSTANTIATE_BOTH(transpose_codes, e4m3, e5m2);
LLMC_INSTANTIATE_BOTH(dequantize, e4m3, e5m2);

}  // namespace llmc
