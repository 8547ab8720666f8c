// Floating point: conversions to the narrow formats for every upper half of a float, against the nearest of all codes.
// fma and approximate functions against more precise arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/lanes.h"
#include "test/virtual_gpu/child.h"
#include "test/virtual_gpu/ptx_program.h"

namespace virtual_gpu::test {
namespace {

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
float number(uint64_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b)); }
bool is_nan(uint64_t b) { return (b & 0x7fffffff) > 0x7f800000; }

// Every upper half of a float, with lower halves on, below and above the places where it rounds.
std::vector<uint64_t> all_upper_halves() {
    std::vector<uint64_t> list;
    for (uint64_t upper = 0; upper < 65536; upper++)
        for (const uint64_t lower : {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff})
            list.push_back(upper << 16 | lower);
    return list;
}

// The positive finite numbers of a format, by code.
std::vector<double> numbers(int codes, int mantissa_bits, int bias) {
    std::vector<double> list;
    for (int code = 0; code < codes; code++) {
        const int field = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
        list.push_back(
            std::ldexp(mantissa + (field ? 1 << mantissa_bits : 0), (field ? field : 1) - bias - mantissa_bits));
    }
    return list;
}

// The code of the number nearest to a magnitude; a tie goes to the even code. Beyond the last number the result
// saturates, or becomes the next code, infinity, from half a step on.
uint32_t nearest(const std::vector<double>& list, double x, bool saturates) {
    const auto above = std::lower_bound(list.begin(), list.end(), x);
    const uint32_t up = static_cast<uint32_t>(above - list.begin());
    if (up == 0) return 0;
    if (above == list.end()) {
        const double step = list.back() - list[list.size() - 2];
        return up - (saturates || x < list.back() + step / 2 ? 1u : 0u);
    }
    const double to_up = list[up] - x, to_down = x - list[up - 1];
    return to_up < to_down || (to_up == to_down && up % 2 == 0) ? up : up - 1;
}

// Applies an opcode that converts two floats into one register to pairs of all inputs. Returns the results by input,
// from both places.
std::vector<uint32_t> convert_pairs(const std::string& opcode, const std::vector<uint64_t>& list, int width,
                                    bool& halves_agree) {
    std::vector<uint64_t> other(list.rbegin(), list.rend());
    const auto words = run_lane_op(opcode, find_lane_op(opcode)->operands, {list, other});
    std::vector<uint32_t> results;
    halves_agree = true;
    for (size_t i = 0; i < words.size(); i++) {
        results.push_back(static_cast<uint32_t>(words[i] >> width));
        const uint64_t mask = (uint64_t{1} << width) - 1;
        halves_agree &= (words[words.size() - 1 - i] & mask) == results.back();
    }
    return results;
}

}  // namespace

TEST_CASE("ptx: conversions to bf16, e4m3 and e5m2 take the nearest number") {
    struct Narrow {
        const char* opcode;
        int width, codes, mantissa_bits, bias;
        uint32_t nan;
        bool saturates;
    };
    const auto list = all_upper_halves();
    for (const Narrow& n : {Narrow{"cvt.rn.bf16x2.f32", 16, 0x7f80, 7, 127, 0x7fff, false},
                            Narrow{"cvt.rn.satfinite.e4m3x2.f32", 8, 0x7f, 3, 7, 0x7f, true},
                            Narrow{"cvt.rn.satfinite.e5m2x2.f32", 8, 0x7c, 2, 15, 0x7f, true}}) {
        const auto all = numbers(n.codes, n.mantissa_bits, n.bias);
        bool halves_agree;
        const auto results = convert_pairs(n.opcode, list, n.width, halves_agree);
        size_t wrong = 0;
        for (size_t i = 0; i < list.size(); i++) {
            const uint32_t sign = static_cast<uint32_t>(list[i] >> 31) << (n.width - 1);
            const uint32_t code =
                is_nan(list[i]) ? n.nan
                                : sign | nearest(all, std::fabs(static_cast<double>(number(list[i]))), n.saturates);
            wrong += results[i] != code;
        }
        CHECK_MESSAGE(wrong == 0, n.opcode);
        CHECK_MESSAGE(halves_agree, n.opcode);
        if (n.width == 16) {
            const auto single = run_lane_op("cvt.rn.bf16.f32", "hf", {list});
            CHECK(std::equal(single.begin(), single.end(), results.begin()));
        }
    }
}

