// Steps that all quantizing kernels share: the cast, the statistics of a tensor (largest magnitude, counts), and the
// turn from rows to columns.
#pragma once
#include "llmc/base/error.h"
#include "llmc/device/fp8_cast.cuh"
#include "llmc/device/kernel.cuh"
#include "llmc/kernels/fp8_state.h"

namespace llmc {

// ---- passes: the columns of the table in fp8_state.h ---------------------------------------------------------------

LLMC_HD constexpr bool has_bit(QuantizePass pass, unsigned bit) { return (static_cast<unsigned>(pass) & bit) != 0; }
LLMC_HD constexpr bool writes_fp8(QuantizePass pass) { return has_bit(pass, 1); }
LLMC_HD constexpr bool changes_state(QuantizePass pass) { return has_bit(pass, 2); }
LLMC_HD constexpr bool raises_amax(QuantizePass pass) { return has_bit(pass, 4); }
LLMC_HD constexpr bool counts_losses(QuantizePass pass) { return has_bit(pass, 8); }

// Access of a launch to the state. `replay` must not change it, so it declares a read.
inline Tensor<Fp8State> state_access(Fp8State* state, QuantizePass pass) {
    return {state, 1, true, changes_state(pass)};
}

inline void check_quantize(const char* launcher, const Fp8State* state, int N, int C) {
    const auto refuse = [&](const char* what, int value) {
        throw Error(
            ExitCode::failure,
            "{}: {}={}; FP8 matrix products need a positive multiple of 16 (tokens of a micro-batch and channels)",
            launcher, what, value);
    };
    if (N < 16 || N % 16 != 0) refuse("N", N);
    if (C < 16 || C % 16 != 0) refuse("C", C);
    if (state == nullptr) throw Error(ExitCode::failure, "{}: the FP8 state is missing", launcher);
}

// ---- the limits ----------------------------------------------------------------------------------------------------

template <class F8>
struct Fp8Limits;
template <>
struct Fp8Limits<e4m3> {
    static constexpr float largest = kE4M3Max;
    static constexpr float to_zero = 0x1p-10f;  // the largest that becomes 0: half the smallest subnormal, tied to even
};
template <>
struct Fp8Limits<e5m2> {
    static constexpr float largest = kE5M2Max;
    static constexpr float to_zero = 0x1p-17f;
};

// ---- statistics ----------------------------------------------------------------------------------------------------

// Statistics of the values that one thread has seen. Magnitudes of floats have the order of their bits.
struct alignas(16) QuantizeTally {
    uint32_t amax = 0;  // bits; finite values only
    uint32_t nonfinite = 0, saturated = 0, underflowed = 0;
};

// Notes each value: the largest finite magnitude, and the number of values that are not finite.
LLMC_DEVICE void note_values(QuantizeTally& tally, const float (&x)[8]) {
    for (int i = 0; i < 8; i++) {
        const uint32_t magnitude = float_bits(x[i]) & kFloatMagnitudeMask;
        const bool finite = magnitude < kFloatInfinityBits;
        const uint32_t candidate = finite ? magnitude : 0u;
        tally.amax = candidate > tally.amax ? candidate : tally.amax;
        tally.nonfinite += finite ? 0u : 1u;
    }
}

template <class F8>
LLMC_DEVICE void note_losses(QuantizeTally& tally, const float (&x)[8], float scale) {
    for (int i = 0; i < 8; i++) {
        const float scaled = abs_float(x[i] * scale);
        tally.saturated += scaled > Fp8Limits<F8>::largest ? 1u : 0u;
        tally.underflowed += (scaled <= Fp8Limits<F8>::to_zero) & (x[i] != 0.0f) ? 1u : 0u;
    }
}

struct RoundToNearest {
    LLMC_HD void operator()(float (&)[8]) const {}
};

// Notes eight values as the pass requires, and casts them to nearest after `dither` has changed the scaled values. If
// losses are not counted and all values are finite, noting takes one instruction per value instead of 14. With
// kShortOfRegisters it takes five, for kernels whose registers would spill around the rare case.
template <class F8, bool kShortOfRegisters = false, class Dither = RoundToNearest>
LLMC_DEVICE void quantize_8(uint32_t (&codes)[2], QuantizeTally& tally, const float (&x)[8], float scale,
                            QuantizePass pass, const Dither& dither = {}) {
    if constexpr (kShortOfRegisters) {
        if (changes_state(pass)) note_values(tally, x);
        if (counts_losses(pass)) note_losses<F8>(tally, x, scale);
    } else if (changes_state(pass)) {
        const uint32_t largest = largest_magnitude(x);
        if (largest >= kFloatInfinityBits || counts_losses(pass)) {
            note_values(tally, x);
            note_losses<F8>(tally, x, scale);
        } else {
            tally.amax = largest > tally.amax ? largest : tally.amax;
        }
    }
    if (!writes_fp8(pass)) return;
    float scaled[8];
    for (int i = 0; i < 8; i++) scaled[i] = x[i] * scale;
    dither(scaled);
    cast_8<F8>(codes, scaled);
}

// Adds the tallies of a warp's lanes, all of which call this, to the state. `elements` is how many values to add to the
// tensor's count; one lane passes it and the others pass 0. There is one atomic per number and warp, on integers, so
// the order of warps does not matter. Counts below 2^24 per warp are exact as floats, and so share one reduction.
LLMC_DEVICE void commit_tally(Fp8State* state, const QuantizeTally& sum, size_t elements, QuantizePass pass) {
    if (!changes_state(pass)) return;
    const float amax = warp_max(float_from_bits(sum.amax));
    float number[3] = {static_cast<float>(sum.nonfinite), static_cast<float>(sum.saturated),
                       static_cast<float>(sum.underflowed)};
    warp_sum_each(number);
    if (counts_losses(pass)) atomic_add(&state->elements, elements);
    if ((threadIdx.x & 31) != 0) return;
    if (raises_amax(pass) && amax > 0.0f) {
        float* target = writes_fp8(pass) ? &state->amax : &state->amax_now;
        atomicMax(reinterpret_cast<int*>(target), static_cast<int>(float_bits(amax)));
    }
    if (number[0] > 0.0f) atomicOr(&state->bad, 1u);
    if (!writes_fp8(pass)) return;
    atomic_add(&state->nonfinite, static_cast<uint64_t>(number[0]));
    if (!counts_losses(pass)) return;
    atomic_add(&state->saturated, static_cast<uint64_t>(number[1]));
    atomic_add(&state->underflowed, static_cast<uint64_t>(number[2]));
}

// Adds the block's tallies to the state. `tallies` (blockDim.x) lies in shared memory, written before the caller's last
// barrier. A block has fewer than 2^24 elements. The first block counts all of the tensor's elements.
LLMC_DEVICE void commit_tallies(Fp8State* state, const QuantizeTally* tallies, size_t tensor_elements,
                                QuantizePass pass) {
    if (!changes_state(pass) || threadIdx.x >= 32) return;
    QuantizeTally sum = tallies[threadIdx.x];
    for (unsigned t = threadIdx.x + 32; t < blockDim.x; t += 32) {
        const QuantizeTally other = tallies[t];
        sum.amax = other.amax > sum.amax ? other.amax : sum.amax;
        sum.nonfinite += other.nonfinite;
        sum.saturated += other.saturated;
        sum.underflowed += other.underflowed;
    }
    commit_tally(state, sum, blockIdx.x == 0 && threadIdx.x == 0 ? tensor_elements : 0, pass);
}

// ---- rows to columns -----------------------------------------------------------------------------------------------

// Stores sixteen rows of four codes, one word per row, as four columns of sixteen codes, `pitch` bytes apart.
template <class F8>
LLMC_DEVICE void store_columns(F8* to, size_t pitch, uint32_t (&rows)[4][4]) {
    for (int i = 0; i < 4; i++) transpose_4x4(rows[i]);
    for (int c = 0; c < 4; c++) store16(to + c * pitch, {{rows[0][c], rows[1][c], rows[2][c], rows[3][c]}});
}

// The same with 8-byte stores, for columns that start at multiples of 8 and may end after eight codes.
template <class F8>
LLMC_DEVICE void store_columns_in_halves(F8* to, size_t pitch, uint32_t (&rows)[4][4], bool second_half) {
    for (int i = 0; i < 4; i++) transpose_4x4(rows[i]);
    for (int c = 0; c < 4; c++) {
        *reinterpret_cast<uint2*>(to + c * pitch) = make_uint2(rows[0][c], rows[1][c]);
        if (second_half) *reinterpret_cast<uint2*>(to + c * pitch + 8) = make_uint2(rows[2][c], rows[3][c]);
    }
}

// Word of a block's codes in shared memory: whole rows, with `stride` words per row. stride is a multiple of 32, so
// rows begin in the same bank. Word `word` of a row holds columns 4 word to 4 word + 3. Words are exchanged by (row /
// 16), so that threads that read the same column 16 rows apart use different banks.
LLMC_DEVICE int code_word(int row, int word, int stride) { return row * stride + (word ^ (row & 16)); }
constexpr int code_stride(int C) { return (C + 127) / 128 * 32; }

// Stores such rows, `rows` of them (16 or 32) from first_row on, to `transposed` (C, N), with all threads of the block.
// Rows from N on are left out, sixteen at a time.
template <class F8>
LLMC_DEVICE void store_code_columns(F8* transposed, const uint32_t* tile, int first_row, int rows, int stride, int N,
                                    int C) {
    const int pieces = rows / 16;
    for (int i = static_cast<int>(threadIdx.x); i < pieces * (C / 4); i += static_cast<int>(blockDim.x)) {
        const int first = i % pieces * 16, word = i / pieces;
        if (first_row + first >= N) continue;
        uint32_t codes[4][4];
        for (int r = 0; r < 16; r++) codes[r / 4][r % 4] = tile[code_word(first + r, word, stride)];
        store_columns(transposed + static_cast<size_t>(word) * 4 * N + first_row + first, N, codes);
    }
}

}  // namespace llmc
