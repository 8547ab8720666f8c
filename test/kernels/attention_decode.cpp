// Attention against a cache: as a double-precision reference has it, and the same bits whichever rows come together.
#include "llmc/kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "llmc/check/reference.h"
#include "test/kernel_test.h"

using namespace llmc;
using test::DeviceArray;

namespace {

struct Shape {
    int first, rows, NH, HD;
    int NKV = NH, window = 0;
    size_t width() const { return static_cast<size_t>(NH) * HD; }
    size_t outputs() const { return static_cast<size_t>(rows) * width(); }
    AttentionHeads heads() const { return {NH, NKV, HD, 0, window}; }
    size_t inputs() const { return static_cast<size_t>((first + rows) * heads().qkv_width()); }
};

template <class Real>
struct Result {
    std::vector<Real> out, out_low;
};

// `qkv` and the results are framed by NaN: reads outside `qkv` and writes outside the results show.
template <class Real>
Result<Real> run(const Shape& s, const std::vector<Real>& qkv) {
    constexpr size_t kFrame = 4096;
    DeviceArray<Real> all(s.inputs() + 2 * kFrame), out(s.outputs() + 2 * kFrame), low(s.outputs() + 2 * kFrame);
    std::vector<Real> values = all.download();
    std::copy_n(qkv.begin(), s.inputs(), values.begin() + kFrame);
    all.upload(values);
    attention_decode<Real>(out.get() + kFrame, low.get() + kFrame, all.get() + kFrame, s.first, s.rows, s.heads(),
                           test::test_stream());
    const auto inside = [&](const DeviceArray<Real>& array) {
        const std::vector<Real> whole = array.download();
        const auto untouched = [](Real x) { return std::isnan(to_float(x)); };
        CHECK(std::all_of(whole.begin(), whole.begin() + kFrame, untouched));
        CHECK(std::all_of(whole.end() - kFrame, whole.end(), untouched));
        return std::vector<Real>(whole.begin() + kFrame, whole.end() - kFrame);
    };
    return {inside(out), sizeof(Real) == 2 ? inside(low) : std::vector<Real>()};
}

template <class Real>
void check_against_reference(const Shape& s, float deviation, uint32_t seed) {
    INFO("first ", s.first, " rows ", s.rows, " NH ", s.NH, " HD ", s.HD);
    const bool rounds = sizeof(Real) == 2;
    const std::vector<Real> qkv = test::random_normal<Real>(s.inputs(), deviation, seed);
    const reference::AttentionShape all{1, s.first + s.rows, s.NH, s.HD, s.NKV, 0, s.window};
    const auto expected =
        reference::attention(all, test::to_doubles(qkv), std::vector<double>(all.elements()),
                             reference::attention_rounding(rounds), reference::attention_slack(rounds));
    const size_t begin = static_cast<size_t>(s.first) * s.width();  // of the rows that are asked for
    const Result<Real> result = run(s, qkv);
    double worst = 0;
    bool low_is_small = true;
    for (size_t i = 0; i < s.outputs(); i++) {
        const double low = rounds ? to_float(result.out_low[i]) : 0;
        const double ratio =
            std::fabs(to_float(result.out[i]) + low - expected.out[begin + i]) / expected.out_sum_bound[begin + i];
        if (!(ratio <= worst)) worst = ratio == ratio ? ratio : std::numeric_limits<double>::infinity();
        low_is_small &= std::fabs(low) <= std::fabs(to_float(result.out[i])) / 256;
    }
    CHECK(worst <= 1);
    CHECK(low_is_small);
}

}  // namespace

TEST_CASE_TEMPLATE("attention decode: against a double-precision reference", Real, float, bf16) {
    uint32_t seed = 1;
    for (const int HD : {32, 64, 128})
        for (const auto& [first, rows] : {std::pair{0, 1}, {0, 16}, {16, 16}, {48, 16}, {63, 1}, {64, 3}, {100, 29}})
            check_against_reference<Real>({first, rows, 2, HD}, 1.0f, seed++);
    for (const int HD : {80, 96, 256}) check_against_reference<Real>({60, 20, 4, HD, 2}, 1.0f, seed++);
    check_against_reference<Real>({200, 16, 3, 64}, 3.0f, seed++);  // nearly one-hot
    for (const int HD : {32, 64, 128}) check_against_reference<Real>({63, 20, 6, HD, 2}, 1.0f, seed++);
    for (const int window : {1, 5, 64, 70}) check_against_reference<Real>({150, 35, 2, 64, 1, window}, 1.0f, seed++);
}

TEST_CASE_TEMPLATE("attention decode: a row has the same bits whichever rows come with it", Real, float, bf16) {
    const Shape whole{0, 70, 2, 64};
    const std::vector<Real> qkv = test::random_normal<Real>(whole.inputs(), 1.0f, 5);
    const Result<Real> expected = run(whole, qkv);
    for (const Shape& s : {Shape{0, 16, 2, 64}, Shape{16, 16, 2, 64}, Shape{37, 5, 2, 64}, Shape{64, 6, 2, 64}}) {
        CAPTURE(s.first);
        const Result<Real> part = run(s, qkv);
        const size_t begin = static_cast<size_t>(s.first) * s.width();
        const auto same = [&](const std::vector<Real>& a, const std::vector<Real>& b) {
            return std::equal(a.begin(), a.end(), b.begin() + static_cast<std::ptrdiff_t>(begin),
                              [](Real x, Real y) { return to_float(x) == to_float(y); });
        };
        CHECK(same(part.out, expected.out));
        if (sizeof(Real) == 2) CHECK(same(part.out_low, expected.out_low));
    }
}

TEST_CASE("attention decode: shapes that are refused") {
    DeviceArray<float> out(64), qkv(3 * 64);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, -1, 1, {1, 1, 64}, test::test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 0, {1, 1, 64}, test::test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 1, {1, 1, 48}, test::test_stream()), Error);
}
