// Tests of the matrix products against FP64 sums: odd shapes, both operand types, bias, accumulation, counts, refusals.
#include "llmc/linear/matmul.h"

#include <cstring>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The definitions of the three products, one dot product an element.
struct Reference {
    int N, C, OC;
    std::vector<double> inp, weight, bias, dout;
    template <class Real>
    Reference(int n, int c, int oc, const std::vector<Real>& i, const std::vector<Real>& w, const std::vector<Real>& b,
              const std::vector<Real>& d)
        : N(n), C(c), OC(oc), inp(to_doubles(i)), weight(to_doubles(w)), bias(to_doubles(b)), dout(to_doubles(d)) {}

    template <class Term>
    static std::vector<double> product(int rows, int columns, int inner, Term term) {
        std::vector<double> result(static_cast<size_t>(rows) * columns, 0.0);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                for (int k = 0; k < inner; k++) result[static_cast<size_t>(r) * columns + c] += term(r, c, k);
        return result;
    }
    std::vector<double> forward(bool with_bias) const {
        std::vector<double> out =
            product(N, OC, C, [&](int n, int o, int c) { return inp[n * C + c] * weight[o * C + c]; });
        if (with_bias)
            for (size_t i = 0; i < out.size(); i++) out[i] += bias[i % OC];
        return out;
    }
    std::vector<double> dgrad() const {
        return product(N, C, OC, [&](int n, int c, int o) { return dout[n * OC + o] * weight[o * C + c]; });
    }
    std::vector<double> wgrad() const {
        return product(OC, C, N, [&](int o, int c, int n) { return dout[n * OC + o] * inp[n * C + c]; });
    }
};

// FP32 sums of a few hundred terms; BF16 results carry one rounding more.
constexpr double kSumError = 1e-6;
template <class Real>
constexpr double kResultError = sizeof(Real) == 2 ? 2.5e-3 : kSumError;
// Largest relative error of one rounding to nearest. A second rounding (before the bias, say) would exceed it.
template <class Real>
constexpr double kElementError = sizeof(Real) == 2 ? 1.0 / 256 * 1.01 : 1e-4;

template <class Real>
void check_products(int N, int C, int OC) {
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    const size_t inp_size = static_cast<size_t>(N) * C, weight_size = static_cast<size_t>(OC) * C;
    const size_t out_size = static_cast<size_t>(N) * OC;
    const std::vector<Real> inp = random_normal<Real>(inp_size, 1.0f, 1),
                            weight = random_normal<Real>(weight_size, 0.1f, 2);
    const std::vector<Real> bias = random_normal<Real>(OC, 2.0f, 3), dout = random_normal<Real>(out_size, 1.0f, 4);
    const Reference reference(N, C, OC, inp, weight, bias, dout);

    Matmul matmul(false);
    matmul.reserve(N, C, OC);
    DeviceArray<Real> d_inp(inp), d_weight(weight), d_bias(bias), d_dout(dout);
    DeviceArray<Real> out(out_size), out_plain(out_size), dinp(inp_size);
    DeviceArray<float> dweight(weight_size);
    matmul.forward<Real>(out, d_inp, d_weight, d_bias, N, C, OC, test_stream());
    matmul.forward<Real>(out_plain, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    matmul.dgrad<Real>(dinp, d_dout, d_weight, N, C, OC, test_stream());
    matmul.wgrad<Real>(dweight, d_dout, d_inp, N, C, OC, false, test_stream());

    CHECK(relative_norm_error(out.download(), reference.forward(true)) < kResultError<Real>);
    CHECK(max_relative_error(out.download(), reference.forward(true), 1e-2) < kElementError<Real>);
    CHECK(relative_norm_error(out_plain.download(), reference.forward(false)) < kResultError<Real>);
    CHECK(relative_norm_error(dinp.download(), reference.dgrad()) < kResultError<Real>);
    std::vector<double> expected = reference.wgrad();
    CHECK(relative_norm_error(dweight.download(), expected) < kSumError);

    matmul.wgrad<Real>(dweight, d_dout, d_inp, N, C, OC, true, test_stream());
    for (double& e : expected) e *= 2;
    CHECK(relative_norm_error(dweight.download(), expected) < kSumError);
}

}  // namespace

TEST_CASE("FP32 products of any shape equal FP64") {
    for (const int N : {1, 7, 100}) {
        check_products<float>(N, 48, 64);
        check_products<float>(N, 33, 5);
        check_products<float>(N, 1, 17);
        check_products<float>(N, 64, 1);
    }
    check_products<float>(257, 96, 200);
}

