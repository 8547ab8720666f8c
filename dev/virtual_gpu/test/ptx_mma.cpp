// mma.sync against sums of its matrices' products. Fragments are laid out by the PTX ISA's formulas ("Matrix Fragments
// for mma.m16n8k16", "... m16n8k32"). The sums equal those of the arithmetic that VIRTUAL_GPU_ARITHMETIC names, bit by
// bit, and are near the exact ones within a bound that follows from the roundings.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "dev/virtual_gpu/arithmetic/formats.h"
#include "dev/virtual_gpu/arithmetic/fused_sum.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

constexpr int kRows = 16, kColumns = 8;

struct Format {
    const char* name;
    int bits, mantissa_bits, bias;
    bool has_infinity;
    float (*value)(uint32_t code);
    int least_exponent() const { return 1 - bias; }
};
const Format kBf16{"bf16", 16, 7, 127, true, [](uint32_t code) { return float_of_bf16(static_cast<uint16_t>(code)); }},
    kE4M3{"e4m3", 8, 3, 7, false, [](uint32_t code) { return float_of_e4m3(static_cast<uint8_t>(code)); }},
    kE5M2{"e5m2", 8, 2, 15, true, [](uint32_t code) { return float_of_e5m2(static_cast<uint8_t>(code)); }};

struct Matrices {
    Format fa, fb;
    int K;
    std::vector<uint32_t> a, b;  // codes: rows of a, columns of b
    std::vector<float> c;
    uint32_t& A(int m, int k) { return a[static_cast<size_t>(m * K + k)]; }
    uint32_t& B(int k, int n) { return b[static_cast<size_t>(n * K + k)]; }
    float& C(int m, int n) { return c[static_cast<size_t>(m * kColumns + n)]; }
};

Matrices matrices(const Format& fa, const Format& fb) {
    const int K = fa.bits == 16 ? 16 : 32;
    Matrices m{fa, fb, K, {}, {}, {}};
    m.a.resize(static_cast<size_t>(kRows * K));
    m.b.resize(static_cast<size_t>(kColumns * K));
    m.c.resize(kRows * kColumns);
    return m;
}

// The words of the fragments, register by register, 32 lanes each: A's four, B's two, C's four.
std::vector<uint32_t> fragments(Matrices& m) {
    const int in_word = 32 / m.fa.bits, half = m.K / 2;
    std::vector<uint32_t> words(10 * 32);
    for (int lane = 0; lane < 32; lane++) {
        const int group = lane >> 2, thread = lane % 4;
        const auto word = [&](int reg) -> uint32_t& { return words[static_cast<size_t>(reg * 32 + lane)]; };
        for (int i = 0; i < 4 * in_word; i++) {
            const bool second_row = i / in_word % 2 == 1, second_half = i >= 2 * in_word;
            const uint32_t code =
                m.A(group + (second_row ? 8 : 0), thread * in_word + i % in_word + (second_half ? half : 0));
            word(i / in_word) |= code << (i % in_word * m.fa.bits);
        }
        for (int i = 0; i < 2 * in_word; i++)
            word(4 + i / in_word) |= m.B(thread * in_word + i % in_word + (i >= in_word ? half : 0), group)
                                     << (i % in_word * m.fa.bits);
        for (int i = 0; i < 4; i++)
            word(6 + i) = std::bit_cast<uint32_t>(m.C(group + (i >= 2 ? 8 : 0), thread * 2 + (i & 1)));
    }
    return words;
}

