// Reference values for casts to FP8 and for kernels that quantize, from the formats' definition in FP64, without the
// conversions that kernels use. For check_card and for tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "llmc/comm/reductions.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/quantize_blocks.h"

namespace llmc::reference {

// The finite magnitudes of a format in order; a magnitude's code is its index. Exponent 0 holds the subnormals.
template <class F8>
const std::vector<double>& magnitudes() {
    static const std::vector<double> table = [] {
        constexpr bool wide = std::is_same_v<F8, e5m2>;
        constexpr int mantissa_bits = wide ? 2 : 3, bias = wide ? 15 : 7, largest_code = wide ? 0x7b : 0x7e;
        std::vector<double> values;
        for (int code = 0; code <= largest_code; code++) {
            const int exponent = code >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
            values.push_back(exponent == 0
                                 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits));
        }
        return values;
    }();
    return table;
}

// The value of a code; codes above the largest finite one are Inf (E5M2's first) and NaN.
template <class F8>
double value_of(uint8_t code) {
    const std::vector<double>& table = magnitudes<F8>();
    const size_t magnitude = code & 0x7f;
    const double sign = code & 0x80 ? -1.0 : 1.0;
    if (magnitude < table.size()) return sign * table[magnitude];
    return std::is_same_v<F8, e5m2> && magnitude == 0x7c ? sign * HUGE_VAL : std::nan("");
}

// Round to nearest, ties to the even code, saturating; NaN is 0x7f.
template <class F8>
F8 nearest_code(double scaled) {
    const std::vector<double>& table = magnitudes<F8>();
    if (std::isnan(scaled)) return {0x7f};
    const double x = std::fabs(scaled);
    const uint8_t sign = std::signbit(scaled) ? 0x80 : 0;
    if (x >= table.back()) return {static_cast<uint8_t>(sign | (table.size() - 1))};
    const size_t above = static_cast<size_t>(std::upper_bound(table.begin(), table.end(), x) - table.begin());
    const double middle = (table[above - 1] + table[above]) / 2;
    const bool up = x > middle || (x == middle && above % 2 == 0);
    return {static_cast<uint8_t>(sign | (up ? above : above - 1))};
}

// The BF16 number nearest to a value, ties to the even one, beyond the largest Inf; NaN is 0x7fff.
inline bf16 nearest_bf16(double value) {
    if (std::isnan(value)) return {0x7fff};
    const double x = std::fabs(value);
    int exponent = 0;
    if (std::isfinite(x)) std::frexp(x, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));  // between neighbours; 2^-133 among subnormals
    const double nearest = std::isinf(x) ? x : std::nearbyint(x / unit) * unit;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = nearest >= 0x1p128 ? static_cast<float>(HUGE_VAL) : static_cast<float>(nearest);
    return {static_cast<uint16_t>(sign | float_bits(magnitude) >> 16)};
}

// FP32 numbers as they are stored in FP32 or BF16.
template <class Real>
Real nearest(float value) {
    if constexpr (std::is_same_v<Real, float>)
        return value;
    else
        return nearest_bf16(value);
}
template <class Real>
std::vector<Real> nearest(const std::vector<float>& values) {
    std::vector<Real> result;
    for (const float value : values) result.push_back(nearest<Real>(value));
    return result;
}

inline bool is_any_of(QuantizePass pass, QuantizePass a, QuantizePass b) { return pass == a || pass == b; }

// The state after a pass over a tensor with these amax and counts, from the state before it.
inline Fp8State state_after(const Fp8State& before, const Fp8State& counted, QuantizePass pass) {
    Fp8State state = before;
    if (pass == QuantizePass::replay) return state;
    state.bad |= counted.bad;  // 0 or 1
    if (is_any_of(pass, QuantizePass::train, QuantizePass::train_counted))
        state.amax = std::max(state.amax, counted.amax);
    if (pass == QuantizePass::measure) state.amax_now = std::max(state.amax_now, counted.amax);
    if (pass == QuantizePass::measure) return state;
    state.nonfinite += counted.nonfinite;
    if (!is_any_of(pass, QuantizePass::train_counted, QuantizePass::write_counted)) return state;
    state.elements += counted.elements;
    state.saturated += counted.saturated;
    state.underflowed += counted.underflowed;
    return state;
}