TEST_CASE("ptx: conversions to ue8m0 take the next power of two upwards or downwards") {
    const auto list = all_upper_halves();
    std::vector<double> powers;
    for (int code = 0; code < 255; code++) powers.push_back(std::ldexp(1.0, code - 127));
    for (const bool up : {true, false}) {
        bool halves_agree;
        const auto results =
            convert_pairs(up ? "cvt.rp.satfinite.ue8m0x2.f32" : "cvt.rz.satfinite.ue8m0x2.f32", list, 8, halves_agree);
        size_t wrong = 0;
        for (size_t i = 0; i < list.size(); i++) {
            const double x = std::fabs(static_cast<double>(number(list[i])));
            // The smallest power of two that is not below x, or the largest not above it, if there is one.
            const auto place = up ? std::lower_bound(powers.begin(), powers.end(), x) - powers.begin()
                                  : std::upper_bound(powers.begin(), powers.end(), x) - powers.begin() - 1;
            const auto code = std::clamp<std::ptrdiff_t>(place, 0, 254);
            wrong += results[i] != (is_nan(list[i]) ? 255u : static_cast<uint32_t>(code));
        }
        CHECK(wrong == 0);
        CHECK(halves_agree);
    }
}

TEST_CASE("ptx: conversions to tf32 and from bf16") {
    auto list = all_upper_halves();
    for (size_t i = 0; i < list.size(); i += 3) list[i] = (list[i] & 0xffffe000) | 0x1000;  // halfway
    const auto results = run_lane_op("cvt.rna.tf32.f32", "ff", {list});
    size_t wrong = 0;
    for (size_t i = 0; i < list.size(); i++) {
        if (is_nan(list[i])) {
            wrong += results[i] != 0x7fffffff;
            continue;
        }
        // Neighbours with 10 fraction bits; a tie goes to the one farther from zero.
        const uint64_t down = list[i] & 0xffffe000, up = down + 0x2000;
        wrong += results[i] != (list[i] - down >= 0x1000 ? up : down);
    }
    CHECK(wrong == 0);

    std::vector<uint64_t> codes(65536);
    for (uint64_t code = 0; code < 65536; code++) codes[code] = code;
    const auto floats = run_lane_op("cvt.f32.bf16", "fh", {codes});
    const auto magnitudes = numbers(0x7f80, 7, 127);
    wrong = 0;
    for (size_t code = 0; code < 65536; code++) {
        const size_t magnitude = code & 0x7fff;
        const float x = number(floats[code]);
        if (magnitude > 0x7f80)
            wrong += x == x;
        else
            wrong += std::signbit(x) != (code >> 15 == 1) ||
                     std::fabs(x) != (magnitude == 0x7f80 ? INFINITY : magnitudes[magnitude]);
    }
    CHECK(wrong == 0);
}

// With operands of similar exponents, a b + c fits into the 113 bits of a quadruple, which then rounds once.
TEST_CASE("ptx: fma rounds once") {
    std::mt19937 random(1);
    std::vector<uint64_t> a, b, c;
    for (int n = 0; n < 20000; n++) {
        const auto draw = [&](int spread, int center) {
            const uint32_t field = static_cast<uint32_t>(
                127 + center + static_cast<int>(random() % static_cast<uint32_t>(spread)) - spread / 2);
            return uint64_t{(random() & 0x807fffff) | field << 23};
        };
        const int center = n % 4 == 0 ? -65 : 0;  // also subnormal products
        a.push_back(draw(8, center));
        b.push_back(draw(8, center));
        c.push_back(center ? random() & 0x80ffffff : draw(60, 0));
        if (n % 3 == 0) c.back() = bits(-number(a.back()) * number(b.back()));  // leaves the product's rounding error
    }
    const auto results = run_lane_op("fma.rn.f32", "ffff", {a, b, c});
    size_t wrong = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const __float128 sum = static_cast<__float128>(number(a[i])) * number(b[i]) + number(c[i]);
        const float rounded = static_cast<float>(sum);
        wrong += number(results[i]) != rounded || (rounded != 0 && results[i] != bits(rounded));
    }
    CHECK(wrong == 0);
}

