// Vector types and arithmetic of the CPU loops: sixteen floats with AVX-512, otherwise eight.
//
// The number of lanes never decides the order of a sum, so results have the same bits on every CPU. The arithmetic is
// that of llmc/device/math.cuh and formats.cuh, and of activation.cuh at the end, function by function.
#pragma once
#include <algorithm>
#include <cstring>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "llmc/device/formats.cuh"
#include "llmc/kernels/activation.cuh"

#define LLMC_INLINE inline __attribute__((always_inline))

namespace llmc::host {

// g++ 12 makes slow code of vectors that are wider than the CPU's registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int kEights = kLanes / 8;  // groups of eight in a vector

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

LLMC_INLINE Floats splat(float x) { return Floats{} + x; }
LLMC_INLINE Words bits_of(Floats x) { return reinterpret_cast<Words>(x); }
LLMC_INLINE Floats from_bits(Words x) { return reinterpret_cast<Floats>(x); }
LLMC_INLINE Ints lane_numbers() {
    Ints numbers;
    for (int i = 0; i < kLanes; i++) numbers[i] = i;
    return numbers;
}

LLMC_INLINE bool any_lane(Ints condition) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(condition), reinterpret_cast<__m512i>(condition)) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < kLanes; i++) any |= condition[i];
    return any != 0;
#endif
}

// ---- memory ---------------------------------------------------------------------------------------------------------

