// Kernels and launchers of reductions.h.
#include "llmc/comm/reductions.h"

#include <algorithm>
#include <type_traits>

#include "llmc/device/fp8_cast.cuh"
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/host/launch.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc {
namespace {

bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

// Each thread sums eight elements. `vector`: every piece starts at a multiple of 16 bytes, so rows are read in 16-byte
// accesses.
template <class T>
static __global__ void __launch_bounds__(kBlockThreads)
    sum_pieces_kernel(float* out, const T* pieces, int world, size_t count, bool accumulate, bool vector) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPerThread;
    if (vector && first + kPerThread <= count) {
        float sum[8], piece[8];
        if (accumulate)
            load8(out + first, sum);
        else
            load8(pieces + first, sum);
        for (int r = accumulate ? 0 : 1; r < world; r++) {
            load8(pieces + r * count + first, piece);
            for (int i = 0; i < 8; i++) sum[i] += piece[i];
        }
        store8(out + first, sum);
        return;
    }
    for (size_t i = first; i < first + kPerThread && i < count; i++) {
        float sum = accumulate ? out[i] : to_float(pieces[i]);
        for (int r = accumulate ? 0 : 1; r < world; r++) sum += to_float(pieces[r * count + i]);
        out[i] = sum;
    }
}

template <class T>
void sum_pieces(float* out_pointer, const T* pieces, int world, size_t count, bool accumulate, stream_t stream) {
    if (count == 0) return;
    const bool vector = count * sizeof(T) % 16 == 0 && is_aligned(pieces, 16) && is_aligned(out_pointer, 16);
    const LaunchConfig config(static_cast<unsigned>(div_up<size_t>(count, kBlockThreads * kPerThread)), kBlockThreads,
                              0, stream);
    launch<sum_pieces_kernel<T>>(config,
                                 {accumulate ? inout(out_pointer, count) : out(out_pointer, count),
                                  in(pieces, count * static_cast<size_t>(world))},
                                 out_pointer, pieces, world, count, accumulate, vector);
}

// Integers of other ranks may be any, and signed ones must not overflow, so their bits are added as unsigned.
template <class T>
LLMC_DEVICE T sum_of(T a, T b) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    else
        return a + b;
}

template <class T>
static __global__ void __launch_bounds__(kBlockThreads)
    reduce_pieces_kernel(T* out, const T* pieces, int world, size_t count, ReduceOp op) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    T result = pieces[i];
    for (int r = 1; r < world; r++) {
        const T piece = pieces[r * count + i];
        result = op == ReduceOp::sum ? sum_of(result, piece) : piece > result ? piece : result;
    }
    out[i] = result;
}

template <class T>
void reduce_pieces(T* out_pointer, const T* pieces, int world, size_t count, ReduceOp op, stream_t stream) {
    if (count == 0) return;
    launch<reduce_pieces_kernel<T>>(
        {static_cast<unsigned>(div_up<size_t>(count, kBlockThreads)), kBlockThreads, 0, stream},
        out(out_pointer, count), in(pieces, count * static_cast<size_t>(world)), world, count, op);
}