namespace {

// The allowed distance of a result from the nearest float, in units in the last place: none, or with
// VIRTUAL_GPU_APPROXIMATE=1 the bound of each function. The nearest float comes from arithmetic in long double.
struct Approximation {
    const char* opcode;
    int ulp;
    long double (*exact)(long double, long double);
    double least, most;  // the operands' range; the exponent is uniform if both are positive
};
const Approximation kApproximations[] = {
    {"ex2.approx.f32", 2, [](long double x, long double) { return std::exp2(x); }, -120, 120},
    {"ex2.approx.ftz.f32", 2, [](long double x, long double) { return std::exp2(x); }, -120, 120},
    {"rsqrt.approx.f32", 2, [](long double x, long double) { return 1 / std::sqrt(x); }, 1e-37, 1e37},
    {"rsqrt.approx.ftz.f32", 2, [](long double x, long double) { return 1 / std::sqrt(x); }, 1e-37, 1e37},
    {"sqrt.approx.f32", 1, [](long double x, long double) { return std::sqrt(x); }, 1e-37, 1e37},
    {"rcp.approx.f32", 1, [](long double x, long double) { return 1 / x; }, 1e-36, 1e36},
    {"rcp.approx.ftz.f32", 1, [](long double x, long double) { return 1 / x; }, 1e-36, 1e36},
    {"div.approx.f32", 2, [](long double x, long double y) { return x / y; }, 1e-18, 1e18},
    {"div.full.f32", 2, [](long double x, long double y) { return x / y; }, 1e-18, 1e18},
    {"lg2.approx.f32", 0, [](long double x, long double) { return std::log2(x); }, 1e-37, 1e37},
    {"lg2.approx.ftz.f32", 0, [](long double x, long double) { return std::log2(x); }, 1e-37, 1e37},
    {"sin.approx.f32", 0, [](long double x, long double) { return std::sin(x); }, -4, 4},
    {"cos.approx.f32", 0, [](long double x, long double) { return std::cos(x); }, -4, 4},
    {"tanh.approx.f32", 0, [](long double x, long double) { return std::tanh(x); }, -4, 4},
};

}  // namespace

TEST_CASE("ptx approximate: functions are the nearest float, or off by the allowed error") {
    std::mt19937 random(2);
    std::uniform_real_distribution<double> uniform(0, 1);
    for (const Approximation& f : kApproximations) {
        const auto draw = [&] {
            const double u = uniform(random);
            const double x = f.least > 0 ? f.least * std::pow(f.most / f.least, u) : f.least + (f.most - f.least) * u;
            return uint64_t{bits(static_cast<float>(x))};
        };
        const std::string& kinds = find_lane_op(f.opcode)->operands;
        std::vector<std::vector<uint64_t>> operands(kinds.size() - 1);
        for (auto& list : operands)
            for (int n = 0; n < 5000; n++) list.push_back(draw());
        const auto results = run_lane_op(f.opcode, kinds, operands);
        const int allowed = options().approximate ? f.ulp : 0;
        int most = 0, least = 0, wrong = 0;
        for (size_t i = 0; i < results.size(); i++) {
            const long double exact = f.exact(number(operands[0][i]), number(operands.back()[i]));
            const float rounded = static_cast<float>(exact);
            const int off = static_cast<int>(results[i]) - static_cast<int>(bits(rounded));
            most = std::max(most, off), least = std::min(least, off);
            // Functions that are computed in double and then rounded may miss the nearest float if two are almost
            // equally near.
            const long double step = std::fabs(static_cast<long double>(std::nextafter(rounded, INFINITY)) - rounded);
            const bool nearly_between = std::fabs(number(results[i]) - exact) <= step * (0.5001L + allowed);
            wrong += std::abs(off) > allowed && !nearly_between;
        }
        INFO(f.opcode);
        CHECK(wrong == 0);
        CHECK(most >= allowed);
        CHECK(least <= -allowed);
    }
}

TEST_CASE("ptx: approximate functions that err") {
    expect_cases("ptx approximate", {{"VIRTUAL_GPU_APPROXIMATE", "1"}});
}

}  // namespace virtual_gpu::test