LLMC_INLINE Floats load(const float* p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
LLMC_INLINE Floats load(const bf16* p) {
    Halves v;
    std::memcpy(&v, p, sizeof v);
    return from_bits(__builtin_convertvector(v, Words) << 16);
}
LLMC_INLINE Words bf16_bits(Floats x) {
    const Words bits = bits_of(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bits & kFloatMagnitudeMask) > kFloatInfinityBits ? Words{} + 0x7fffu : rounded;
}
LLMC_INLINE void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
LLMC_INLINE void store(bf16* p, Floats x) {
    const Halves v = __builtin_convertvector(bf16_bits(x), Halves);
    std::memcpy(static_cast<void*>(p), &v, sizeof v);
}
// Returns the value that a load returns after x was stored as Real.
template <class Real>
LLMC_INLINE Floats rounded_to(Floats x) {
    if constexpr (sizeof(Real) == 4) return x;
    return from_bits(bf16_bits(x) << 16);
}
// Load and store only the first n lanes if n is less than kLanes. Lanes that are not loaded are zeros.
template <class Real>
LLMC_INLINE Floats load_first(const Real* p, int n) {
    if (n >= kLanes) return load(p);
    Real values[kLanes] = {};
    std::memcpy(static_cast<void*>(values), p, static_cast<size_t>(n) * sizeof(Real));
    return load(values);
}
template <class Real>
LLMC_INLINE void store_first(Real* p, Floats v, int n) {
    if (n >= kLanes) return store(p, v);
    Real values[kLanes];
    store(values, v);
    std::memcpy(static_cast<void*>(p), values, static_cast<size_t>(n) * sizeof(Real));
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

LLMC_INLINE Floats max_of(Floats a, Floats b) { return a > b ? a : b; }

// a * b + c for exact products: a fused instruction gives the same bits as two.
LLMC_INLINE Floats add_exact_product(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_fmadd_ps(a, b, c));
#elif defined(__FMA__)
    return reinterpret_cast<Floats>(_mm256_fmadd_ps(a, b, c));
#else
    return a * b + c;
#endif
}

// Computes exp2_fast() of each lane.
LLMC_INLINE Floats exp2_of(Floats x) {
    Floats clamped = x < -126.0f ? splat(-126.0f) : x;
    clamped = clamped > 128.0f ? splat(128.0f) : clamped;
    const Floats shifted = clamped + 12582912.0f;
    const Floats fraction = clamped - (shifted - 12582912.0f);
    Floats p = 1.5401e-4f * fraction + 1.33908e-3f;
    p = p * fraction + 9.6180e-3f;
    p = p * fraction + 5.550357e-2f;
    p = p * fraction + 2.40226507e-1f;
    p = p * fraction + 6.93147180e-1f;
    p = p * fraction + 1.0f;
    const Floats result = from_bits(bits_of(p) + (bits_of(shifted) << 23));
    const Floats not_nan = x < -126.0f ? splat(0.0f) : result;
    return x != x ? x : not_nan;
}

// Transposes a square of vectors in rounds that interleave the first half of the rows with the second.
LLMC_INLINE void transpose(Floats (&x)[kLanes]) {
    const Ints lanes = lane_numbers(), first = lanes / 2 + lanes % 2 * kLanes;
    for (int round = 1; round < kLanes; round *= 2) {
        Floats y[kLanes];
        for (int i = 0; i < kLanes / 2; i++) {
            const Floats a = x[i], b = x[i + kLanes / 2];
            y[2 * i] = __builtin_shuffle(a, b, first);
            y[2 * i + 1] = __builtin_shuffle(a, b, first + kLanes / 2);
        }
        for (int i = 0; i < kLanes; i++) x[i] = y[i];
    }
}

// Each lane gets the one whose number differs in the bits of kMask.
template <int kMask>
LLMC_INLINE Floats swap_lanes(Floats x) {
    return __builtin_shuffle(x, lane_numbers() ^ kMask);
}

// Sets the lanes from n on to zero.
LLMC_INLINE Floats first_lanes(Floats x, int n) {
    const Ints inside = lane_numbers() < n;
    return inside ? x : Floats{};
}

// ---- sums over lanes ------------------------------------------------------------------------------------------------

// Each lane gets the sum of its group of eight: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
LLMC_INLINE Floats sum_of_eights(Floats x) {
    x += swap_lanes<1>(x);
    x += swap_lanes<2>(x);
    return x + swap_lanes<4>(x);
}

// The sum that a warp computes with warp_sum() when the value of its lane t is stored in all of x[8 t] to x[8 t + 7]
// (x has 256 floats): a butterfly over lanes 16, 8, 4, 2 and 1 apart. Elements from `count` on count as zeros.
LLMC_INLINE float warp_sum(Floats* x, int count) {
    constexpr int kVectors = 256 / kLanes;
    for (int i = std::min((count + kLanes - 1) / kLanes, kVectors); i < kVectors; i++) x[i] = Floats{};
    for (int half = kVectors / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return kEights == 2 ? x[0][0] + x[0][kLanes - 8] : x[0][0];
}
// Adds the second half of the values to the first, and so on until one is left. The kernels' butterflies over lanes and
// their block_sum() add in this order.
template <class T, size_t N>
LLMC_INLINE T tree_sum(T (&values)[N]) {
    for (size_t half = N / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) values[i] += values[i + half];
    return values[0];
}
// Adds value(i) to sums[i % N] for each i below `count`, as N threads of a block do that take every N-th value.
template <class T, size_t N, class Value>
LLMC_INLINE void add_in_turn(T (&sums)[N], size_t count, const Value& value) {
    for (size_t first = 0; first < count; first += N)
        for (size_t i = 0; i < std::min(N, count - first); i++) sums[i] += value(first + i);
}

// ---- activations ----------------------------------------------------------------------------------------------------

LLMC_INLINE Floats gelu_gate_of(Floats x) {
    return 1.0f / (1.0f + exp2_of(x * (-2.3022081985f + -0.1029432393f * x * x)));
}
LLMC_INLINE Floats value_of(Gelu, Floats x) { return x * gelu_gate_of(x); }
LLMC_INLINE Floats derivative_of(Gelu, Floats x) {
    const Floats gate = gelu_gate_of(x), slope = 1.5957691216f + 0.2140644488f * x * x;
    return gate + x * gate * (1.0f - gate) * slope;
}

LLMC_INLINE Floats relu_of(Floats x) { return x < 0.0f ? Floats{} : x; }
LLMC_INLINE Floats value_of(Relu2, Floats x) { return relu_of(x) * relu_of(x); }
LLMC_INLINE Floats derivative_of(Relu2, Floats x) { return 2.0f * relu_of(x); }

LLMC_INLINE Floats sigmoid_of(Floats x) { return 1.0f / (1.0f + exp2_of(-x * 1.4426950408889634f)); }
LLMC_INLINE Floats swiglu_of(Floats gate, Floats up) { return up * (gate * sigmoid_of(gate)); }
LLMC_INLINE Floats swiglu_gate_gradient(Floats dout, Floats gate, Floats up) {
    const Floats s = sigmoid_of(gate);
    return dout * up * (s + gate * s * (1.0f - s));
}
LLMC_INLINE Floats swiglu_up_gradient(Floats dout, Floats gate) { return dout * (gate * sigmoid_of(gate)); }

}  // namespace llmc::host