std::vector<float> multiply(Matrices& m) {
    const Buffer in(fragments(m)), out(512);
    const std::string shape = m.K == 16 ? "m16n8k16" : "m16n8k32";
    std::string text = element_address(20, 0, 4) + element_address(21, 1, 4);
    for (int n = 0; n < 10; n++) text += ptx("ld.global.$1$2, [%rd21+$3]; ", n < 6 ? "u32 %r" : "f32 %f", n, 128 * n);
    text +=
        ptx("mma.sync.aligned.$1.row.col.f32.$2.$3.f32 "
            "{%f6, %f7, %f8, %f9}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f6, %f7, %f8, %f9}; ",
            shape, m.fa.name, m.fb.name);
    for (int n = 0; n < 4; n++) text += ptx("st.global.f32 [%rd20+$1], %f$2; ", 128 * n, 6 + n);
    run_snippet(text, {out.address(), in.address()});
    const auto words = out.read<float>();
    std::vector<float> d(kRows * kColumns);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            d[static_cast<size_t>((lane / 4 + (i >= 2 ? 8 : 0)) * kColumns + lane % 4 * 2 + (i & 1))] =
                words[static_cast<size_t>(32 * i + lane)];
    return d;
}

float canonical_or(float x) { return x == x ? x : std::bit_cast<float>(0x7fffffffu); }

// The result in the simulated arithmetic, from its definition.
float expected(const std::vector<float>& a, const std::vector<float>& b, float c, const Matrices& m) {
    if (options().arithmetic == Arithmetic::fp32) {
        for (size_t k = 0; k < a.size(); k++) c = std::fma(a[k], b[k], c);
        return canonical_or(c);
    }
    const TensorCore core = tensor_core(options().arithmetic, m.K == 16 ? Operands::bf16 : Operands::fp8);
    return tensor_sum(a.data(), b.data(), m.K, c, core, {m.fa.least_exponent(), m.fb.least_exponent()});
}

// The largest error of the result, relative to the sum of the terms' magnitudes. In FP32 each of K additions rounds to
// 2^-24 of a partial sum. Tensor cores truncate each step's terms (and the addend) below 2^-f of the largest, and the
// result below 2^-23 or 2^-13. If every number is normal, the largest exponent is at most that of the sum.
double relative_bound(int K) {
    const double rest = 1.01;  // covers products of errors, and rounding of the bound's own sums
    if (options().arithmetic == Arithmetic::fp32) return rest * K * 0x1p-24;
    const TensorCore core = tensor_core(options().arithmetic, K == 16 ? Operands::bf16 : Operands::fp8);
    const double cut = (core.step + 1) * std::ldexp(1, -core.fraction_bits) + (core.short_result ? 0x1p-13 : 0x1p-23);
    return rest * K / core.step * cut;
}

// If all numbers are `normal`, checks the bound too.
void check(Matrices m, bool normal) {
    const std::vector<float> d = multiply(m);
    bool same = true, near = true;
    for (int row = 0; row < kRows; row++)
        for (int column = 0; column < kColumns; column++) {
            std::vector<float> a, b;
            double sum = m.C(row, column), magnitudes = std::fabs(sum);
            for (int k = 0; k < m.K; k++) {
                a.push_back(m.fa.value(m.A(row, k)));
                b.push_back(m.fb.value(m.B(k, column)));
                const double term = static_cast<double>(a.back()) * static_cast<double>(b.back());
                sum += term;
                magnitudes += std::fabs(term);
            }
            const float result = d[static_cast<size_t>(row * kColumns + column)];
            const float wanted = canonical_or(expected(a, b, m.C(row, column), m));
            same &= std::bit_cast<uint32_t>(result) == std::bit_cast<uint32_t>(wanted);
            near &= std::fabs(result - sum) <= relative_bound(m.K) * magnitudes;
        }
    CHECK_MESSAGE(same, m.fa.name << " " << m.fb.name);
    if (normal) CHECK_MESSAGE(near, m.fa.name << " " << m.fb.name);
}

using Fill = uint32_t (*)(const Format&, std::mt19937&);

