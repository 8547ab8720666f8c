// Biases against FP64 sums, and their gradients against FP64 column sums.
#include "llmc/kernels/bias.h"

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("a bias is added to every row, and rounded once", Real, float, bf16) {
    std::vector<RowShape> shapes = row_shapes();
    shapes.push_back({3, 2056});   // more columns than a block has
    shapes.push_back({17000, 8});  // more than eight rows a thread
    for (const auto [N, OC] : shapes) {
        CAPTURE(N);
        CAPTURE(OC);
        const size_t n = static_cast<size_t>(N) * OC;
        const auto before = random_normal<Real>(n, 1.0f, N * 7919 + OC);
        const auto bias = random_normal<Real>(OC, 3.0f, N + OC, 0.5f);
        std::vector<double> expected(n);
        for (size_t i = 0; i < n; i++) expected[i] = static_cast<double>(to_float(before[i])) + to_float(bias[i % OC]);
        DeviceArray<Real> out(before);
        const DeviceArray<Real> device_bias(bias);
        add_bias<Real>(out, device_bias.get(), N, OC, test_stream());
        const auto sums = out.download();
        // Of the sum, which FP32 has rounded before for bf16.
        CHECK(max_relative_error(sums, expected, 1e-30) <= rounding_error<Real>() * (1 + 0x1p-15));
    }
    DeviceArray<Real> x(64);
    CHECK_THROWS_WITH(add_bias<Real>(x, x.get(), 4, 12, test_stream()),
                      "add_bias: C=12 columns; needs a positive multiple of 8 (16-byte accesses)");
}

template <class Real>
static std::vector<float> run_bias_gradient(const DeviceArray<Real>& dout, int N, int C,
                                            const std::vector<float>* add_to) {
    DeviceArray<float> dbias(C), scratch(bias_gradient_scratch(N, C));
    if (add_to) dbias.upload(*add_to);
    bias_gradient<Real>(dbias, scratch, dout.get(), N, C, add_to != nullptr, test_stream());
    return dbias.download();
}

TEST_CASE_TEMPLATE("bias gradients are column sums, overwritten or accumulated", Real, float, bf16) {
    std::vector<RowShape> shapes = row_shapes();
    shapes.push_back({5000, 24});   // several parts of narrow rows
    shapes.push_back({1031, 264});  // several parts and slabs, tails in both
    for (const auto [N, C] : shapes) {
        CAPTURE(N);
        CAPTURE(C);
        const auto dout = random_normal<Real>(static_cast<size_t>(N) * C, 1.0f, N * 7919 + C, 0.5f);
        std::vector<double> expected(C);
        for (size_t i = 0; i < dout.size(); i++) expected[i % C] += to_float(dout[i]);
        const DeviceArray<Real> device_dout(dout);

        const auto dbias = run_bias_gradient(device_dout, N, C, nullptr);
        CHECK(max_relative_error(dbias, expected, 1.0 + 0.5 * N) < 1e-6);
        CHECK(same_bits(dbias, run_bias_gradient(device_dout, N, C, nullptr)));

        const auto before = random_normal<float>(C, 10.0f, 5);
        for (int c = 0; c < C; c++) expected[c] += before[c];
        CHECK(max_relative_error(run_bias_gradient(device_dout, N, C, &before), expected, 10.0 + 0.5 * N) < 1e-6);
    }
}

TEST_CASE("bias_gradient refuses shapes it cannot read in 16-byte vectors") {
    DeviceArray<float> x(64);
    CHECK_THROWS_WITH(bias_gradient<float>(x, x, x.get(), 4, 12, false, test_stream()),
                      "bias_gradient: C=12 columns; needs a positive multiple of 8 (16-byte accesses)");
    CHECK_THROWS_AS(bias_gradient<float>(x, x, x.get(), 0, 8, false, test_stream()), Error);
}