// A state that nothing but a kernel's own writes can be mistaken for.
inline Fp8State used_state(float scale) {
    Fp8State state{};
    std::memset(static_cast<void*>(&state), 0x35, sizeof state);
    state.scale = scale;
    state.scale_inv = 1.0f / scale;
    state.amax = 0.0078125f;
    state.amax_now = 0.015625f;
    state.bad = 0;
    state.elements = 1000003;
    state.saturated = 1009;
    state.underflowed = 10007;
    state.nonfinite = 3;
    return state;
}

// The definition: the smallest power of two that brings amax to 448 or less, by trying.
inline int exponent_by_search(double amax) {
    if (amax == 0) return 0;
    int e = -126;
    while (std::ldexp(amax, -e) > 448.0) e++;
    return e;
}

// An (R, K) matrix with one exponent for each `rows` x `length` block, and the codes that follow.
struct BlockReference {
    int R, K, rows, length;
    std::vector<int> exponents;  // (R / rows, K / length)
    std::vector<e4m3> codes;
    Fp8State counted{};

    BlockReference(const std::vector<float>& x, int R_, int K_, int rows_, int length_)
        : R(R_), K(K_), rows(rows_), length(length_) {
        const int across = (K + length - 1) / length;
        std::vector<double> amax(static_cast<size_t>((R + rows - 1) / rows * across), 0.0);
        for (int r = 0; r < R; r++)
            for (int k = 0; k < K; k++) {
                const float value = x[static_cast<size_t>(r) * K + k];
                double& block = amax[r / rows * across + k / length];
                if (std::isfinite(value)) block = std::max(block, std::fabs(static_cast<double>(value)));
            }
        for (const double a : amax) exponents.push_back(exponent_by_search(a));
        for (int r = 0; r < R; r++)
            for (int k = 0; k < K; k++) {
                const float value = x[static_cast<size_t>(r) * K + k];
                codes.push_back(nearest_code<e4m3>(std::ldexp(static_cast<double>(value), -exponent(r, k))));
                counted.elements++;
                counted.saturated += std::isinf(value);
                counted.underflowed += value != 0.0f && (codes.back().bits & 0x7f) == 0;
                counted.nonfinite += !std::isfinite(value);
                if (std::isfinite(value)) counted.amax = std::max(counted.amax, std::fabs(value));
            }
        counted.bad = counted.nonfinite > 0;
    }
    int exponent(int r, int k) const { return exponents[r / rows * ((K + length - 1) / length) + k / length]; }
    Fp8State after(const Fp8State& before, QuantizePass pass) const { return state_after(before, counted, pass); }
};

// The place of the scale of (r, k) in the documentation of cuBLASLt ("1D/2D block scaling"), written independently.
inline size_t documented_place(ScaleLayout layout, int rows, int K, int r, int k) {
    const int l = k / 128, vectors = (K + 127) / 128;
    if (layout == ScaleLayout::vectors) return static_cast<size_t>(l * rows + r);  // M-major, M x L
    if (layout == ScaleLayout::tiles) {                                            // K-major, L4 x ceil(M / 128)
        int l4 = vectors;
        while (l4 % 4 != 0) l4++;
        return static_cast<size_t>(r / 128 * l4 + l);
    }
    const int outer = r % 128, inner = k / 32 % 4;
    return static_cast<size_t>((r / 128 * vectors + l) * 512 + outer % 32 * 16 + outer / 32 * 4 + inner);
}

// The table of a matrix' scales. Tiles of mx scales are filled up with 0, other layouts with NaN, which nobody reads.
inline std::vector<char> scale_table(ScaleLayout layout, const BlockReference& reference) {
    const bool mx = layout == ScaleLayout::mx;
    std::vector<char> table(scale_bytes(layout, static_cast<size_t>(reference.R), static_cast<size_t>(reference.K)),
                            mx ? '\0' : '\xFF');
    for (int r = 0; r < reference.R; r++)
        for (int k = 0; k < reference.K; k++) {
            const size_t place = documented_place(layout, reference.R, reference.K, r, k);
            const float scale = std::ldexp(1.0f, reference.exponent(r, k));
            if (mx)
                table[place] = static_cast<char>(reference.exponent(r, k) + 127);
            else
                std::memcpy(&table[place * sizeof scale], &scale, sizeof scale);
        }
    return table;
}

