// Number formats and the sums of tensor cores: every code in both directions, every case of rounding, and sums against
// a second way of computing them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "dev/virtual_gpu/arithmetic/fused_sum.h"

using namespace virtual_gpu;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// Calls f with every float whose upper half is arbitrary and whose lower half decides a rounding. The formats here only
// see whether the lower half is zero, below, at or above its middle.
template <class F>
void for_every_rounding(F f) {
    for (uint32_t upper = 0; upper < 65536; upper++)
        for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) f(from_bits(upper << 16 | lower));
}

// The finite numbers of a format by magnitude, with their codes.
std::map<double, uint32_t> finite_codes(uint32_t count, float (*decode)(uint8_t)) {
    std::map<double, uint32_t> codes;
    for (uint32_t code = 0; code < count; code++) codes[decode(static_cast<uint8_t>(code))] = code;
    REQUIRE(codes.size() == count);
    return codes;
}

// The code of the nearest number, found by comparing distances. A tie goes to the even code.
uint32_t nearest(const std::map<double, uint32_t>& codes, double magnitude) {
    const auto above = codes.lower_bound(magnitude);
    if (above == codes.end()) return codes.rbegin()->second;
    if (above == codes.begin()) return above->second;
    const auto below = std::prev(above);
    const double up = above->first - magnitude, down = magnitude - below->first;
    if (up == down) return above->second % 2 ? below->second : above->second;
    return up < down ? above->second : below->second;
}

size_t wrong_roundings(uint32_t count, uint8_t (*encode)(float), float (*decode)(uint8_t)) {
    const std::map<double, uint32_t> codes = finite_codes(count, decode);
    size_t wrong = 0;
    for_every_rounding([&](float x) {
        const uint32_t sign = std::signbit(x) ? 0x80 : 0;
        const uint32_t expected = std::isnan(x) ? 0x7f : sign | nearest(codes, std::fabs(static_cast<double>(x)));
        wrong += encode(x) != expected;
    });
    return wrong;
}

// The same as fused_sum(), on significands and exponents of doubles: every step is exact for terms of normal size.
float reference_sum(const std::vector<float>& a, const std::vector<float>& b, float c, int fraction_bits, int kept_bits,
                    int least) {
    struct Part {
        double significand;
        int exponent;
    };
    const auto part = [](float x, int least_exponent) {
        if (x == 0) return Part{0, -126};
        const int exponent = std::max(std::ilogb(x), least_exponent);
        return Part{std::ldexp(static_cast<double>(x), -exponent), exponent};
    };
    std::vector<Part> parts{part(c, -126)};
    for (size_t i = 0; i < a.size(); i++) {
        const Part x = part(a[i], least), y = part(b[i], least);
        parts.push_back({x.significand * y.significand, x.exponent + y.exponent});
    }
    int top = parts[0].exponent;
    for (const Part& p : parts) top = std::max(top, p.exponent);
    double sum = 0;
    for (const Part& p : parts) sum += std::trunc(std::ldexp(p.significand, fraction_bits + p.exponent - top));
    if (sum == 0) return 0;
    const double value = std::ldexp(sum, top - fraction_bits);
    const int unit = std::max(std::ilogb(value), -126) - kept_bits;
    return static_cast<float>(std::ldexp(std::trunc(std::ldexp(value, -unit)), unit));
}

}  // namespace

TEST_CASE("virtual_gpu arithmetic: FP8 numbers are those of the OCP specification") {
    CHECK(float_of_e4m3(0x7e) == 448.0f);
    CHECK(float_of_e4m3(0x08) == 0x1p-6f);    // smallest normal
    CHECK(float_of_e4m3(0x07) == 0x1.cp-7f);  // largest subnormal
    CHECK(float_of_e4m3(0x01) == 0x1p-9f);
    CHECK(float_of_e4m3(0x38) == 1.0f);
    CHECK(float_of_e5m2(0x7b) == 57344.0f);
    CHECK(float_of_e5m2(0x04) == 0x1p-14f);
    CHECK(float_of_e5m2(0x03) == 0x1.8p-15f);
    CHECK(float_of_e5m2(0x01) == 0x1p-16f);
    CHECK(float_of_e5m2(0x3c) == 1.0f);
    CHECK(float_of_e5m2(0x7c) == kInfinity);
    CHECK(float_of_e5m2(0xfc) == -kInfinity);
    for (const uint8_t nan : {0x7f, 0xff}) CHECK(bits_of(float_of_e4m3(nan)) == kNaNBits);
    for (const uint8_t nan : {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff}) CHECK(bits_of(float_of_e5m2(nan)) == kNaNBits);
    CHECK(std::signbit(float_of_e4m3(0x80)));
    CHECK(std::signbit(float_of_e5m2(0x80)));
}

