// Attention: its specifications at many shapes, and what a specification cannot express: bytes that depend on
// nothing they should not, and inputs that are made to expose a bias.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "test/kernels/attention_run.h"
#include "test/kernels/specifications.h"
#include "test/suites.h"

namespace llmc {
namespace {

using reference::part_of_dqkv;
using test::DeviceArray;
using test::random_normal;
using test::same_bits;
using test::to_doubles;
using test::attention::norm_error;
using test::attention::Run;

using Reference = reference::Attention;
using Layout = reference::AttentionLayout;
using Shape = reference::AttentionShape;

// Compares grouped queries with one head of keys and values per query head, each group's repeated. Forward and dQ have
// the same arithmetic. dK and dV are the group's sums, except for FP32 errors and one rounding to Real.
template <class Real>
void check_repeated_keys(const Shape& s) {
    INFO(s.text());
    const Shape all{s.B, s.T, s.NH, s.HD};
    const Layout at{s}, at_all{all};
    const std::vector<Real> qkv = random_normal<Real>(s.qkv_elements(), 1.0f, 71);
    const std::vector<Real> dout = random_normal<Real>(s.elements(), 1.0f, 72);
    std::vector<Real> repeated(all.qkv_elements());
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.T; t++)
            for (int which = 0; which < 3; which++)
                for (int h = 0; h < s.NH; h++)
                    std::copy_n(&qkv[at.qkv(b, t, which, which == 0 ? h : at.key_head(h))], s.HD,
                                &repeated[at_all.qkv(b, t, which, h)]);
    Run<Real> group(s, qkv, dout), whole(all, repeated, dout);
    group.both(), whole.both();
    CHECK(same_bits(group.out.download(), whole.out.download()));
    CHECK(same_bits(group.lse.download(), whole.lse.download()));
    const std::vector<double> dqkv = to_doubles(group.dqkv.download()), parts = to_doubles(whole.dqkv.download());
    CHECK(part_of_dqkv(dqkv, s, 0) == part_of_dqkv(parts, all, 0));
    // P and dS are rounded alike: FP32's errors are left, in both.
    const std::vector<double> bounds =
        reference::attention(all, to_doubles(repeated), to_doubles(dout), 0, reference::attention_slack(false))
            .dqkv_bound;
    const double rounding = sizeof(Real) == 2 ? test::rounding_error<bf16>() : 0.0;
    double worst = 0;  // in units of the bound
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.T; t++)
            for (int which = 1; which < 3; which++)
                for (int kv = 0; kv < s.NKV; kv++)
                    for (int c = 0; c < s.HD; c++) {
                        double sum = 0, bound = reference::kAttentionFloor;
                        for (int h = kv * s.NH / s.NKV; h < (kv + 1) * s.NH / s.NKV; h++) {
                            const size_t i = at_all.qkv(b, t, which, h) + c;
                            sum += parts[i], bound += 2 * bounds[i] + rounding * std::fabs(parts[i]);
                        }
                        const double error = std::fabs(dqkv[at.qkv(b, t, which, kv) + c] - sum);
                        worst = std::max(worst, error / (bound + rounding * std::fabs(sum)));
                    }
    CHECK(worst <= 1);
}

