// GELU and its gradient against FP64.
#include "llmc/kernels/gelu.h"

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const double kScale = std::sqrt(2.0 / 3.14159265358979323846);

double gelu_reference(double x) { return 0.5 * x * (1.0 + std::tanh(kScale * (x + 0.044715 * x * x * x))); }
double gelu_derivative_reference(double x) {
    const double t = std::tanh(kScale * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kScale * (1.0 + 3.0 * 0.044715 * x * x);
}

// n values from -10 to 10.
template <class Real>
std::vector<Real> ramp(size_t n) {
    std::vector<Real> x(n);
    for (size_t i = 0; i < n; i++) x[i] = to<Real>(-10.0f + 20.0f * static_cast<float>(i) / static_cast<float>(n));
    return x;
}

}  // namespace

TEST_CASE_TEMPLATE("gelu_forward, in place too", Real, float, bf16) {
    for (size_t n : {size_t{8}, size_t{2056}, size_t{4096}, size_t{3 * 4096 + 2048 + 16}}) {
        CAPTURE(n);
        const auto x = ramp<Real>(n);
        std::vector<double> expected;
        for (Real v : x) expected.push_back(gelu_reference(to_float(v)));
        DeviceArray<Real> inp(x), out(n);
        gelu_forward<Real>(out, inp.get(), n, test_stream());
        CHECK(max_relative_error(out.download(), expected, 0.02) < rounding_error<Real>() + 2e-6);
        gelu_forward<Real>(inp, inp.get(), n, test_stream());
        CHECK(same_bits(inp.download(), out.download()));
    }
}

TEST_CASE("gelu_forward of values that are not ordinary") {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    DeviceArray<float> x(std::vector<float>{inf, nan, -1e4f, 1e4f, 0.0f, -60.0f, 1e-30f, 100.0f});
    gelu_forward<float>(x, x.get(), 8, test_stream());
    const auto y = x.download();
    CHECK(y[0] == inf);
    CHECK(std::isnan(y[1]));
    CHECK(y[2] == 0.0f);
    CHECK(y[3] == 1e4f);
    CHECK(y[4] == 0.0f);
    CHECK(y[5] == 0.0f);
    CHECK(y[6] == 0.5e-30f);
    CHECK(y[7] == 100.0f);
    CHECK_THROWS_AS(gelu_forward<float>(x, x.get(), 7, test_stream()), Error);
}

template <class Real>
struct GeluGradient {
    std::vector<Real> dinp;
    std::vector<float> dbias;
};

template <class Real>
static GeluGradient<Real> run_gelu_backward(DeviceArray<Real>& dinp, const DeviceArray<Real>& dout,
                                            const DeviceArray<Real>& inp, int N, int C,
                                            const std::vector<float>* add_to) {
    DeviceArray<float> dbias(C), scratch(gelu_backward_scratch(N, C));
    if (add_to) dbias.upload(*add_to);
    gelu_backward<Real>(dinp, dbias, scratch, dout.get(), inp.get(), N, C, add_to != nullptr, test_stream());
    return {dinp.download(), dbias.download()};
}

TEST_CASE_TEMPLATE("gelu_backward with its bias gradient", Real, float, bf16) {
    std::vector<RowShape> shapes = row_shapes();
    shapes.push_back({1031, 264});
    for (const auto [N, C] : shapes) {
        CAPTURE(N);
        CAPTURE(C);
        const size_t n = static_cast<size_t>(N) * C;
        const auto x = random_normal<Real>(n, 1.5f, N + C), g = random_normal<Real>(n, 1.0f, 3 * N + C, 0.3f);
        std::vector<double> expected(n), expected_dbias(C);
        for (size_t i = 0; i < n; i++) {
            expected[i] = to_float(g[i]) * gelu_derivative_reference(to_float(x[i]));
            expected_dbias[i % C] += expected[i];
        }
        DeviceArray<Real> inp(x), dout(g), dinp(n);
        const auto result = run_gelu_backward(dinp, dout, inp, N, C, nullptr);
        CHECK(max_relative_error(result.dinp, expected, 0.05) < rounding_error<Real>() + 4e-6);
        // Tighter than what a sum of values rounded to bf16 could meet.
        CHECK(max_relative_error(result.dbias, expected_dbias, 1.0 + 0.3 * N) < 2e-6);

        const auto before = random_normal<float>(C, 10.0f, 5);
        for (int c = 0; c < C; c++) expected_dbias[c] += before[c];
        const auto in_place = run_gelu_backward(dout, dout, inp, N, C, &before);
        CHECK(same_bits(in_place.dinp, result.dinp));
        CHECK(max_relative_error(in_place.dbias, expected_dbias, 10.0 + 0.3 * N) < 2e-6);

        dout.upload(g);
        const auto again = run_gelu_backward(inp, dout, inp, N, C, nullptr);  // over its own input
        CHECK(same_bits(again.dinp, result.dinp));
        CHECK(same_bits(again.dbias, result.dbias));
    }
}

TEST_CASE("gelu_backward shows a NaN in its bias gradient, and in no other column") {
    const int N = 40, C = 64;
    auto g = random_normal<float>(N * C, 1.0f, 1);
    g[17 * C + 5] = std::numeric_limits<float>::quiet_NaN();
    DeviceArray<float> inp(random_normal<float>(N * C, 1.0f, 2)), dout(g), dinp(N * C);
    const auto dbias = run_gelu_backward(dinp, dout, inp, N, C, nullptr).dbias;
    for (int c = 0; c < C; c++) CHECK(std::isnan(dbias[c]) == (c == 5));
    CHECK_THROWS_AS(run_gelu_backward(dinp, dout, inp, N, 60, nullptr), Error);
}