TEST_CASE("virtual_gpu arithmetic: every finite FP8 code comes back") {
    for (int code = 0; code < 256; code++) {
        const auto c = static_cast<uint8_t>(code);
        if ((code & 0x7f) < 0x7f) CHECK(e4m3_of(float_of_e4m3(c)) == c);
        if ((code & 0x7f) < 0x7c) CHECK(e5m2_of(float_of_e5m2(c)) == c);
    }
}

TEST_CASE("virtual_gpu arithmetic: FP8 is the nearest number, ties to even, saturating") {
    CHECK(wrong_roundings(0x7f, e4m3_of, float_of_e4m3) == 0);
    CHECK(wrong_roundings(0x7c, e5m2_of, float_of_e5m2) == 0);
    CHECK(wrong_roundings(0x7c, e4m3_of, float_of_e5m2) > 0);  // shows that the comparison notices a wrong format
    CHECK(e4m3_of(kInfinity) == 0x7e);
    CHECK(e5m2_of(-kInfinity) == 0xfb);
    CHECK(e4m3_of(from_bits(0xffc00000u)) == 0x7f);
}

TEST_CASE("virtual_gpu arithmetic: bf16 is the nearest number, ties to even") {
    size_t wrong = 0;
    for_every_rounding([&](float x) {
        const uint32_t bits = bits_of(x);
        if (std::isnan(x)) {
            wrong += bf16_of(x) != 0x7fff;
            return;
        }
        const double value = x, below = float_of_bf16(static_cast<uint16_t>(bits >> 16));
        const uint16_t next = static_cast<uint16_t>((bits >> 16) + 1);
        // The place after the largest number counts as 2^128.
        const double above = std::isinf(float_of_bf16(next)) ? std::copysign(0x1p128, value) : float_of_bf16(next);
        const double up = std::fabs(above - value), down = std::fabs(value - below);
        const bool go_up = std::isfinite(x) && (up < down || (up == down && next % 2 == 0));
        wrong += bf16_of(x) != (go_up ? next : static_cast<uint16_t>(bits >> 16));
    });
    CHECK(wrong == 0);
    CHECK(bf16_of(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("virtual_gpu arithmetic: UE8M0 is a power of two at least as large, or at most") {
    for (int code = 0; code < 255; code++) {
        const auto c = static_cast<uint8_t>(code);
        CHECK(float_of_ue8m0(c) == std::ldexp(1.0f, code - 127));
        CHECK(ue8m0_of(float_of_ue8m0(c), true) == c);
        CHECK(ue8m0_of(float_of_ue8m0(c), false) == c);
    }
    CHECK(bits_of(float_of_ue8m0(0xff)) == kNaNBits);
    CHECK(ue8m0_of(from_bits(kNaNBits), true) == 0xff);
    CHECK(ue8m0_of(kInfinity, true) == 254);
    CHECK(ue8m0_of(0.0f, true) == 0);
    size_t wrong = 0;
    for_every_rounding([&](float x) {
        if (!std::isfinite(x)) return;
        const float magnitude = std::fabs(x);
        const uint8_t up = ue8m0_of(x, true), down = ue8m0_of(x, false);
        wrong += up < 254 && float_of_ue8m0(up) < magnitude;
        wrong += up > 0 && float_of_ue8m0(static_cast<uint8_t>(up - 1)) >= magnitude;
        wrong += down > 0 && float_of_ue8m0(down) > magnitude;
        wrong += down < 254 && float_of_ue8m0(static_cast<uint8_t>(down + 1)) <= magnitude;
    });
    CHECK(wrong == 0);
}

TEST_CASE("virtual_gpu arithmetic: tf32 keeps 10 fraction bits") {
    CHECK(tf32_of(1.0f + 0x1p-11f) == 1.0f + 0x1p-10f);  // a tie rounds away from zero
    CHECK(tf32_of(-1.0f - 0x1p-11f) == -1.0f - 0x1p-10f);
    CHECK(tf32_of(1.0f + 0x1p-11f - 0x1p-23f) == 1.0f);
    CHECK(tf32_truncated(1.0f + 0x1p-10f - 0x1p-23f) == 1.0f);
    CHECK(tf32_of(kInfinity) == kInfinity);
    CHECK(tf32_truncated(-kInfinity) == -kInfinity);
    CHECK(bits_of(tf32_of(from_bits(0x7f800001u))) == kNaNBits);
    CHECK(bits_of(tf32_truncated(from_bits(0x7f800001u))) == kNaNBits);
    size_t wrong = 0;
    for_every_rounding([&](float x) {
        if (!std::isfinite(x)) return;
        const uint32_t down = bits_of(x) & 0xffffe000;  // the neighbour towards zero
        for (const uint32_t lost : {0x0fffu, 0x1000u, 0x1001u})
            wrong += bits_of(tf32_of(from_bits(down | lost))) != (lost < 0x1000 ? down : down + 0x2000);
    });
    CHECK(wrong == 0);
}

TEST_CASE("virtual_gpu arithmetic: a fused sum loses bits below its fraction") {
    const std::vector<float> ones(16, 1.0f), small(16, 0x1p-25f), smaller(16, 0x1p-26f);
    CHECK(fused_sum(ones.data(), small.data(), 16, 1.0f, 25, false) == 1.0f + 0x1p-21f);
    CHECK(fused_sum(ones.data(), smaller.data(), 16, 1.0f, 25, false) == 1.0f);  // each is truncated before it is added
    CHECK(fused_sum(ones.data(), small.data(), 16, 1.0f, 24, false) == 1.0f);
    CHECK(fused_sum(ones.data(), smaller.data(), 16, 0.0f, 25, false) == 0x1p-22f);
    // Truncation is towards zero, on both sides, also in the result.
    const float a[] = {1.0f, 1.0f}, b[] = {0x1.8p-24f, 0x1.8p-24f};
    CHECK(fused_sum(a, b, 2, 1.0f, 25, false) == 1.0f + 0x1p-23f);
    CHECK(fused_sum(a, b, 1, 1.0f, 25, false) == 1.0f);
    const float minus[] = {-1.0f, -1.0f};
    CHECK(fused_sum(minus, b, 1, -1.0f, 25, false) == -1.0f);
    CHECK(fused_sum(minus, b, 1, 1.0f, 25, false) == 1.0f - 0x1p-23f);  // 1 - 1.5 * 2^-24, truncated
    // The short result of FP8 on Ada and Hopper.
    const float c[] = {0x1p-13f}, d[] = {0x1p-14f};
    CHECK(fused_sum(ones.data(), c, 1, 1.0f, 13, true) == 1.0f + 0x1p-13f);
    CHECK(fused_sum(ones.data(), d, 1, 1.0f, 13, true) == 1.0f);
    CHECK(fused_sum(ones.data(), d, 1, 1.0f, 25, true) == 1.0f);
    CHECK(fused_sum(ones.data(), d, 1, 1.0f, 25, false) == 1.0f + 0x1p-14f);
}

TEST_CASE("virtual_gpu arithmetic: subnormal operands are aligned as they are stored") {
    // 2^-9 * 8 + 1.125^2 * 2^-12: E4M3's 2^-9 has the exponent -6, so the sum is truncated at 2^(-6 + 3 - 13).
    const float a[] = {0x1p-9f, 0x1.2p-6f}, b[] = {8.0f, 0x1.2p-6f};
    const float exact = 0x1p-6f + 81 * 0x1p-18f;
    CHECK(fused_sum(a, b, 2, 0.0f, 13, false) == exact);
    CHECK(fused_sum(a, b, 2, 0.0f, 13, false, {kLeastExponentE4M3, kLeastExponentE4M3}) == exact - 0x1p-18f);
    // In FP32: 2^-149 is a multiple of itself, not of 2^-126 / 2^25.
    const float tiny[] = {0x1p-149f}, one[] = {1.0f}, big[] = {0x1p23f};
    CHECK(fused_sum(tiny, one, 1, 0.0f, 25, false) == 0x1p-149f);
    CHECK(fused_sum(tiny, big, 1, 0x1p-126f, 25, false) == 0x1p-125f);
    CHECK(bits_of(fused_sum(tiny, tiny, 1, 0.0f, 25, false)) == 0);
}

TEST_CASE("virtual_gpu arithmetic: scales of MX blocks move the products, not the addend") {
    const float a[] = {1.5f}, b[] = {1.0f};
    CHECK(fused_sum(a, b, 1, 1.0f, 25, false, {kLeastExponentE4M3, kLeastExponentE4M3, 4}) == 25.0f);
    CHECK(fused_sum(a, b, 1, 1.0f, 25, false, {kLeastExponentE4M3, kLeastExponentE4M3, -26}) == 1.0f);
    CHECK(fused_sum(a, b, 1, 0.0f, 25, false, {kLeastExponentE4M3, kLeastExponentE4M3, 200}) == kInfinity);
}

TEST_CASE("virtual_gpu arithmetic: infinities and NaN go through a fused sum") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), largest = std::numeric_limits<float>::max();
    const auto sum = [](float a, float b, float c) { return fused_sum(&a, &b, 1, c, 25, false); };
    CHECK(sum(kInfinity, 2.0f, 1.0f) == kInfinity);
    CHECK(sum(kInfinity, -2.0f, 1.0f) == -kInfinity);
    CHECK(sum(1.0f, 1.0f, -kInfinity) == -kInfinity);
    for (const float x :
         {sum(kInfinity, 0.0f, 1.0f), sum(kInfinity, 1.0f, -kInfinity), sum(nan, 1.0f, 1.0f), sum(1.0f, 1.0f, -nan)})
        CHECK(bits_of(x) == kNaNBits);
    CHECK(sum(largest, 2.0f, 0.0f) == kInfinity);  // the sum is too large
    CHECK(sum(largest, -2.0f, 0.0f) == -kInfinity);
    CHECK(sum(largest, 2.0f, -largest) == largest);  // nothing overflows on the way
    CHECK(bits_of(sum(-0.0f, 1.0f, -0.0f)) == 0);
}

TEST_CASE("virtual_gpu arithmetic: fused sums equal those of doubles") {
    std::mt19937 random(1);
    const auto number = [&](int low, int high, bool fp8) {
        if (random() % 16 == 0) return 0.0f;
        const int exponent = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
        const auto mantissa = static_cast<float>(1.0 + (random() % 128) / 128.0);
        const float x = (random() % 2 ? 1.0f : -1.0f) * std::ldexp(mantissa, exponent);
        return fp8 ? float_of_e4m3(e4m3_of(x)) : x;
    };
    int differ = 0, cancelled = 0;
    for (int trial = 0; trial < 20000; trial++) {
        const bool fp8 = trial % 2;
        const int n = 1 + static_cast<int>(random() % 32), spread = static_cast<int>(random() % 20);
        const int center = fp8 ? 0 : static_cast<int>(random() % 41) - 20;
        std::vector<float> a(static_cast<size_t>(n)), b(a);
        for (float& x : a) x = number(center - spread, center, fp8);
        for (float& x : b) x = number(-spread, 3, fp8);
        float c = number(center - 24, center + 5, false);
        if (random() % 4 == 0) b[0] = a[0] == 0 ? b[0] : fp8 ? b[0] : -c / a[0];  // most of it cancels
        const int fraction_bits = random() % 2 ? 25 : 13;
        const bool is_short = random() % 2;
        const int least = fp8 ? kLeastExponentE4M3 : kLeastExponentFloat;
        const float expected = reference_sum(a, b, c, fraction_bits, is_short ? 13 : 23, least);
        const float got = fused_sum(a.data(), b.data(), n, c, fraction_bits, is_short, {least, least});
        differ += bits_of(got) != bits_of(expected);
        cancelled += std::fabs(got) < std::fabs(c) / 64;
    }
    CHECK(differ == 0);
    CHECK(cancelled > 100);
}

TEST_CASE("virtual_gpu arithmetic: tensor cores by generation") {
    const auto is = [](Arithmetic arithmetic, Operands operands, int bits, int step, bool is_short) {
        const TensorCore core = tensor_core(arithmetic, operands);
        return core.fraction_bits == bits && core.step == step && core.short_result == is_short;
    };
    CHECK(is(Arithmetic::ampere, Operands::bf16, 24, 8, false));
    CHECK(is(Arithmetic::ampere, Operands::tf32, 24, 4, false));
    CHECK(is(Arithmetic::ada, Operands::bf16, 24, 8, false));
    CHECK(is(Arithmetic::ada, Operands::fp8, 13, 16, true));
    CHECK(is(Arithmetic::hopper, Operands::bf16, 25, 16, false));
    CHECK(is(Arithmetic::hopper, Operands::fp8, 13, 32, true));
    CHECK(is(Arithmetic::blackwell, Operands::bf16, 25, 16, false));
    CHECK(is(Arithmetic::blackwell, Operands::fp8, 25, 32, false));
    // In separate steps, 2^-24 is lost next to 1; eight of them in one step are not.
    std::vector<float> ones(16, 1.0f), b(16, 0x1p-25f);
    CHECK(tensor_sum(ones.data(), b.data(), 16, 1.0f, tensor_core(Arithmetic::hopper, Operands::bf16)) ==
          1.0f + 0x1p-21f);
    CHECK(tensor_sum(ones.data(), b.data(), 16, 1.0f, tensor_core(Arithmetic::ampere, Operands::bf16)) == 1.0f);
    CHECK(tensor_sum(ones.data(), b.data(), 4, 1.0f, tensor_core(Arithmetic::hopper, Operands::bf16)) ==
          1.0f + 0x1p-23f);
}
