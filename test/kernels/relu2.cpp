// ReLU squared and its gradient against FP64.
#include "llmc/kernels/activation.h"

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("relu2_forward and relu2_backward, in place too", Real, float, bf16) {
    for (size_t n : {size_t{8}, size_t{2056}, size_t{3 * 2048 + 16}}) {
        CAPTURE(n);
        const auto x = random_normal<Real>(n, 3.0f, 1), g = random_normal<Real>(n, 1.0f, 2);
        std::vector<double> expected(n), gradient(n);
        for (size_t i = 0; i < n; i++) {
            const double positive = std::max(0.0, static_cast<double>(to_float(x[i])));
            expected[i] = positive * positive;
            gradient[i] = to_float(g[i]) * 2 * positive;
        }
        // One rounding of FP32, and one to Real; zeros are exact.
        const double tolerance = rounding_error<Real>() + 1.2e-7;
        DeviceArray<Real> inp(x), dout(g), out(n), dinp(n);
        relu2_forward<Real>(out, inp.get(), n, test_stream());
        CHECK(max_relative_error(out.download(), expected, 1e-30) < tolerance);
        relu2_backward<Real>(dinp, dout.get(), inp.get(), n, test_stream());
        CHECK(max_relative_error(dinp.download(), gradient, 1e-30) < tolerance);

        const auto once = dinp.download();
        relu2_backward<Real>(dout, dout.get(), inp.get(), n, test_stream());
        CHECK(same_bits(dout.download(), once));
        dout.upload(g);
        DeviceArray<Real> over(x);
        relu2_backward<Real>(over, dout.get(), over.get(), n, test_stream());
        CHECK(same_bits(over.download(), once));
        relu2_forward<Real>(inp, inp.get(), n, test_stream());
        CHECK(same_bits(inp.download(), out.download()));
    }
}

TEST_CASE("relu2 of values that are not ordinary") {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> x{inf, -inf, nan, 0.0f, -0.0f, -100.0f, 100.0f, 1e30f};
    DeviceArray<float> inp(x), y(8), dout(std::vector<float>(8, 1.0f)), d(8);
    relu2_forward<float>(y, inp.get(), 8, test_stream());
    relu2_backward<float>(d, dout.get(), inp.get(), 8, test_stream());
    const auto value = y.download(), gradient = d.download();
    CHECK(std::isnan(value[2]));
    CHECK(std::isnan(gradient[2]));
    const std::vector<float> values{inf, 0, 0, 0, 0, 0, 1e4f, inf}, gradients{inf, 0, 0, 0, 0, 0, 200.0f, 2e30f};
    for (size_t i = 0; i < 8; i++) {
        CAPTURE(i);
        if (i == 2) continue;
        CHECK(value[i] == values[i]);
        CHECK(gradient[i] == gradients[i]);
    }
    CHECK_THROWS_AS(relu2_forward<float>(y, inp.get(), 7, test_stream()), Error);
    CHECK_THROWS_AS(relu2_backward<float>(d, dout.get(), inp.get(), 0, test_stream()), Error);
}
