// RMS norm against FP64: forward with and without the residual add, backward with every optional part.
#include "llmc/kernels/norm.h"

#include "llmc/check/reference_rms.h"
#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kEps = 1e-5f;
// As layer norm's (reference_rows.h): FP32 arithmetic, relative to |value| + a floor for what cancels.
constexpr double kValueError = reference::kLayernormError, kGradientFloor = reference::kLayernormGradientFloor;

// Device arrays for one forward call, outputs poisoned.
template <class Real>
struct Forward {
    int N, C;
    size_t n;
    DeviceArray<Real> inp1, inp2, weight, residual, normed;
    DeviceArray<float> rstd;

    Forward(int N_, int C_)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          inp1(random_normal<Real>(n, 1.0f, N * 31 + C, 0.7f)),
          inp2(random_normal<Real>(n, 0.7f, N * 37 + C)),
          weight(random_normal<Real>(C, 0.3f, C + 2, 1.0f)),
          residual(n),
          normed(n),
          rstd(N) {}

    void add_and_normalise() {
        rmsnorm_forward<Real>(normed, rstd, residual, inp1, inp2, weight, N, C, kEps, test_stream());
    }
    void normalise(const Real* inp, bool weighted = true, bool with_rstd = true, float eps = kEps) {
        rmsnorm_forward<Real>(normed, with_rstd ? rstd.get() : nullptr, nullptr, inp, nullptr,
                              weighted ? weight.get() : nullptr, N, C, eps, test_stream());
    }
    void check_normed(const std::vector<Real>& input, bool weighted = true, double eps = kEps) const {
        const auto x = to_doubles(input);
        const auto expected = reference::rms_rstd(x, N, C, eps);
        const auto w = weighted ? to_doubles(weight.download()) : std::vector<double>();
        CHECK(max_relative_error(rstd.download(), expected, 0.0) < reference::kRstdError);
        CHECK(max_relative_error(normed.download(), reference::rms_rows(x, expected, w, C), 1e-30) <
              rounding_error<Real>() + kValueError);
    }
};

}  // namespace

TEST_CASE_TEMPLATE("rmsnorm_forward, with and without residual and weight", Real, float, bf16) {
    for (const auto [N, C] : norm_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        Forward<Real> f(N, C);
        f.add_and_normalise();
        const auto a = to_doubles(f.inp1.download()), b = to_doubles(f.inp2.download());
        std::vector<double> sum(f.n);
        for (size_t i = 0; i < f.n; i++) sum[i] = a[i] + b[i];
        const auto residual = f.residual.download();
        CHECK(max_relative_error(residual, sum, 0.5) < rounding_error<Real>() + 2e-7);
        f.check_normed(residual);

        // RMS norm of the stored residual repeats the bits; so does a call that keeps nothing.
        const auto normed = f.normed.download();
        const auto rstd = f.rstd.download();
        Forward<Real> again(N, C);
        again.normalise(f.residual);
        CHECK(same_bits(again.normed.download(), normed));
        CHECK(same_bits(again.rstd.download(), rstd));
        Forward<Real> inference(N, C);
        inference.normalise(f.residual, true, false);
        CHECK(same_bits(inference.normed.download(), normed));
        Forward<Real> plain(N, C);
        plain.normalise(f.residual, false);
        plain.check_normed(residual, false);

        // In place: the residual over inp1, the normalised rows over inp2.
        rmsnorm_forward<Real>(f.inp2, f.rstd, f.inp1, f.inp1.get(), f.inp2.get(), f.weight.get(), N, C, kEps,
                              test_stream());
        CHECK(same_bits(f.inp1.download(), residual));
        CHECK(same_bits(f.inp2.download(), normed));
    }
}

// Rows of zeros, of 1e4, and of values so small that eps makes the difference.
TEST_CASE_TEMPLATE("rmsnorm_forward of rows that are not ordinary", Real, float, bf16) {
    for (const int C : {64, 2304}) {
        for (const float eps : {1e-5f, 1e-6f}) {
            CAPTURE(C);
            CAPTURE(eps);
            Forward<Real> f(4, C);
            auto x = f.inp1.download();
            for (int c = 0; c < C; c++) {
                x[static_cast<size_t>(c)] = to<Real>(0.0f);
                x[static_cast<size_t>(C + c)] = to<Real>(c % 3 == 0 ? -1e4f : 1e4f);
                x[static_cast<size_t>(2 * C + c)] = to<Real>(c % 2 == 0 ? 1e-3f : -2e-3f);
            }
            f.inp1.upload(x);
            f.normalise(f.inp1, true, true, eps);
            f.check_normed(x, true, eps);
            const auto y = f.normed.download();
            for (int c = 0; c < C; c++) REQUIRE(to_float(y[static_cast<size_t>(c)]) == 0.0f);
        }
    }
}

TEST_CASE("rmsnorm_forward keeps a NaN in its row") { check_nan_stays_in_its_row<Forward<bf16>>(); }

