// Layer norm against FP64: forward with and without the residual add, backward with every optional part.
#include "llmc/kernels/norm.h"

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Device arrays for one forward call, outputs poisoned.
template <class Real>
struct Forward {
    int N, C;
    size_t n;
    DeviceArray<Real> inp1, inp2, weight, shift, residual, normed;
    DeviceArray<float> mean, rstd;

    Forward(int N_, int C_, float offset = 1.0f)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          inp1(random_normal<Real>(n, 1.0f, N * 31 + C, offset)),
          inp2(random_normal<Real>(n, 0.7f, N * 37 + C)),
          weight(random_normal<Real>(C, 0.3f, C + 2, 1.0f)),
          shift(random_normal<Real>(C, 0.3f, C + 3)),
          residual(n),
          normed(n),
          mean(N),
          rstd(N) {}

    void add_and_normalise() {
        layernorm_forward<Real>(normed, mean, rstd, residual, inp1.get(), inp2.get(), weight.get(), shift.get(), N, C,
                                test_stream());
    }
    void normalise(const DeviceArray<Real>& inp, bool with_statistics = true) {
        layernorm_forward<Real>(normed, with_statistics ? mean.get() : nullptr, with_statistics ? rstd.get() : nullptr,
                                nullptr, inp.get(), nullptr, weight.get(), shift.get(), N, C, test_stream());
    }
    // Statistics and outputs must be those of `input`, as stored.
    void check_normed(const std::vector<Real>& input) const {
        const auto x = to_doubles(input), w = to_doubles(weight.download()), s = to_doubles(shift.download());
        const auto expected = reference::row_statistics(x, N, C);
        const auto y = reference::normed_rows(x, expected, w, s);
        CHECK(max_relative_error(mean.download(), expected.mean, 1.0) < reference::kMeanError);
        CHECK(max_relative_error(rstd.download(), expected.rstd, 0.0) < reference::kRstdError);
        CHECK(max_relative_error(normed.download(), y, reference::kNormedFloor) <
              rounding_error<Real>() + reference::kLayernormError);
    }
};

}  // namespace

TEST_CASE_TEMPLATE("layernorm_forward, with and without residual", Real, float, bf16) {
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

        // Layer norm of the stored residual repeats the bits; so does a call without statistics.
        const auto normed = f.normed.download();
        const auto mean = f.mean.download(), rstd = f.rstd.download();
        Forward<Real> again(N, C);
        again.normalise(f.residual);
        CHECK(same_bits(again.normed.download(), normed));
        CHECK(same_bits(again.mean.download(), mean));
        CHECK(same_bits(again.rstd.download(), rstd));
        Forward<Real> inference(N, C);
        inference.normalise(f.residual, false);
        CHECK(same_bits(inference.normed.download(), normed));

        // In place: the residual over inp1, the normalised rows over inp2.
        layernorm_forward<Real>(f.inp2, f.mean, f.rstd, f.inp1, f.inp1.get(), f.inp2.get(), f.weight.get(),
                                f.shift.get(), N, C, test_stream());
        CHECK(same_bits(f.inp1.download(), residual));
        CHECK(same_bits(f.inp2.download(), normed));
    }
}

TEST_CASE("layernorm_forward keeps its precision far from zero") {
    Forward<float> f(5, 768, 1000.0f);  // sum(x^2) - mean^2 in FP32 would lose everything here
    f.normalise(f.inp1);
    const auto x = to_doubles(f.inp1.download());
    CHECK(max_relative_error(f.rstd.download(), reference::row_statistics(x, 5, 768).rstd, 0.0) < 1e-5);
}

TEST_CASE("layernorm_forward keeps a NaN in its row") { check_nan_stays_in_its_row<Forward<bf16>>(); }

TEST_CASE("layernorm_forward refuses what it cannot do") {
    DeviceArray<float> x(12304);
    const auto forward = [&](float* mean, float* residual, const float* inp2, int N, int C) {
        layernorm_forward<float>(x, mean, x, residual, x.get(), inp2, x.get(), x.get(), N, C, test_stream());
    };
    CHECK_THROWS_AS(forward(x, nullptr, nullptr, 1, 12), Error);
    CHECK_THROWS_AS(forward(x, nullptr, nullptr, 0, 8), Error);
    CHECK_THROWS_AS(forward(x, nullptr, nullptr, 1, 12296), Error);
    CHECK_THROWS_AS(forward(x, x, nullptr, 1, 8), Error);
    CHECK_THROWS_AS(forward(x, nullptr, x, 1, 8), Error);
    CHECK_THROWS_AS(forward(nullptr, nullptr, nullptr, 1, 8), Error);
}

// ---- backward ------------------------------------------------------------------------------------------------------