TEST_CASE("BF16 products equal FP64 rounded once, and wgrad keeps FP32") {
    for (const int N : {1, 7, 100}) {
        check_products<bf16>(N, 48, 64);
        check_products<bf16>(N, 8, 136);
        check_products<bf16>(N, 200, 8);
    }
    check_products<bf16>(257, 96, 200);  // large enough for several threads
}

TEST_CASE("a product repeated has the same bits, in another buffer too") {
    const int N = 300, C = 128, OC = 256;
    const std::vector<bf16> inp = random_normal<bf16>(N * C, 1.0f, 1), weight = random_normal<bf16>(OC * C, 1.0f, 2);
    DeviceArray<bf16> d_inp(inp), shifted_inp(N * C + 8), d_weight(weight), out(N * OC), again(N * OC + 8);
    Matmul matmul(false);
    matmul.reserve(N, C, OC);
    copy_on_device(shifted_inp + 8, d_inp, N * C * sizeof(bf16), test_stream());
    matmul.forward<bf16>(out, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    matmul.forward<bf16>(again + 8, shifted_inp + 8, d_weight, nullptr, N, C, OC, test_stream());
    std::vector<bf16> repeated = again.download();
    repeated.erase(repeated.begin(), repeated.begin() + 8);
    CHECK(same_bits(out.download(), repeated));
}

TEST_CASE("FP32 products keep what TF32 would lose") {
    // 1 + 2^-12 rounds to 1 in TF32, which keeps 10 mantissa bits.
    const int N = 64, C = 64, OC = 64;
    const std::vector<float> inp(N * C, 1.0f + 1.0f / 4096), weight(OC * C, 1.0f);
    DeviceArray<float> d_inp(inp), d_weight(weight), out(N * OC);
    Matmul matmul(false);
    matmul.forward<float>(out, d_inp, d_weight, nullptr, N, C, OC, test_stream());
    for (const float x : out.download()) REQUIRE(x == 64.0f + 64.0f / 4096);
}

TEST_CASE("products are counted by operand type") {
    const int n = 16;
    DeviceArray<float> f(std::vector<float>(n * n, 1.0f)), f_out(n * n);
    DeviceArray<bf16> b(std::vector<bf16>(n * n, to_bf16(1.0f))), b_out(n * n);
    Matmul matmul(false);
    matmul.reserve(n, n, n);
    matmul.forward<float>(f_out, f, f, nullptr, n, n, n, test_stream());
    matmul.forward<bf16>(b_out, b, b, nullptr, n, n, n, test_stream());
    matmul.dgrad<bf16>(b_out, b, b, n, n, n, test_stream());
    matmul.wgrad<bf16>(f_out, b, b, n, n, n, false, test_stream());
    CHECK(matmul.counts().fp32 == 1);
    CHECK(matmul.counts().bf16 == 3);
    CHECK(matmul.counts().fp8 == 0);
    matmul.reset_counts();
    CHECK(matmul.counts().bf16 == 0);
}

TEST_CASE("what a product cannot do is refused with its shape, and not counted") {
    const int n = 16;
    DeviceArray<bf16> x(2 * n * n), y(2 * n * n);
    Matmul matmul(false);
    if (device_info().is_host) {
        CHECK_THROWS_WITH(matmul.forward<bf16>(y, x, x, nullptr, n, n, 2 * n, test_stream()),
                          "matmul forward bf16 N=16 C=16 OC=32: call Matmul::reserve(16, 16, 32) before training");
        CHECK(matmul.reserved_bytes() == 0);
    }
    matmul.reserve(n, n, n);
    CHECK(matmul.reserved_bytes() >= 3 * n * n * sizeof(float));
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x + 1, x, nullptr, n, n, n, test_stream()), Error);
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, nullptr, nullptr, n, n, n, test_stream()), Error);
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, x, nullptr, n, 0, n, test_stream()), Error);
    CHECK(matmul.counts().bf16 == 0);
    matmul.forward<bf16>(y, x, x, nullptr, n, n, n, test_stream());
    const stream_t other = create_stream();
    CHECK_THROWS_AS(matmul.forward<bf16>(y, x, x, nullptr, n, n, n, other), Error);
    CHECK(matmul.counts().bf16 == 1);
    destroy_stream(other);
}