// How many of a table's scales are not those of the reference.
inline size_t wrong_scales(const std::vector<char>& table, ScaleLayout layout, const BlockReference& reference) {
    const std::vector<char> expected = scale_table(layout, reference);
    const size_t size = layout == ScaleLayout::mx ? 1 : sizeof(float);
    const std::vector<char> unused(size, '\xFF');
    size_t wrong = table.size() != expected.size();
    for (size_t at = 0; at < expected.size() && at < table.size(); at += size) {
        const bool is_used = size == 1 || std::memcmp(&expected[at], unused.data(), size) != 0;
        wrong += is_used && std::memcmp(&table[at], &expected[at], size) != 0;
    }
    return wrong;
}

// x (R, K) as (K, R).
template <class T>
std::vector<T> turned(const std::vector<T>& x, int R, int K) {
    std::vector<T> result(x.size());
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) result[static_cast<size_t>(k) * R + r] = x[static_cast<size_t>(r) * K + k];
    return result;
}

// ---- the FP8 wire ---------------------------------------------------------------------------------------------------
// Reference values for gradients that ranks send in FP8 (llmc/comm/reductions.h), from the definitions in FP64. For
// check_card and for tests.

struct CastPieces {
    std::vector<uint8_t> pieces;
    std::vector<bf16> residual;  // afterwards
};

// `in` and `residual` (world, count).
inline CastPieces cast_pieces(const std::vector<float>& in, const std::vector<bf16>& residual, int world, size_t count,
                              double loss_scale) {
    const Fp8Piece piece{count};
    CastPieces result{std::vector<uint8_t>(piece.bytes() * static_cast<size_t>(world)), residual};
    for (size_t r = 0; r < static_cast<size_t>(world); r++)
        for (size_t block = 0; block < piece.blocks(); block++) {
            const size_t begin = block * Fp8Piece::kBlock, end = std::min(count, begin + Fp8Piece::kBlock);
            std::vector<double> x;
            double largest = 0;
            for (size_t i = begin; i < end; i++) {
                const size_t at = r * count + i;  // the sum is rounded to FP32
                x.push_back(static_cast<float>(in[at] + to_float(residual[at]) * loss_scale));
                if (std::isfinite(x.back())) largest = std::max(largest, std::fabs(x.back()));
            }
            const int exponent = exponent_by_search(largest);
            uint8_t* to = result.pieces.data() + r * piece.bytes();
            to[piece.scales_begin() + block] = static_cast<uint8_t>(exponent + 127);
            for (size_t i = begin; i < end; i++) {
                const double value = x[i - begin], scaled = std::ldexp(value, -exponent);
                const bool finite = std::isfinite(value);
                to[i] = finite ? nearest_code<e4m3>(scaled).bits : uint8_t{0x7f};
                const double lost = finite ? value - std::ldexp(value_of<e4m3>(to[i]), exponent) : 0;
                result.residual[r * count + i] = nearest_bf16(lost / loss_scale);
            }
        }
    return result;
}

// The sum of pieces as they are sent, in FP32 and in the order of the ranks, added to `start` (count) unless that is
// empty.
inline std::vector<float> sum_fp8_pieces(const std::vector<uint8_t>& pieces, int world, size_t count,
                                         const std::vector<float>& start) {
    const Fp8Piece piece{count};
    std::vector<float> sums = start.empty() ? std::vector<float>(count) : start;
    for (size_t r = 0; r < static_cast<size_t>(world); r++)
        for (size_t i = 0; i < count; i++) {
            const uint8_t* from = pieces.data() + r * piece.bytes();
            const int exponent = from[piece.scales_begin() + i / Fp8Piece::kBlock] - 127;
            const float value = static_cast<float>(std::ldexp(value_of<e4m3>(from[i]), exponent));
            sums[i] = r == 0 && start.empty() ? value : sums[i] + value;
        }
    return sums;
}

}  // namespace llmc::reference
