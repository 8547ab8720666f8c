// Attention against a cache: its specification, and the same bits whichever rows come together.
#include "llmc/kernels/attention.h"

#include "test/kernels/specifications.h"

using namespace llmc;
using test::DeviceArray;

TEST_CASE("attention decode meets its specification") { test::check_specifications(check::add_decode_tests); }

TEST_CASE_TEMPLATE("attention decode: a row has the same bits whichever rows come with it", Real, float, bf16) {
    const AttentionHeads heads{2, 2, 64};
    const size_t width = 128;
    const DeviceArray<Real> qkv(test::random_normal<Real>(70 * 3 * width, 1.0f, 5));
    const auto decoded = [&](int first, int rows) {
        DeviceArray<Real> out(static_cast<size_t>(rows) * width), low(out.size());
        attention_decode<Real>(out, low, qkv.get(), first, rows, heads, test::test_stream());
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
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, -1, 1, {1, 1, 64}, test::test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 0, {1, 1, 64}, test::test_stream()), Error);
    CHECK_THROWS_AS(attention_decode<float>(out, nullptr, qkv, 0, 1, {1, 1, 48}, test::test_stream()), Error);
}
