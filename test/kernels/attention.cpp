// Attention, also within documents and against a cache: its specifications at many shapes, and properties that a
// specification cannot express: no dependence on other rows and documents, and inputs that expose a bias.
#include "llmc/kernels/attention.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "test/kernels/attention_run.h"
#include "test/kernels/check_specifications.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using reference::documents_of, reference::part_of_dqkv;
using test::attention::Run;

using Reference = reference::Attention;
using Shape = reference::AttentionShape;

double norm_error(const std::vector<double>& actual, const std::vector<double>& expected) {
    return relative_norm_error(std::vector<float>(actual.begin(), actual.end()), expected);
}

// Inputs that make a delta from the rounded output biased (arXiv 2510.04212). All values have a large component in
// common and lie on bf16's grid. Every query attends to its own key (score 1.5 * 63 / 8 = 11.8; others' have
// deviation 1.5), but for half a percent, most of which goes to key 0 (score 6 to 6.6), whose value is larger by 0.5.
// The output thus lies above the query's own value by some 0.002 in every element, less than half a unit in the last
// place: it is always rounded down. The incoming gradient has a component in common too, so that the errors add up.
void biased_inputs(const Shape& s, std::vector<bf16>& qkv, std::vector<bf16>& dout) {
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
                    qkv[s.qkv(b, t, 0, h) + c] = to_bf16(c == 0 ? score : 1.5f * key);
                    qkv[s.qkv(b, t, 1, h) + c] = to_bf16(key);
                    qkv[s.qkv(b, t, 2, h) + c] = to_bf16(common[c] + (t == 0 ? 0.5f : unit));
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

TEST_CASE("attention, plain and quantizing, meets its specifications" * doctest::test_suite(kNotUnderSanitizers)) {
    check_specifications(check::add_attention_tests);
}

TEST_CASE("attention decode meets its specification") { check_specifications(check::add_decode_tests); }

TEST_CASE_TEMPLATE("attention: a window that covers all keys changes no bit, and one of a key gives its value", Real,
                   float, bf16) {
    for (int HD : {32, 64, 128}) {
        const Shape all{1, 140, 2, HD, 1};
        INFO(all.text());
        for (const int window : {140, 1 << 30})
            check_same_bits(Run<Real>(Shape{1, 140, 2, HD, 1, window}), Run<Real>(all));
        const Shape single{1, 140, 2, HD, 1, 1};
        const Run<Real> own(single);
        const std::vector<Real> out = own.out.download(), qkv = own.qkv.download();
        for (int t = 0; t < 140; t++)
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < HD; c++)
                    REQUIRE(to_float(out[single.out(0, t, h) + c]) == to_float(qkv[single.qkv(0, t, 2, 0) + c]));
    }
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
        std::vector<bf16> qkv = random_normal<bf16>(s.qkv_elements(), 1.0f, 41);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 42);
        std::vector<double> value(s.elements());
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++)
                for (int c = 0; c < HD; c++) {
                    qkv[s.qkv(0, t, 2, h) + c] = qkv[s.qkv(0, 0, 2, h) + c];
                    value[s.out(0, t, h) + c] = to_float(qkv[s.qkv(0, t, 2, h) + c]);
                }
        Run<bf16> run(s, qkv, dout);
        run.both();
        CHECK(to_doubles(run.out.download()) == value);
        CHECK(max_relative_error(run.out_low.download(), std::vector<double>(s.elements()), 1.0) < 2e-6);
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
        CHECK(max_relative_error(run.lse.download(), exact.lse, 1.0) < 1e-5);
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
        attention_forward<bf16>(run.out, run.out_low, run.lse, run.qkv, B, T, {NH, NH, HD}, nullptr, test_stream());
    };
    CHECK_THROWS_WITH_AS(forward(1, 4, 1, 48),
                         "attention: head dimension 48 is not supported; choose the number of heads so that channels / "
                         "heads is 32, 64, 80, 96, 128 or 256",
                         Error);
    CHECK_THROWS_AS(forward(1, 4, 65536, 64), Error);
    CHECK_THROWS_AS(forward(65536, 4, 1, 64), Error);
    CHECK_THROWS_AS(forward(1, 0, 1, 64), Error);
    for (const AttentionHeads& heads :
         {AttentionHeads{3, 2, 64}, AttentionHeads{2, 0, 64}, AttentionHeads{1, 2, 64}, AttentionHeads{1, 1, 64, -1}})
        CHECK_THROWS_AS(
            attention_forward<bf16>(run.out, run.out_low, run.lse, run.qkv, 1, 4, heads, nullptr, test_stream()),
            Error);
    CHECK_THROWS_AS(
        attention_forward<float>(nullptr, nullptr, nullptr, nullptr, 1, 4, {1, 1, 40}, nullptr, test_stream()), Error);
    CHECK_THROWS_AS(attention_backward<float>(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 4,
                                              {1, 1, 40}, nullptr, test_stream()),
                    Error);
    CHECK_THROWS_AS(attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, run.out_low, run.lse, 1,
                                             4, {1, 1, 512}, nullptr, test_stream()),
                    Error);
    CHECK(contains(error_of([&] {
                       attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, nullptr, run.lse, 1, 4,
                                                {1, 1, 64}, nullptr, test_stream());
                   }),
                   "out_low is missing"));
}