namespace {

template <class Real>
struct Gradient {
    std::vector<Real> dinp;
    std::vector<float> dweight, dshift;
};

// Inputs of a backward call and its FP64 result.
template <class Real>
struct Backward {
    int N, C;
    size_t n;
    std::vector<Real> x, g, r;
    DeviceArray<Real> inp, weight, dout, dresidual, dinp;
    DeviceArray<float> mean, rstd, dweight, dshift, scratch;
    std::vector<double> expected_dinp, expected_dweight, expected_dshift;  // dinp without dresidual

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
          mean(N),
          rstd(N),
          dweight(C),
          dshift(C),
          scratch(layernorm_backward_scratch(N, C)) {
        const auto xd = to_doubles(x);
        const auto s = reference::row_statistics(xd, N, C);
        mean.upload(std::vector<float>(s.mean.begin(), s.mean.end()));
        rstd.upload(std::vector<float>(s.rstd.begin(), s.rstd.end()));
        const auto gradient = reference::layernorm_gradient(xd, to_doubles(g), to_doubles(weight.download()), s);
        expected_dinp = gradient.dinp, expected_dweight = gradient.dweight, expected_dshift = gradient.dshift;
    }

    Gradient<Real> run(DeviceArray<Real>& into, const Real* residual_gradient, bool accumulate = false) {
        layernorm_backward<Real>(into, residual_gradient, dweight, dshift, scratch, dout.get(), inp.get(), weight.get(),
                                 mean.get(), rstd.get(), N, C, accumulate, test_stream());
        return {into.download(), dweight.download(), dshift.download()};
    }
};

}  // namespace

TEST_CASE_TEMPLATE("layernorm_backward, all optional parts", Real, float, bf16) {
    for (const auto [N, C] : norm_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        Backward<Real> b(N, C);
        const double tolerance = rounding_error<Real>() + reference::kLayernormError, sum_floor = 1.0 + N;

        const auto plain = b.run(b.dinp, nullptr);
        CHECK(max_relative_error(plain.dinp, b.expected_dinp, reference::kLayernormGradientFloor) < tolerance);
        CHECK(max_relative_error(plain.dweight, b.expected_dweight, sum_floor) < reference::kLayernormSumError);
        CHECK(max_relative_error(plain.dshift, b.expected_dshift, sum_floor) < reference::kLayernormSumError);

        auto total = b.expected_dinp;
        for (size_t i = 0; i < b.n; i++) total[i] += to_float(b.r[i]);
        const auto added = b.run(b.dinp, b.dresidual);
        CHECK(max_relative_error(added.dinp, total, 0.5) < tolerance);
        CHECK(same_bits(added.dweight, plain.dweight));  // a second launch: the same bits
        CHECK(same_bits(added.dshift, plain.dshift));

        // Accumulated, and in place over dresidual, then over dout.
        const auto before = random_normal<float>(C, 10.0f, 5);
        b.dweight.upload(before);
        b.dshift.upload(before);
        auto dweight = b.expected_dweight, dshift = b.expected_dshift;
        for (int c = 0; c < C; c++) dweight[c] += before[c], dshift[c] += before[c];
        const auto over_residual = b.run(b.dresidual, b.dresidual, true);
        CHECK(same_bits(over_residual.dinp, added.dinp));
        CHECK(max_relative_error(over_residual.dweight, dweight, 10.0 + sum_floor) < reference::kLayernormSumError);
        CHECK(max_relative_error(over_residual.dshift, dshift, 10.0 + sum_floor) < reference::kLayernormSumError);
        const auto over_dout = b.run(b.dout, nullptr);
        CHECK(same_bits(over_dout.dinp, plain.dinp));
        CHECK(same_bits(over_dout.dweight, plain.dweight));
    }
}

TEST_CASE("layernorm_backward is the derivative of layernorm_forward") {
    const int N = 3, C = 64;
    Backward<float> b(N, C);
    const auto gradient = b.run(b.dinp, nullptr).dinp;
    const auto weight = to_doubles(b.weight.download());
    const auto loss = [&](const std::vector<double>& x) {  // sum of dout * LN(x)
        const auto s = reference::row_statistics(x, N, C);
        double sum = 0;
        for (size_t i = 0; i < x.size(); i++) {
            sum += to_float(b.g[i]) * (x[i] - s.mean[i / C]) * s.rstd[i / C] * weight[i % C];
        }
        return sum;
    };
    check_derivative(to_doubles(b.x), gradient, loss);
}

TEST_CASE("layernorm_backward refuses what it cannot do") {
    DeviceArray<float> x(64);
    CHECK_THROWS_AS(layernorm_backward<float>(x, nullptr, x, x, x, x.get(), x.get(), x.get(), x.get(), x.get(), 1, 12,
                                              false, test_stream()),
                    Error);
}

// A multiprocessor holds 16 warps of the kernel's 128 registers, in whole blocks. The scratch says how many blocks.
TEST_CASE("layernorm_backward: one full wave of blocks on an H100") {
    for (const int C : {256, 768, 1024, 1280, 1600, 2048, 4096, 5120, 12288}) {
        CAPTURE(C);
        const int warps = (C + (C > 4096 ? 767 : 255)) / (C > 4096 ? 768 : 256);
        const size_t blocks = layernorm_backward_scratch(1 << 20, C) / (2 * static_cast<size_t>(C));
        CHECK(blocks % 132 == 0);
        CHECK(static_cast<int>(blocks / 132) == 16 / warps);
    }
}
