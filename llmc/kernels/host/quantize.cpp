// Loops that quantize with one scale per tensor, and the cast of rows to FP8 codes that attention and the norms use
// too. A task has 128 x 128 values, like a block of the kernels (quantize_tile.cuh).
#include "llmc/kernels/host/quantize.h"

#include "llmc/kernels/host/loops.h"
#include "llmc/kernels/instantiate.h"
#include "llmc/kernels/quantize_producers.cuh"

namespace llmc::host {

// Computes fp8_nearest() of each lane.
template <class F8>
static LLMC_INLINE Bytes codes_of(Floats value) {
    using Format = FormatOf<F8>;
    const Words bits = bits_of(value), magnitude = bits & kFloatMagnitudeMask, sign = bits >> 24 & 0x80u;
    const Words round_bias = ((1u << (Format::dropped_bits - 1)) - 1u) + ((magnitude >> Format::dropped_bits) & 1u);
    const Words normal = ((magnitude + round_bias) >> Format::dropped_bits) - Format::code_offset;
    const Words subnormal =
        bits_of(from_bits(magnitude) + float_from_bits(Format::rounding_magic)) - Format::rounding_magic;
    Words code = magnitude < Format::smallest_normal ? subnormal : normal;
    code = code > Format::largest_code ? Words{} + Format::largest_code : code;
    code = magnitude > kFloatInfinityBits ? Words{} + kFp8NaN : code | sign;
    return __builtin_convertvector(code, Bytes);
}

// Computes dither() of each lane.
template <class Format>
static LLMC_INLINE Floats dithered(Floats value, const uint32_t* random) {
    constexpr uint32_t dropped = (1u << Format::dropped_bits) - 1u;
    Words words;
    std::memcpy(&words, random, sizeof words);
    const Words rounded = (bits_of(value) + (words & dropped)) & ~dropped;
    return value == value ? from_bits(rounded) : value;
}

template <class F8>
static void note_each(Tally& tally, const float* x, int n, float scale) {
    for (int i = 0; i < n; i++) {
        const uint32_t magnitude = float_bits(x[i]) & kFloatMagnitudeMask;
        const bool finite = magnitude < kFloatInfinityBits;
        tally.amax = finite && magnitude > tally.amax ? magnitude : tally.amax;
        tally.nonfinite += finite ? 0 : 1;
        const float scaled = float_from_bits(float_bits(x[i] * scale) & kFloatMagnitudeMask);
        tally.saturated += scaled > Fp8Limits<F8>::largest ? 1 : 0;
        tally.underflowed += scaled <= Fp8Limits<F8>::to_zero && x[i] != 0.0f ? 1 : 0;
    }
}

template <class F8>
static void note_row(Tally& tally, const float* x, int n, float scale, QuantizePass pass) {
    Words amax{};
    for (int i = 0; i < n; i += kLanes) {
        const Words magnitude = bits_of(load(x + i)) & kFloatMagnitudeMask;
        amax = magnitude > amax ? magnitude : amax;
    }
    uint32_t largest = 0;
    for (int i = 0; i < kLanes; i++) largest = std::max(largest, static_cast<uint32_t>(amax[i]));
    if (largest >= kFloatInfinityBits || counts_losses(pass))
        note_each<F8>(tally, x, n, scale);
    else
        tally.amax = std::max(tally.amax, largest);
}

// Transposes eight rows of sixteen codes in three rounds of interleaving.
static LLMC_INLINE void turn(uint8_t* to, size_t to_pitch, const uint8_t* from, size_t pitch) {
    typedef uint8_t Sixteen __attribute__((vector_size(16)));
    Sixteen r[8], s[8];
    for (int i = 0; i < 8; i++) std::memcpy(&r[i], from + i * pitch, 16);
    const auto interleave = [](Sixteen(&y)[8], const Sixteen(&x)[8]) {
        const Sixteen first{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
        for (int i = 0; i < 4; i++) {
            y[2 * i] = __builtin_shuffle(x[i], x[i + 4], first);
            y[2 * i + 1] = __builtin_shuffle(x[i], x[i + 4], first + 8);
        }
    };
    interleave(s, r);
    interleave(r, s);
    interleave(s, r);
    for (int i = 0; i < 16; i++) std::memcpy(to + i * to_pitch, reinterpret_cast<uint8_t*>(&s[i / 2]) + i % 2 * 8, 8);
}

// Transposes a rectangle of codes. `rows` is a multiple of 8, `columns` of 16.
static void turn_rectangle(uint8_t* to, size_t to_pitch, const uint8_t* from, size_t pitch, int rows, int columns) {
    for (int c = 0; c < columns; c += 16)
        for (int r = 0; r < rows; r += 8)
            turn(to + static_cast<size_t>(c) * to_pitch + r, to_pitch, from + static_cast<size_t>(r) * pitch + c,
                 pitch);
}

void commit(Fp8State* state, const Tally& t, size_t elements, QuantizePass pass) {
    if (!changes_state(pass)) return;
#pragma omp critical(llmc_fp8_state)
    {
        if (counts_losses(pass)) state->elements += elements;
        if (raises_amax(pass) && t.amax > 0) {
            float& target = writes_fp8(pass) ? state->amax : state->amax_now;
            target = std::max(target, float_from_bits(t.amax));
        }
        if (t.nonfinite > 0) state->bad |= 1u;
        if (writes_fp8(pass)) state->nonfinite += t.nonfinite;
        if (writes_fp8(pass) && counts_losses(pass)) {
            state->saturated += t.saturated;
            state->underflowed += t.underflowed;
        }
    }
}

template <class F8>
void quantize_rows(const CodeTarget<F8>& to, Tally& tally, const float* values, size_t stride, int rows, int columns,
                   float scale, QuantizePass pass, const uint32_t* random) {
    thread_local std::vector<uint8_t> codes;
    codes.resize(static_cast<size_t>(rows) * columns);
    for (int r = 0; r < rows; r++) {
        const float* x = values + static_cast<size_t>(r) * stride;
        if (changes_state(pass)) note_row<F8>(tally, x, columns, scale, pass);
        if (!writes_fp8(pass)) continue;
        uint8_t* line = codes.data() + static_cast<size_t>(r) * columns;
        for (int i = 0; i < columns; i += kLanes) {
            Floats scaled = load(x + i) * scale;
            if (random) scaled = dithered<FormatOf<F8>>(scaled, random + static_cast<size_t>(r) * stride + i);
            const Bytes cast = codes_of<F8>(scaled);
            std::memcpy(line + i, &cast, sizeof cast);
        }
        if (to.row) std::memcpy(to.row + static_cast<size_t>(r) * to.row_pitch, line, static_cast<size_t>(columns));
    }
    if (!writes_fp8(pass) || !to.transposed) return;
    turn_rectangle(reinterpret_cast<uint8_t*>(to.transposed), to.transposed_pitch, codes.data(),
                   static_cast<size_t>(columns), rows, columns);
}

void sum_rows_apart(float* part, const float* tile, size_t stride, int rows, int columns, int apart) {
    for (int c = 0; c < columns; c += kLanes) {
        Floats total{};
        for (int first = 0; first < apart; first++) {
            Floats sum{};
            for (int r = first; r < rows; r += apart) sum += load(tile + static_cast<size_t>(r) * stride + c);
            total += sum;
        }
        store(part + c, total);
    }
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

namespace {

// The result of quantizing (N, C) values.
template <class F8>
struct TileCall {
    F8 *row, *transposed;  // (N, C) and (C, N)
    float* parts;          // (N / kTile, C)   sums of the columns of each tile, or nullptr
    Fp8State* state;
    int N, C;
    QuantizePass pass;
};

// produce(row, column) returns a vector of values.
template <class F8, class Produce>
void quantize_tiles(const TileCall<F8>& t, const Produce& produce) {
    const size_t N = static_cast<size_t>(t.N), C = static_cast<size_t>(t.C);
    const float scale = t.state->scale;
    for_each_tile(t.state, t.N, t.C, t.pass, [&](int first_row, int first_column, Tally& tally) {
        const int rows = std::min(kTile, t.N - first_row), columns = std::min(kTile, t.C - first_column);
        alignas(64) float values[kTile * kTile];
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c += kLanes)
                store(values + r * kTile + c,
                      produce(static_cast<size_t>(first_row + r), static_cast<size_t>(first_column + c)));
        const size_t row = static_cast<size_t>(first_row), column = static_cast<size_t>(first_column);
        quantize_rows<F8>({t.row ? t.row + row * C + column : nullptr, C,
                           t.transposed ? t.transposed + column * N + row : nullptr, N},
                          tally, values, kTile, rows, columns, scale, t.pass);
        // A thread of the kernels has every 32nd row.
        if (t.parts) sum_rows_apart(t.parts + row / kTile * C + column, values, kTile, rows, columns, 32);
    });
}

}  // namespace

// Returns a vector of a producer's values (N, C).
static LLMC_INLINE Floats values_at(const Bf16Values& of, size_t row, size_t column, size_t C) {
    const size_t at = row * C + column;
    return of.inp_low ? load(of.inp + at) + load(of.inp_low + at) : load(of.inp + at);
}
static LLMC_INLINE Floats rounded_for(Gelu, Floats x) { return x; }
static LLMC_INLINE Floats rounded_for(Relu2, Floats x) { return rounded_to<bf16>(x); }
template <class Formula>
static LLMC_INLINE Floats values_at(const ActivationValues<Formula>& of, size_t row, size_t column, size_t C) {
    return rounded_for(Formula(), value_of(Formula(), load(of.inp + row * C + column)));
}
template <class Formula>
static LLMC_INLINE Floats values_at(const ActivationGradientValues<Formula>& of, size_t row, size_t column, size_t C) {
    const size_t at = row * C + column;
    return rounded_for(Formula(), load(of.dout + at) * derivative_of(Formula(), load(of.inp + at)));
}
static LLMC_INLINE Floats values_at(const SwigluValues& of, size_t row, size_t column, size_t C) {
    const bf16* gate = of.inp + row * 2 * C + column;
    return rounded_to<bf16>(swiglu_of(load(gate), load(gate + C)));
}
static LLMC_INLINE Floats values_at(const SwigluGradientValues& of, size_t row, size_t column, size_t C) {
    const size_t F = C / 2, own = column < F ? column : column - F;
    const bf16* gate = of.inp + row * C + own;
    const Floats d = load(of.dout + row * F + own);
    return rounded_to<bf16>(column < F ? swiglu_gate_gradient(d, load(gate), load(gate + F))
                                       : swiglu_up_gradient(d, load(gate)));
}

template <class F8, class Producer>
void quantize_tile(const Grid&, F8* row, F8* transposed, float* parts, Fp8State* state, Producer producer, int N, int C,
                   QuantizePass pass) {
    quantize_tiles<F8>({row, transposed, parts, state, N, C, pass},
                       [=](size_t r, size_t c) { return values_at(producer, r, c, static_cast<size_t>(C)); });
}
LLMC_INSTANTIATE(quantize_tile<e4m3, Bf16Values>);
LLMC_INSTANTIATE(quantize_tile<e5m2, Bf16Values>);
LLMC_INSTANTIATE(quantize_tile<e5m2, ActivationGradientValues<Gelu>>);
LLMC_INSTANTIATE(quantize_tile<e5m2, ActivationGradientValues<Relu2>>);
LLMC_INSTANTIATE(quantize_tile<e5m2, SwigluGradientValues>);
LLMC_INSTANTIATE(quantize_tile<e4m3, ActivationValues<Gelu>>);
LLMC_INSTANTIATE(quantize_tile<e4m3, ActivationValues<Relu2>>);
LLMC_INSTANTIATE(quantize_tile<e4m3, SwigluValues>);

template <class Master>
void quantize_weight(const Grid&, e4m3* row, e4m3* transposed, Fp8State* state, const Master* master, int R, int C,
                     QuantizePass pass) {
    quantize_tiles<e4m3>({row, transposed, nullptr, state, R, C, pass},
                         [=](size_t r, size_t c) { return load(master + r * C + c); });
}
LLMC_INSTANTIATE_BOTH(quantize_weight, float, bf16);

template <class Master>
void quantize_flat(const Grid&, e4m3* codes, const Master* master, size_t count, Fp8State* state, QuantizePass pass) {
    constexpr size_t kTask = 4096;
    const float scale = state->scale;
#pragma omp parallel if (count > kTask)
    {
        Tally tally;
#pragma omp for schedule(static)
        for (size_t begin = 0; begin < count; begin += kTask) {
            const size_t n = std::min(kTask, count - begin);
            float values[kTask];
            e4m3 cast[kTask];
            for (size_t i = 0; i < n; i++) values[i] = to_float(master[begin + i]);
            std::fill(values + n, values + kTask, 0.0f);  // zeros change no count
            quantize_rows<e4m3>({cast, 0, nullptr, 0}, tally, values, 0, 1, kTask, scale, pass);
            if (writes_fp8(pass)) std::memcpy(codes + begin, cast, n);
        }
        commit(state, tally, 0, pass);
    }
    commit(state, {}, count, pass);
}

template <class F8>
void transpose_codes(const Grid&, F8* transposed, const F8* codes, int R, int C) {
    const size_t rows = static_cast<size_t>(R), columns = static_cast<size_t>(C);
#pragma omp parallel for schedule(static) if (rows * columns > 8192)
    for (int c = 0; c < C; c += kTile)
        for (int r = 0; r < R; r += kTile) {
            const size_t row = static_cast<size_t>(r), column = static_cast<size_t>(c);
            turn_rectangle(reinterpret_cast<uint8_t*>(transposed + column * rows + row), rows,
                           reinterpret_cast<const uint8_t*>(codes + row * columns + column), columns,
                           std::min(kTile, R - r), std::min(kTile, C - c));
        }
}

LLMC_INSTANTIATE_BOTH(quantize_rows, e4m3, e5m2);
LLMC_INSTANTIATE_BOTH(quantize_flat, float, bf16);
LLMC_INSTANTIATE_BOTH(transpose_codes, e4m3, e5m2);

}  // namespace llmc::host