TEST_CASE("rmsnorm refuses what it cannot do") {
    DeviceArray<float> x(12304);
    const auto forward = [&](float* residual, const float* inp2, int N, int C) {
        rmsnorm_forward<float>(x, x, residual, x, inp2, x, N, C, kEps, test_stream());
    };
    CHECK_THROWS_WITH_AS(forward(nullptr, nullptr, 1, 12), doctest::Contains("rmsnorm_forward: C=12"), Error);
    CHECK_THROWS_AS(forward(nullptr, nullptr, 0, 8), Error);
    CHECK_THROWS_AS(forward(nullptr, nullptr, 1, 12296), Error);
    CHECK_THROWS_AS(forward(x, nullptr, 1, 8), Error);
    CHECK_THROWS_AS(forward(nullptr, x, 1, 8), Error);
    const auto backward = [&](float* dweight, const float* weight, int C) {
        rmsnorm_backward<float>(x, nullptr, dweight, x, x, x, weight, x, 1, C, false, test_stream());
    };
    CHECK_THROWS_AS(backward(x, x, 12), Error);
    CHECK_THROWS_AS(backward(x, nullptr, 8), Error);
    CHECK_THROWS_AS(backward(nullptr, x, 8), Error);
}

// ---- backward ------------------------------------------------------------------------------------------------------

namespace {

template <class Real>
struct Gradient {
    std::vector<Real> dinp;
    std::vector<float> dweight;
};

// Inputs of a backward call and its FP64 result.
template <class Real>
struct Backward {
    int N, C;
    size_t n;
    std::vector<Real> x, g, r;
    DeviceArray<Real> inp, weight, dout, dresidual, dinp;
    DeviceArray<float> rstd, dweight, scratch;
    reference::RmsGradient expected, unweighted;  // dinp without dresidual

    Backward(int N_, int C_)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          x(random_normal<Real>(n, 2.0f, N * 41 + C, 0.5f)),
          g(random_normal<Real>(n, 1.0f, N * 43 + C, 0.2f)),
          r(random_normal<Real>(n, 1.0f, N * 47 + C)),
          inp(x),
          weight(random_normal<Real>(C, 0.3f, C + 2, 1.0f)),
          dout(g),
          dresidual(r),
          dinp(n),
          rstd(N),
          dweight(C),
          scratch(rmsnorm_backward_scratch(N, C)) {
        const auto xd = to_doubles(x), s = reference::rms_rstd(xd, N, C, kEps);
        rstd.upload(std::vector<float>(s.begin(), s.end()));
        expected = reference::rms_gradient(xd, to_doubles(g), s, to_doubles(weight.download()), C);
        unweighted = reference::rms_gradient(xd, to_doubles(g), s, {}, C);
    }

    Gradient<Real> run(DeviceArray<Real>& into, const Real* residual_gradient, bool accumulate = false) {
        rmsnorm_backward<Real>(into, residual_gradient, dweight, scratch, dout, inp, weight, rstd, N, C, accumulate,
                               test_stream());
        return {into.download(), dweight.download()};
    }
};

}  // namespace

TEST_CASE_TEMPLATE("rmsnorm_backward, all optional parts", Real, float, bf16) {
    for (const auto [N, C] : norm_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        Backward<Real> b(N, C);
        const double tolerance = rounding_error<Real>() + kValueError, sum_floor = 1.0 + N;

        const auto plain = b.run(b.dinp, nullptr);
        CHECK(max_relative_error(plain.dinp, b.expected.dinp, kGradientFloor) < tolerance);
        CHECK(max_relative_error(plain.dweight, b.expected.dweight, sum_floor) < reference::kLayernormSumError);

        auto total = b.expected.dinp;
        for (size_t i = 0; i < b.n; i++) total[i] += to_float(b.r[i]);
        const auto added = b.run(b.dinp, b.dresidual);
        CHECK(max_relative_error(added.dinp, total, 0.5) < tolerance);
        CHECK(same_bits(added.dweight, plain.dweight));  // a second launch: the same bits

        rmsnorm_backward<Real>(b.dinp, nullptr, nullptr, nullptr, b.dout, b.inp, nullptr, b.rstd, N, C, false,
                               test_stream());
        CHECK(max_relative_error(b.dinp.download(), b.unweighted.dinp, kGradientFloor) < tolerance);

        // Accumulated, and in place over dresidual, then over dout.
        const auto before = random_normal<float>(C, 10.0f, 5);
        b.dweight.upload(before);
        auto dweight = b.expected.dweight;
        for (int c = 0; c < C; c++) dweight[c] += before[c];
        const auto over_residual = b.run(b.dresidual, b.dresidual, true);
        CHECK(same_bits(over_residual.dinp, added.dinp));
        CHECK(max_relative_error(over_residual.dweight, dweight, 10.0 + sum_floor) < reference::kLayernormSumError);
        const auto over_dout = b.run(b.dout, nullptr);
        CHECK(same_bits(over_dout.dinp, plain.dinp));
        CHECK(same_bits(over_dout.dweight, plain.dweight));
    }
}

TEST_CASE("rmsnorm_backward is the derivative of rmsnorm_forward") {
    const int N = 3, C = 64;
    Backward<float> b(N, C);
    const auto gradient = b.run(b.dinp, nullptr).dinp;
    const auto weight = to_doubles(b.weight.download());
    const auto loss = [&](const std::vector<double>& x) {  // sum of dout * norm(x)
        const auto y = reference::rms_rows(x, reference::rms_rstd(x, N, C, kEps), weight, C);
        double sum = 0;
        for (size_t i = 0; i < x.size(); i++) sum += static_cast<double>(b.g[i]) * y[i];
        return sum;
    };
    check_derivative(to_doubles(b.x), gradient, loss);
}
