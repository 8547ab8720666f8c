// GELU, SwiGLU and squared ReLU: their specifications at many shapes, and properties that a specification cannot
// express.
#include "llmc/kernels/activation.h"
#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("activations, plain and quantizing, meet their specifications") {
    check_specifications(check::add_activation_tests);
}

TEST_CASE("GELU and squared ReLU at the ends of FP32") {
    const float inf = std::numeric_limits<float>::infinity();
    DeviceArray<float> x(std::vector<float>{inf, -inf, -1e4f, 1e4f, 0.0f, -0.0f, 1e-30f, 1e30f}), y(8), d(8),
        dout(std::vector<float>(8, 1.0f));
    activation_forward<float>(Activation::gelu, y, x, 1, 8, test_stream());
    const auto gelu = y.download();
    CHECK(gelu[0] == inf);
    for (const size_t i : {2, 4, 5}) CHECK(gelu[i] == 0.0f);
    const reference::Gelu large(1e4);
    CHECK(std::fabs(static_cast<double>(gelu[3]) - 1e4) <= large.value_bound);
    CHECK(std::fabs(gelu[6] - 0.5e-30) <= 0.5e-30 * (9.5 + 1) * reference::kUnit);
    activation_forward<float>(Activation::relu2, y, x, 1, 8, test_stream());
    activation_backward<float>(Activation::relu2, d, {}, dout, x, 1, 8, test_stream());
    CHECK(y.download() == std::vector<float>{inf, 0, 0, 1e8f, 0, 0, 0, inf});
    CHECK(d.download() == std::vector<float>{inf, 0, 0, 2e4f, 0, 0, 2e-30f, 2e30f});
}

// Arithmetic as in the kernels, with an exponential and a division that are wrong by a number of units in the last
// place: every value is within its bound at the documented 2.5, and some are not at four times as much.
namespace {

struct Worst {
    double value, gradient;
};

float wrong_by(double exact, double ulps) { return static_cast<float>(exact * (1.0 + ulps * 0x1p-23)); }

// worst(ulps of the exponential, ulps of the division)
void check_bounds(const std::function<Worst(double, double)>& worst) {
    for (const double exp : {-1.0, 1.0})
        for (const double division : {-1.0, 1.0}) {
            // Half a unit more comes from the conversion to float.
            const Worst documented = worst(2.0 * exp, 2.0 * division);
            CHECK(documented.value <= 1);
            CHECK(documented.gradient <= 1);
            for (const Worst more : {worst(10.0 * exp, 0.0), worst(0.0, 10.0 * division)}) {
                CHECK(more.value > 1);
                CHECK(more.gradient > 1);
            }
        }
}

std::vector<float> ramp(size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) x[i] = -10.0f + 20.0f * static_cast<float>(i) / static_cast<float>(n);
    return x;
}

}  // namespace

TEST_CASE("bounds of GELU hold where exponential and division err as documented, and fail at four times as much") {
    check_bounds([](double ulps_of_exp, double ulps_of_division) -> Worst {
        std::vector<float> values, derivatives;
        std::vector<double> expected_values, value_bounds, expected_derivatives, derivative_bounds;
        for (const float x : ramp(4096)) {
            const float e = wrong_by(std::exp2(x * (-2.3022081985f + -0.1029432393f * x * x)), ulps_of_exp);
            const float gate = wrong_by(1.0 / (1.0f + e), ulps_of_division);
            values.push_back(x * gate);
            derivatives.push_back(gate + x * gate * (1.0f - gate) * (1.5957691216f + 0.2140644488f * x * x));
            const reference::Gelu gelu(x);
            expected_values.push_back(gelu.value), value_bounds.push_back(gelu.value_bound);
            expected_derivatives.push_back(gelu.derivative), derivative_bounds.push_back(gelu.derivative_bound);
        }
        return {worst_of_bounds(values, expected_values, value_bounds),
                worst_of_bounds(derivatives, expected_derivatives, derivative_bounds)};
    });
}

TEST_CASE("bounds of SwiGLU hold where exponential and division err as documented, and fail at four times as much") {
    const int F = 4096;
    std::vector<float> x = ramp(F);
    x.resize(2 * F, 1.5f);
    const std::vector<float> dout(F, 1.25f);
    const auto expected = reference::swiglu(to_doubles(x), to_doubles(dout), F);
    check_bounds([&](double ulps_of_exp, double ulps_of_division) -> Worst {
        std::vector<float> out(F), dinp(2 * F);
        for (int i = 0; i < F; i++) {
            const float gate = x[i], up = x[F + i];
            const float e = wrong_by(std::exp2(-gate * 1.4426950408889634f), ulps_of_exp);
            const float s = wrong_by(1.0 / (1.0f + e), ulps_of_division);
            out[i] = gate * s * up;
            dinp[i] = dout[i] * up * (s + gate * s * (1.0f - s));
            dinp[F + i] = dout[i] * (gate * s);
        }
        return {worst_of_bounds(out, expected.out, expected.out_bound),
                worst_of_bounds(dinp, expected.dinp, expected.dinp_bound)};
    });
}

TEST_CASE("activations refuse unsupported arguments") {
    DeviceArray<float> x(64), y(64), scratch(64);
    DeviceArray<bf16> inp(2048);
    DeviceArray<float> dbias(32);
    QuantizedArrays<e4m3> to(2048, used_state(1.0f));
    QuantizedArrays<e5m2> gradient(2048, used_state(1.0f));
    for (const auto& [f, name] :
         {std::pair{Activation::gelu, "gelu"}, {Activation::relu2, "relu2"}, {Activation::swiglu, "swiglu"}}) {
        CAPTURE(name);
        const auto refused = [](auto&& call, const std::string& text) { CHECK(contains(error_of(call), text)); };
        const std::string forward = name + std::string("_forward"), backward = name + std::string("_backward");
        const auto plain = [&, f = f](int N, int F) {
            activation_forward<float>(f, y, x, N, F, test_stream());
            activation_backward<float>(f, y, {nullptr, scratch}, x, x, N, F, test_stream());
        };
        CHECK_NOTHROW(plain(1, 16));
        refused([&] { plain(1, 12); }, forward + ": C=12");
        refused([&] { plain(0, 8); }, forward + ": N=0");
        refused([&, f = f] { activation_backward<float>(f, y, {}, x, x, 0, 8, test_stream()); }, backward + ": N=0");
        const auto cast = [&, f = f](int N, int F, bool forwards, float* to_bias = nullptr) {
            if (forwards) return activation_forward_fp8(f, to.both(), inp, N, F, QuantizePass::train, test_stream());
            activation_backward_fp8(f, gradient.both(), {to_bias}, inp, inp, N, F, QuantizePass::train, test_stream());
        };
        refused([&] { cast(24, 16, true); }, forward + "_fp8: N=24");
        refused([&] { cast(16, 24, false); }, backward + "_fp8: C=24");
        if (f == Activation::gelu) refused([&] { cast(16, 16, false, dbias); }, "scratch");
    }
}