// ---- documents -----------------------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE("attention documents: one document a row changes no bit", Real, float, bf16) {
    for (const int HD : {32, 64, 128})
        for (const int window : {0, 40}) {
            const Shape none{2, 140, 1, HD, 1, window};
            Shape one = none;
            one.documents = documents_of(140, {{}, {}});
            INFO(none.text());
            check_same_bits(Run<Real>(none), Run<Real>(one));
        }
}

TEST_CASE_TEMPLATE("attention documents: no bit of one depends on the tokens of another", Real, float, bf16) {
    for (const int HD : {32, 64, 128}) {
        constexpr int T = 210, begin = 67, end = 150;
        const Shape s{1, T, 2, HD, 1, 0, documents_of(T, {{begin, end - begin}})};
        INFO(s.text());
        const Run<Real> before(s);
        std::vector<Real> qkv = before.qkv.download(), dout = before.dout.download();
        std::fill(&qkv[s.qkv(0, begin, 0, 0)], &qkv[s.qkv(0, end, 0, 0)], to<Real>(30.0f));
        std::fill(&dout[s.out(0, begin, 0)], &dout[s.out(0, end, 0)], to<Real>(-7.0f));
        Run<Real> after(s, qkv, dout);
        after.both();
        const auto same = [&](const std::vector<double>& a, const std::vector<double>& b, size_t from, size_t to) {
            return std::equal(a.begin(), a.begin() + static_cast<long>(from), b.begin()) &&
                   std::equal(a.begin() + static_cast<long>(to), a.end(), b.begin() + static_cast<long>(to));
        };
        CHECK(same(to_doubles(before.out.download()), to_doubles(after.out.download()), s.out(0, begin, 0),
                   s.out(0, end, 0)));
        CHECK(same(to_doubles(before.dqkv.download()), to_doubles(after.dqkv.download()), s.qkv(0, begin, 0, 0),
                   s.qkv(0, end, 0, 0)));
    }
}

// ---- against a cache -----------------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE("attention decode: a row has the same bits whichever rows come with it", Real, float, bf16) {
    const AttentionHeads heads{2, 2, 64};
    const size_t width = 128;
    const DeviceArray<Real> qkv(random_normal<Real>(70 * 3 * width, 1.0f, 5));
    const auto decoded = [&](int first, int rows) {
        DeviceArray<Real> out(static_cast<size_t>(rows) * width), low(out.size());
        attention_decode<Real>(out, low, qkv.get(), first, rows, heads, test_stream());
        return std::pair{out.download(), low.download()};
    };
    const auto [out, low] = decoded(0, 70);
    for (const auto& [first, rows] : {std::pair{0, 16}, {16, 16}, {37, 5}, {64, 6}}) {
        CAPTURE(first);
        const auto part = decoded(first, rows);
        const auto same = [&, first = first](const std::vector<Real>& a, const std::vector<Real>& whole) {
            return std::memcmp(a.data(), &whole[static_cast<size_t>(first) * width], a.size() * sizeof(Real)) == 0;
        };
        CHECK(same(part.first, out));
        if (sizeof(Real) == 2) CHECK(same(part.second, low));
    }
}

TEST_CASE("attention decode: shapes that are refused") {
    DeviceArray<float> out(64), qkv(3 * 64);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, -1, 1, {1, 1, 64}, test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 0, {1, 1, 64}, test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 1, {1, 1, 48}, test_stream()), Error);
}
