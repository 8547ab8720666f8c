// Tests of llmc/kernels/dequantize: every code, sizes around a block, and the factors of a product.
#include "llmc/kernels/quantize.h"

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE_TEMPLATE("dequantize: every code is its value, and nothing else is written", F8, e4m3, e5m2) {
    for (const size_t n : {size_t{16}, size_t{4096}, size_t{4112}, size_t{9008}}) {
        CAPTURE(n);
        std::vector<F8> codes(n);
        for (size_t i = 0; i < n; i++) codes[i] = F8{static_cast<uint8_t>(i * 7)};
        DeviceArray<F8> inp(codes);
        DeviceArray<bf16> out(n + 16);
        dequantize(out.get(), inp.get(), n, test_stream());
        const std::vector<bf16> values = out.download();
        int wrong = 0;
        for (size_t i = 0; i < n; i++) {
            const float expected = to_float(codes[i]), actual = to_float(values[i]);
            wrong += std::isnan(expected) ? !std::isnan(actual) : float_bits(expected) != float_bits(actual);
        }
        CHECK(wrong == 0);
        for (size_t i = n; i < n + 16; i++) CHECK(std::isnan(to_float(values[i])));
    }
    DeviceArray<F8> inp(32);
    DeviceArray<bf16> out(32);
    CHECK_THROWS_WITH(dequantize(out.get(), inp.get(), 24, test_stream()), doctest::Contains("multiple of 16"));
}

TEST_CASE("product factors: both scales, rounded once, and beta") {
    DeviceArray<float> first(std::vector<float>{0.0127f}), second(std::vector<float>{3.3e-7f}), factors(3);
    product_factors(factors, first, second, 1.0f, test_stream());
    const std::vector<float> values = factors.download();
    CHECK(values[0] == 0.0127f * 3.3e-7f);
    CHECK(values[1] == 1.0f);
    CHECK(std::isnan(values[2]));
}