template void sum_pieces<float>(float*, const float*, int, size_t, bool, stream_t);
template void sum_pieces<bf16>(float*, const bf16*, int, size_t, bool, stream_t);
template void reduce_pieces<float>(float*, const float*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<double>(double*, const double*, int, size_t, ReduceOp, stream_t);
template void reduce_pieces<int32_t>(int32_t*, const int32_t*, int, size_t, ReduceOp, stream_t);

// In FP8 a warp casts a block of elements, each lane four of them.
static_assert(Fp8Piece::kBlock == 32 * 4 && Fp8Piece::kBlock % 16 == 0);

// x[i] = values[first + i], or 0 beyond `count`. If `whole`, all four exist and one access loads them.
template <class T>
LLMC_DEVICE void load_four(float (&x)[4], const T* values, size_t first, size_t count, bool whole) {
    if (whole) return load4(values + first, x);
    LLMC_UNROLL
    for (size_t i = 0; i < 4; i++) x[i] = first + i < count ? to_float(values[first + i]) : 0.0f;
}

// Grid: a row of blocks for each piece. `vector`: every piece and its residuals are aligned for reads of four.
static __global__ void __launch_bounds__(kBlockThreads)
    cast_pieces_kernel(uint8_t* pieces, bf16* residual, const float* in, size_t count, Feedback feedback, bool vector) {
    const Fp8Piece piece{count};
    const size_t block = static_cast<size_t>(blockIdx.x) * kBlockWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (block >= piece.blocks()) return;
    const size_t first = block * Fp8Piece::kBlock + lane * 4, start = blockIdx.y * count;
    const bool whole = vector && first + 4 <= count;
    const float loss_scale = feedback.loss_scale != nullptr ? *feedback.loss_scale : 1.0f;
    float x[4], owed[4] = {};
    load_four(x, in + start, first, count, whole);
    if (residual != nullptr && (feedback.skips == nullptr || *feedback.skips == 0))
        load_four(owed, residual + start, first, count, whole);

    float largest = 0.0f;
    for (int i = 0; i < 4; i++) {
        x[i] = fmaf(owed[i], loss_scale, x[i]);
        largest = max_float(largest, is_finite(x[i]) ? abs_float(x[i]) : 0.0f);
    }
    const int exponent = block_exponent(warp_max(largest));
    const float scale = power_of_two(-exponent), scale_inv = power_of_two(exponent);
    uint32_t codes = 0;
    for (int i = 0; i < 4; i++) {
        const bool finite = is_finite(x[i]);
        const uint8_t code = finite ? to_e4m3(x[i] * scale).bits : kFp8NaN;
        codes |= static_cast<uint32_t>(code) << (8 * i);
        owed[i] = finite ? fmaf(-to_float(e4m3{code}), scale_inv, x[i]) / loss_scale : 0.0f;
    }

    uint8_t* to = pieces + blockIdx.y * piece.bytes();
    if (first < piece.scales_begin()) store_word(to + first, codes);
    to += piece.scales_begin();
    if (lane == 0) to[block] = static_cast<uint8_t>(exponent + 127);
    if (block + 1 == piece.blocks() && lane > 0 && lane <= (16 - piece.blocks() % 16) % 16) to[block + lane] = 0;
    if (residual == nullptr || !feedback.store) return;
    if (whole) return store4(residual + start + first, owed);
    for (size_t i = 0; i < 4 && first + i < count; i++) residual[start + first + i] = to_bf16(owed[i]);
}

namespace host {

static void cast_pieces([[maybe_unused]] const Grid& grid, uint8_t* pieces, bf16* residual, const float* in,
                        size_t count, Feedback feedback, bool) {
#if !LLMC_ON_GPU
    const Fp8Piece piece{count};
    const float loss_scale = feedback.loss_scale != nullptr ? *feedback.loss_scale : 1.0f;
    const bool adds = residual != nullptr && (feedback.skips == nullptr || *feedback.skips == 0);
    const size_t blocks = piece.blocks(), tasks = grid.grid.y * blocks;
#pragma omp parallel for schedule(static) if (tasks > 64)
    for (size_t task = 0; task < tasks; task++) {
        const size_t block = task % blocks, first = block * Fp8Piece::kBlock, start = task / blocks * count + first;
        const size_t n = std::min(Fp8Piece::kBlock, count - first);
        float x[Fp8Piece::kBlock] = {}, largest = 0.0f;
        for (size_t i = 0; i < n; i++) {
            x[i] = fmaf(adds ? to_float(residual[start + i]) : 0.0f, loss_scale, in[start + i]);
            largest = max_float(largest, is_finite(x[i]) ? abs_float(x[i]) : 0.0f);
        }
        const int exponent = block_exponent(largest);
        const float scale = power_of_two(-exponent), scale_inv = power_of_two(exponent);
        uint8_t* const to = pieces + task / blocks * piece.bytes();
        for (size_t i = 0; i < Fp8Piece::kBlock && first + i < piece.scales_begin(); i++) {
            const bool finite = is_finite(x[i]);
            const uint8_t code = finite ? to_e4m3(x[i] * scale).bits : kFp8NaN;
            to[first + i] = code;
            if (residual == nullptr || !feedback.store || i >= n) continue;
            residual[start + i] = to_bf16(finite ? fmaf(-to_float(e4m3{code}), scale_inv, x[i]) / loss_scale : 0.0f);
        }
        to[piece.scales_begin() + block] = static_cast<uint8_t>(exponent + 127);
        if (block + 1 == blocks) std::fill(to + piece.scales_begin() + blocks, to + piece.bytes(), uint8_t{0});
    }
#endif
}

}  // namespace host

void cast_pieces(uint8_t* pieces, const float* inp, int world, size_t count, const Feedback& feedback,
                 stream_t stream) {
    if (count == 0) return;
    if (!is_aligned(pieces, 16)) throw Error(ExitCode::failure, "cast_pieces: pieces begin at multiples of 16 bytes");
    const size_t values = count * static_cast<size_t>(world);
    const Fp8Piece piece{count};
    const LaunchConfig config(
        dim3(static_cast<unsigned>(div_up<size_t>(piece.blocks(), kBlockWarps)), static_cast<unsigned>(world)),
        dim3(kBlockThreads), 0, stream);
    const Access to = out(pieces, piece.bytes() * static_cast<size_t>(world)), from = in(inp, values),
                 residual =
                     feedback.store ? Access(inout(feedback.residual, values)) : Access(in(feedback.residual, values)),
                 loss_scale = in(feedback.loss_scale, 1), skips = in(feedback.skips, 1);
    const bool vector = count % 4 == 0 && is_aligned(inp, 16) && is_aligned(feedback.residual, 8);
    host::launch_or_loop<cast_pieces_kernel, host::cast_pieces>(config, {to, from, residual, loss_scale, skips}, pieces,
                                                                feedback.residual, inp, count, feedback, vector);
}

// Each thread sums eight elements, which lie in one block.
static __global__ void __launch_bounds__(kBlockThreads)
    sum_fp8_pieces_kernel(float* out, const uint8_t* pieces, int world, size_t count, bool accumulate, bool vector) {
    const Fp8Piece piece{count};
    const size_t first = (static_cast<size_t>(blockIdx.x) * kBlockThreads + threadIdx.x) * kPerThread;
    if (first >= count) return;
    const bool whole = vector && first + kPerThread <= count;
    float sum[8] = {};
    if (accumulate) {
        if (whole) load8(out + first, sum);
        for (size_t i = 0; !whole && i < 8; i++) sum[i] = first + i < count ? out[first + i] : 0.0f;
    }
    for (int r = 0; r < world; r++) {
        const uint8_t* from = pieces + static_cast<size_t>(r) * piece.bytes();
        const float scale_inv = power_of_two(from[piece.scales_begin() + first / Fp8Piece::kBlock] - 127);
        // A piece ends in zeros, so this may read past the last code.
        const uint32_t codes[2] = {load_word(from + first), load_word(from + first + 4)};
        float x[8];
        uncast_8<e4m3>(x, codes);
        for (int i = 0; i < 8; i++) {
            const float value = x[i] * scale_inv;
            sum[i] = r > 0 || accumulate ? sum[i] + value : value;
        }
    }
    if (whole) return store8(out + first, sum);
    for (size_t i = 0; i < 8 && first + i < count; i++) out[first + i] = sum[i];
}

void sum_fp8_pieces(float* to, const uint8_t* pieces, int world, size_t count, bool accumulate, stream_t stream) {
    if (count == 0) return;
    const bool vector = is_aligned(to, 16);
    launch<sum_fp8_pieces_kernel>(
        {static_cast<unsigned>(div_up<size_t>(count, kBlockThreads * kPerThread)), kBlockThreads, 0, stream},
        {accumulate ? inout(to, count) : out(to, count),
         in(pieces, Fp8Piece{count}.bytes() * static_cast<size_t>(world))},
        to, pieces, world, count, accumulate, vector);
}

}  // namespace llmc
