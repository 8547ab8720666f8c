// fma and approximate functions against more precise arithmetic. Conversions: ptx_lane_table.cpp and arithmetic.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/lanes.h"
#include "dev/virtual_gpu/test/child.h"
#include "dev/virtual_gpu/test/ptx_program.h"

namespace virtual_gpu::test {
namespace {

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
float number(uint64_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b)); }

}  // namespace

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