// Inputs that make a delta from the rounded output biased (arXiv 2510.04212). All values have a large component in
// common and lie on bf16's grid. Every query attends to its own key (score 1.5 * 63 / 8 = 11.8; others' have
// deviation 1.5), but for half a percent, most of which goes to key 0 (score 6 to 6.6), whose value is larger by 0.5.
// The output thus lies above the query's own value by some 0.002 in every element, less than half a unit in the last
// place: it is always rounded down. The incoming gradient has a component in common too, so that the errors add up.
void biased_inputs(const Shape& s, std::vector<bf16>& qkv, std::vector<bf16>& dout) {
    const Layout at{s};
    std::mt19937 engine(33);
    qkv.resize(s.qkv_elements());
    dout = random_normal<bf16>(s.elements(), 0.5f, 32, 1.0f);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++) {
            std::vector<float> common(s.HD);
            for (float& c : common) c = 1.0f + static_cast<float>(engine() % 32) / 128;  // a unit is 1/128
            for (int t = 0; t < s.T; t++) {
                const float score = 6.0f + 0.6f * static_cast<float>(engine() % 1000) / 1000;
                for (int c = 0; c < s.HD; c++) {
                    const float sign = engine() % 2 ? 1.0f : -1.0f, unit = static_cast<float>(engine() % 2) / 128;
                    const float key = c == 0 ? (t == 0 ? 8.0f : 0.0f) : t == 0 ? 0.0f : sign;
                    qkv[at.qkv(b, t, 0, h) + c] = to_bf16(c == 0 ? score : 1.5f * key);
                    qkv[at.qkv(b, t, 1, h) + c] = to_bf16(key);
                    qkv[at.qkv(b, t, 2, h) + c] = to_bf16(common[c] + (t == 0 ? 0.5f : unit));
                }
            }
        }
}

// Mean over the rows of sum_j P (dP - delta), which is zero for the true delta, relative to the mean magnitude of dP.
double mean_of_score_gradients(const Reference& exact, const std::vector<float>& delta) {
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < delta.size(); i++) {
        sum += exact.delta[i] - static_cast<double>(delta[i]);  // sum_j P dP = exact delta
        magnitude += std::fabs(exact.delta[i]);
    }
    return sum / magnitude;
}

}  // namespace

TEST_CASE("attention, plain and quantizing, meets its specifications" *
          doctest::test_suite(test::kNotUnderSanitizers)) {
    test::check_specifications(check::add_attention_tests);
}

TEST_CASE_TEMPLATE("attention: a window that covers all keys changes no bit, and one of a key gives its value", Real,
                   float, bf16) {
    for (int HD : {32, 64, 128}) {
        const Shape all{1, 140, 2, HD, 1};
        INFO(all.text());
        for (const int window : {140, 1 << 30})
            check_same_bits(Run<Real>(Shape{1, 140, 2, HD, 1, 0, window}), Run<Real>(all));
        const Shape single{1, 140, 2, HD, 1, 0, 1};
        const Run<Real> own(single);
        const std::vector<Real> out = own.out.download(), qkv = own.qkv.download();
        const Layout at{single};
        for (int t = 0; t < 140; t++)
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < HD; c++)
                    REQUIRE(to_float(out[at.out(0, t, h) + c]) == to_float(qkv[at.qkv(0, t, 2, 0) + c]));
    }
}

TEST_CASE_TEMPLATE("attention: a group has the bits of heads with repeated keys and values", Real, float, bf16) {
    for (int HD : {32, 64, 128}) check_repeated_keys<Real>({1, 100, 4, HD, 2});
}

TEST_CASE("attention: delta is unbiased where the output's rounding is one-sided, and biased from the rounded output") {
    const Shape s{2, 128, 2, 64};
    std::vector<bf16> qkv, dout;
    biased_inputs(s, qkv, dout);
    const Reference exact = reference::attention(s, to_doubles(qkv), to_doubles(dout), 0, 0);
    Run<bf16> run(s, qkv, dout);
    run.both();
    // The rest is P's rounding errors times the spread of the values (half a percent of 0.5), of either sign.
    CHECK(std::fabs(mean_of_score_gradients(exact, run.delta.download())) < 2e-6);

    run.out_low.upload(std::vector<bf16>(s.elements()));  // zeros: delta = rowsum(dout * bf16(O))
    run.backward();
    CHECK(mean_of_score_gradients(exact, run.delta.download()) > 1e-3);
}

