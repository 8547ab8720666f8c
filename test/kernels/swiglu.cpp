// SwiGLU and its gradients against FP64.
#include "llmc/kernels/activation.h"

#include "llmc/check/reference_swiglu.h"
#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// inp (N, 2F): gates of all sizes, from -100 to 100.
template <class Real>
std::vector<Real> gates_and_ups(int N, int F) {
    auto x = random_normal<Real>(static_cast<size_t>(N) * 2 * F, 3.0f, 7 * N + F);
    const float edges[] = {100.0f, -100.0f, 0.0f, 20.0f, -20.0f, 1e-3f, -88.0f, 88.0f};
    for (int n = 0; n < N; n += 3)
        for (int i = 0; i < 8; i++) x[static_cast<size_t>(n) * 2 * F + i] = to<Real>(edges[i]);
    return x;
}

}  // namespace

TEST_CASE_TEMPLATE("swiglu_forward and swiglu_backward", Real, float, bf16) {
    for (const auto [N, F] : row_shapes()) {
        CAPTURE(N);
        CAPTURE(F);
        const size_t n = static_cast<size_t>(N) * F;
        const auto x = gates_and_ups<Real>(N, F);
        const auto g = random_normal<Real>(n, 1.0f, 3 * N + F, 0.3f);
        const auto expected = reference::swiglu(to_doubles(x), to_doubles(g), F);
        DeviceArray<Real> inp(x), dout(g), out(n), dinp(2 * n), again(2 * n);
        swiglu_forward<Real>(out, inp, N, F, test_stream());
        CHECK(worst_of_bounds(out.download(), expected.out, expected.out_bound) <= 1);
        swiglu_backward<Real>(dinp, dout, inp, N, F, test_stream());
        CHECK(worst_of_bounds(dinp.download(), expected.dinp, expected.dinp_bound) <= 1);
        swiglu_backward<Real>(again, dout, inp, N, F, test_stream());
        CHECK(same_bits(again.download(), dinp.download()));
        swiglu_backward<Real>(inp, dout, inp, N, F, test_stream());  // in place
        CHECK(same_bits(inp.download(), dinp.download()));
    }
}

// Arithmetic as activation.cuh has it, with the exponential and the division off by so many units in the last place: at
// the documented 2.5 every value is within its bound, at four times as much not every one is.
TEST_CASE("bounds of SwiGLU hold where exponential and division err as documented, and fail at four times as much") {
    const int F = 4096;
    std::vector<float> x(2 * F);
    for (int i = 0; i < F; i++) x[i] = -10.0f + 20.0f * static_cast<float>(i) / F, x[F + i] = 1.5f;
    const std::vector<float> dout(F, 1.25f);
    const auto expected = reference::swiglu(to_doubles(x), to_doubles(dout), F);
    struct Worst {
        double value, gradients;
    };
    const auto worst = [&](double ulps_of_exp, double ulps_of_division) -> Worst {
        const auto off = [](double exact, double ulps) { return static_cast<float>(exact * (1.0 + ulps * 0x1p-23)); };
        std::vector<float> out(F), dinp(2 * F);
        for (int i = 0; i < F; i++) {
            const float gate = x[i], up = x[F + i];
            const float e = off(std::exp2(-gate * 1.4426950408889634f), ulps_of_exp);
            const float s = off(1.0 / (1.0f + e), ulps_of_division);
            out[i] = gate * s * up;
            dinp[i] = dout[i] * up * (s + gate * s * (1.0f - s));
            dinp[F + i] = dout[i] * (gate * s);
        }
        return {worst_of_bounds(out, expected.out, expected.out_bound),
                worst_of_bounds(dinp, expected.dinp, expected.dinp_bound)};
    };
    for (const double exp : {-1.0, 1.0})
        for (const double division : {-1.0, 1.0}) {
            const Worst documented = worst(2.0 * exp, 2.0 * division);
            CHECK(documented.value <= 1);
            CHECK(documented.gradients <= 1);
            for (const Worst more : {worst(10.0 * exp, 0.0), worst(0.0, 10.0 * division)}) {
                CHECK(more.value > 1);
                CHECK(more.gradients > 1);
            }
        }
}

TEST_CASE("swiglu shows what is not finite, and refuses what it cannot do") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    std::vector<float> x(16, 1.0f);
    x[1] = nan, x[8 + 2] = nan, x[8 + 3] = inf;
    DeviceArray<float> inp(x), out(8);
    swiglu_forward<float>(out, inp, 1, 8, test_stream());
    const auto y = out.download();
    CHECK(std::isnan(y[1]));
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == inf);
    CHECK(std::isfinite(y[0]));
    CHECK_THROWS_AS(swiglu_forward<float>(out, inp, 1, 12, test_stream()), Error);
    CHECK_THROWS_AS(swiglu_backward<float>(inp, out, inp, 0, 8, test_stream()), Error);
}