// Exponents in the middle, away from subnormal numbers, infinities and overflow.
uint32_t ordinary(const Format& f, std::mt19937& random) {
    const uint32_t spread = f.bits == 16 ? 40 : static_cast<uint32_t>(f.bias);
    const uint32_t field = static_cast<uint32_t>(f.bias) - spread / 2 + random() % spread;
    const uint32_t mantissa = random() % (1u << f.mantissa_bits);
    return (random() & 1) << (f.bits - 1) | field << f.mantissa_bits | mantissa;
}
uint32_t any(const Format& f, std::mt19937& random) { return random() % (1u << f.bits); }
uint32_t small(const Format& f, std::mt19937& random) {  // subnormal, zero or barely normal
    return (random() & 1) << (f.bits - 1) | random() % (3u << f.mantissa_bits);
}

Matrices filled(const Format& fa, const Format& fb, Fill fill, std::mt19937& random) {
    Matrices m = matrices(fa, fb);
    for (uint32_t& x : m.a) x = fill(fa, random);
    for (uint32_t& x : m.b) x = fill(fb, random);
    for (float& x : m.c)
        x = std::ldexp(static_cast<float>(random() >> 8) - 0x1p23f, static_cast<int>(random() % 40) - 40);
    return m;
}

const std::pair<Format, Format> kPairs[] = {
    {kBf16, kBf16}, {kE4M3, kE4M3}, {kE4M3, kE5M2}, {kE5M2, kE4M3}, {kE5M2, kE5M2}};

}  // namespace

TEST_CASE("ptx mma: ordinary operands") {
    std::mt19937 random(1);
    for (const auto& [fa, fb] : kPairs)
        for (int n = 0; n < 8; n++) check(filled(fa, fb, ordinary, random), true);
}

// Large terms that cancel and leave the small ones: the result depends on the arithmetic's order and alignment.
TEST_CASE("ptx mma: cancellation") {
    std::mt19937 random(2);
    for (const auto& [fa, fb] : kPairs)
        for (int n = 0; n < 8; n++) {
            Matrices m = filled(fa, fb, ordinary, random);
            for (int row = 0; row < kRows; row++)
                for (int k = 1; k < m.K; k += 2 + n) m.A(row, k) = m.A(row, k - 1) ^ 1u << (fa.bits - 1);
            for (int column = 0; column < kColumns; column++)
                for (int k = 1; k < m.K; k += 2 + n) m.B(k, column) = m.B(k - 1, column);
            check(m, true);
        }
}

TEST_CASE("ptx mma: subnormal numbers, infinities and NaN") {
    std::mt19937 random(3);
    for (const auto& [fa, fb] : kPairs)
        for (int n = 0; n < 8; n++) {
            check(filled(fa, fb, small, random), false);
            check(filled(fa, fb, any, random), false);
            // A single special operand or addend.
            Matrices m = filled(fa, fb, ordinary, random);
            const uint32_t top = (1u << (fa.bits - 1)) - 1, infinity = top & ~((1u << fa.mantissa_bits) - 1);
            m.A(1, 3) = top;
            if (fa.has_infinity) m.A(2, 5) = infinity;
            m.C(4, 4) = -INFINITY;
            m.C(5, 5) = NAN;
            m.C(6, 6) = std::numeric_limits<float>::max();
            check(m, false);
            const std::vector<float> d = multiply(m);
            CHECK(std::bit_cast<uint32_t>(d[1 * kColumns]) == 0x7fffffffu);
            CHECK(d[4 * kColumns + 4] == -INFINITY);
            CHECK(std::bit_cast<uint32_t>(d[5 * kColumns + 5]) == 0x7fffffffu);
            if (fa.has_infinity) CHECK(std::isinf(d[2 * kColumns + 1]));
        }
}

TEST_CASE("ptx: mma in the arithmetic of each generation") {
    for (const char* arithmetic : {"ampere", "ada", "hopper", "blackwell"})
        expect_cases("ptx mma", {{"VIRTUAL_GPU_ARITHMETIC", arithmetic}});
}

}  // namespace virtual_gpu::test
