// GELU and its gradient against FP64.
#include "llmc/kernels/activation.h"

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using GeluReference = reference::Gelu;
using reference::column_additions, reference::kUnit;

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
        std::vector<double> expected, bounds;
        for (Real v : x) {
            const GeluReference gelu(to_float(v));
            expected.push_back(gelu.value);
            bounds.push_back(gelu.value_bound);
        }
        DeviceArray<Real> inp(x), out(n);
        gelu_forward<Real>(out, inp.get(), n, test_stream());
        CHECK(worst_of_bounds(out.download(), expected, bounds) <= 1);
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
    CHECK(y[4] == 0.0f);
    CHECK(y[5] == 0.0f);
    // No equality: div.approx.f32(1, 1) and (1, 2) are right to 2 ulp, says the PTX ISA, and no more.
    CHECK(worst_of_bounds<float>({y[3], y[7]}, {1e4, 100.0},
                                 {GeluReference(1e4).value_bound, GeluReference(100.0).value_bound}) <= 1);
    CHECK(std::fabs(y[6] - 0.5e-30) <= 0.5e-30 * (9.5 + 1) * kUnit);
    CHECK_THROWS_AS(gelu_forward<float>(x, x.get(), 7, test_stream()), Error);
}

// Arithmetic as activation.cuh has it, with the exponential and the division off by so many units in the last place: at
// the documented 2.5 every value is within its bound, at four times as much not every one is.
TEST_CASE("bounds of GELU hold where exponential and division err as documented, and fail at four times as much") {
    struct Worst {
        double value, derivative;
    };
    const auto worst = [](double ulps_of_exp, double ulps_of_division) -> Worst {
        const auto off = [](double exact, double ulps) { return static_cast<float>(exact * (1.0 + ulps * 0x1p-23)); };
        std::vector<float> values, derivatives;
        std::vector<double> expected_values, value_bounds, expected_derivatives, derivative_bounds;
        for (const float x : ramp<float>(4096)) {
            const float e = off(std::exp2(x * (-2.3022081985f + -0.1029432393f * x * x)), ulps_of_exp);
            const float gate = off(1.0 / (1.0f + e), ulps_of_division);
            values.push_back(x * gate);
            derivatives.push_back(gate + x * gate * (1.0f - gate) * (1.5957691216f + 0.2140644488f * x * x));
            const GeluReference gelu(x);
            expected_values.push_back(gelu.value), value_bounds.push_back(gelu.value_bound);
            expected_derivatives.push_back(gelu.derivative), derivative_bounds.push_back(gelu.derivative_bound);
        }
        return {worst_of_bounds(values, expected_values, value_bounds),
                worst_of_bounds(derivatives, expected_derivatives, derivative_bounds)};
    };
    for (const double exp : {-1.0, 1.0}) {
        for (const double division : {-1.0, 1.0}) {
            // Half a unit more comes from the conversion to float.
            const Worst documented = worst(2.0 * exp, 2.0 * division);
            CHECK(documented.value <= 1);
            CHECK(documented.derivative <= 1);
            for (const Worst more : {worst(10.0 * exp, 0.0), worst(0.0, 10.0 * division)}) {
                CHECK(more.value > 1);
                CHECK(more.derivative > 1);
            }
        }
    }
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
        std::vector<double> expected(n), bounds(n), expected_dbias(C), bias_bounds(C);
        for (size_t i = 0; i < n; i++) {
            const GeluReference gelu(to_float(x[i]));
            const double magnitude = std::fabs(to_float(g[i]));
            expected[i] = to_float(g[i]) * gelu.derivative;
            bounds[i] = magnitude * gelu.derivative_bound + kUnit * std::fabs(expected[i]);
            expected_dbias[i % C] += expected[i];
            bias_bounds[i % C] += bounds[i] + column_additions(N, C) * kUnit * std::fabs(expected[i]);
        }
        DeviceArray<Real> inp(x), dout(g), dinp(n);
        const auto result = run_gelu_backward(dinp, dout, inp, N, C, nullptr);
        CHECK(worst_of_bounds(result.dinp, expected, bounds) <= 1);
        CHECK(worst_of_bounds(result.dbias, expected_dbias, bias_bounds) <= 1);

        const auto before = random_normal<float>(C, 10.0f, 5);
        for (int c = 0; c < C; c++) {
            expected_dbias[c] += before[c];
            bias_bounds[c] += 1.01 * kUnit * std::fabs(expected_dbias[c]);
        }
        const auto in_place = run_gelu_backward(dout, dout, inp, N, C, &before);
        CHECK(same_bits(in_place.dinp, result.dinp));
        CHECK(worst_of_bounds(in_place.dbias, expected_dbias, bias_bounds) <= 1);

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
