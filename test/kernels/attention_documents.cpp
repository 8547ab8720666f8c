// Attention that does not cross documents: byte by byte against each document by itself, and against the kernels
// without documents. The specifications (attention.cpp) compare it with FP64.
#include <algorithm>
#include <string>
#include <vector>

#include "llmc/kernels/attention.h"
#include "test/kernels/attention_run.h"

namespace llmc {
namespace {

using reference::documents_of;
using test::same_bits;
using test::to_doubles;
using test::attention::Run;

using Layout = reference::AttentionLayout;
using Shape = reference::AttentionShape;

}  // namespace

TEST_CASE_TEMPLATE("attention documents: one document a row changes no bit", Real, float, bf16) {
    for (const int HD : {32, 64, 128})
        for (const int window : {0, 40}) {
            const Shape none{2, 140, 1, HD, 1, 0, window};
            Shape one = none;
            one.documents = documents_of(140, {{}, {}});
            INFO(none.text());
            check_same_bits(Run<Real>(none), Run<Real>(one));
        }
}

// Tiles begin at multiples of at most 128: there a document is worked on as it would be by itself.
TEST_CASE_TEMPLATE("attention documents: at the edges of tiles, each has the bits of a row of its own", Real, float,
                   bf16) {
    for (const int HD : {32, 64, 128}) {
        const Shape packed{1, 384, 1, HD, 1, 0, 0, documents_of(384, {{128, 128}})}, apart{3, 128, 1, HD, 1};
        INFO(packed.text());
        const Run<Real> together(packed), alone(apart);
        CHECK(same_bits(together.out.download(), alone.out.download()));
        CHECK(same_bits(together.dqkv.download(), alone.dqkv.download()));
        // (B, NH, T)
        const std::vector<float> lse = together.lse.download(), rows = alone.lse.download();
        const Layout at{packed}, row{apart};
        for (int t = 0; t < 384; t++) REQUIRE(lse[at.row(0, t, 0)] == rows[row.row(t / 128, t % 128, 0)]);
    }
}

TEST_CASE_TEMPLATE("attention documents: a token alone gives its value, and no scores", Real, float, bf16) {
    for (const int HD : {32, 64, 128}) {
        constexpr int T = 140;
        const Shape s{1, T, 2, HD, 1, 0, 0, documents_of(T, {std::vector<int>(T, 1)})};
        const Run<Real> r(s);
        const std::vector<double> out = to_doubles(r.out.download()), qkv = to_doubles(r.qkv.download());
        const Layout at{s};
        for (int t = 0; t < T; t++)
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < HD; c++) REQUIRE(out[at.out(0, t, h) + c] == qkv[at.qkv(0, t, 2, 0) + c]);
        // dS = dP - delta, sums of the same HD products in different orders: 2 HD of them rounded in FP32, of some 3
        // each.
        const std::vector<double> dqkv = to_doubles(r.dqkv.download());
        for (const int which : {0, 1})
            for (const double x : reference::part_of_dqkv(dqkv, s, which)) REQUIRE(std::fabs(x) < 1e-3);
    }
}

TEST_CASE_TEMPLATE("attention documents: no bit of one depends on the tokens of another", Real, float, bf16) {
    for (const int HD : {32, 64, 128}) {
        constexpr int T = 210, begin = 67, end = 150;
        const Shape s{1, T, 2, HD, 1, 0, 0, documents_of(T, {{begin, end - begin}})};
        INFO(s.text());
        const Layout at{s};
        const Run<Real> before(s);
        std::vector<Real> qkv = before.qkv.download(), dout = before.dout.download();
        std::fill(&qkv[at.qkv(0, begin, 0, 0)], &qkv[at.qkv(0, end, 0, 0)], to<Real>(30.0f));
        std::fill(&dout[at.out(0, begin, 0)], &dout[at.out(0, end, 0)], to<Real>(-7.0f));
        Run<Real> after(s, qkv, dout);
        after.both();
        const auto same = [&](const std::vector<double>& a, const std::vector<double>& b, size_t from, size_t to) {
            return std::equal(a.begin(), a.begin() + static_cast<long>(from), b.begin()) &&
                   std::equal(a.begin() + static_cast<long>(to), a.end(), b.begin() + static_cast<long>(to));
        };
        CHECK(same(to_doubles(before.out.download()), to_doubles(after.out.download()), at.out(0, begin, 0),
                   at.out(0, end, 0)));
        CHECK(same(to_doubles(before.dqkv.download()), to_doubles(after.dqkv.download()), at.qkv(0, begin, 0, 0),
                   at.qkv(0, end, 0, 0)));
    }
}

}  // namespace llmc