TEST_CASE("attention: a component common to all values causes no score gradients") {
    // All values equal: any weights that sum to 1 give that value, dP is the same for all keys, and dS = 0. So the
    // rounding of P must cancel in the output: only FP32's errors are left.
    for (int HD : {32, 64, 128}) {
        const Shape s{1, 200, 2, HD};
        INFO(s.text());
        const Layout at{s};
        std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.0f, 41);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 42);
        std::vector<double> value(s.elements());
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++)
                for (int c = 0; c < HD; c++) {
                    qkv[at.qkv(0, t, 2, h) + c] = qkv[at.qkv(0, 0, 2, h) + c];
                    value[at.out(0, t, h) + c] = to_float(qkv[at.qkv(0, t, 2, h) + c]);
                }
        Run<bf16> run(s, qkv, dout);
        run.both();
        CHECK(to_doubles(run.out.download()) == value);
        CHECK(test::max_relative_error(run.out_low.download(), std::vector<double>(s.elements()), 1.0) < 2e-6);
        const std::vector<double> dqkv = to_doubles(run.dqkv.download());
        for (int which : {0, 1})
            for (double x : part_of_dqkv(dqkv, s, which)) REQUIRE(std::fabs(x) < 2e-5);
    }
}

TEST_CASE("attention: scores of several thousand stay finite") {
    for (int HD : {32, 64, 128}) {
        const Shape s{1, 130, 1, HD};
        INFO(s.text());
        const std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 30.0f, 51);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 52);
        const Reference exact = reference::attention(s, to_doubles(qkv), to_doubles(dout), 0, 0);
        Run<bf16> run(s, qkv, dout);
        run.both();
        CHECK(test::max_relative_error(run.lse.download(), exact.lse, 1.0) < 1e-5);
        // An exponent's FP32 error is now 1e-7 of thousands; what is nearly one-hot stays so.
        CHECK(norm_error(run.output(), exact.out) < 0.01);
        CHECK(norm_error(part_of_dqkv(to_doubles(run.dqkv.download()), s, 2), part_of_dqkv(exact.dqkv, s, 2)) < 0.01);
        for (double x : to_doubles(run.dqkv.download())) REQUIRE(std::isfinite(x));
    }
}

TEST_CASE("attention: unsupported shapes are refused, naming what is supported") {
    const Shape s{1, 4, 1, 64};
    Run<bf16> run(s, 61);
    const auto forward = [&](int B, int T, int NH, int HD) {
        attention_forward<bf16>(run.out, run.out_low, run.lse, run.qkv, B, T, {NH, NH, HD}, test::test_stream());
    };
    CHECK_THROWS_WITH_AS(forward(1, 4, 1, 48),
                         "attention: head dimension 48 is not supported; choose the number of heads so that channels / "
                         "heads is 32, 64, 80, 96, 128 or 256",
                         Error);
    CHECK_THROWS_AS(forward(1, 4, 65536, 64), Error);
    CHECK_THROWS_AS(forward(65536, 4, 1, 64), Error);
    CHECK_THROWS_AS(forward(1, 0, 1, 64), Error);
    for (const AttentionHeads& heads : {AttentionHeads{3, 2, 64}, AttentionHeads{2, 0, 64}, AttentionHeads{1, 2, 64},
                                        AttentionHeads{1, 1, 64, -1.0f}, AttentionHeads{1, 1, 64, 0.0f, -1}})
        CHECK_THROWS_AS(
            attention_forward<bf16>(run.out, run.out_low, run.lse, run.qkv, 1, 4, heads, test::test_stream()), Error);
    CHECK_THROWS_AS(attention_forward<float>(nullptr, nullptr, nullptr, nullptr, 1, 4, {1, 1, 40}, test::test_stream()),
                    Error);
    CHECK_THROWS_AS(attention_backward<float>(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 4,
                                              {1, 1, 40}, test::test_stream()),
                    Error);
    CHECK_THROWS_AS(attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, run.out_low, run.lse, 1,
                                             4, {1, 1, 512}, test::test_stream()),
                    Error);
    CHECK_THROWS_WITH_AS(attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, nullptr, run.lse, 1,
                                                  4, {1, 1, 64}, test::test_stream()),
                         doctest::Contains("out_low is missing"), Error);
}

}  // namespace llmc
