// Hopper's products with GELU: their specifications, and refusals. Skipped where the device is no Hopper card.
#include "llmc/kernels/hopper/matmul_gelu.h"

#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("Hopper's products with GELU write the bytes of a product and a separate kernel") {
    test_stream();
    if (!is_hopper()) return;
    check_specifications(check::add_product_with_gelu_tests);
}

TEST_CASE("Hopper's products with GELU refuse other shapes, and passes that only measure") {
    test_stream();
    if (!is_hopper()) return;
    const auto refusal = [](int N, int K, int F, QuantizePass pass) {
        Fp8State* const never_read = reinterpret_cast<Fp8State*>(64);
        return error_of(
            [&] {
                hopper::multiply_gelu_forward({nullptr, nullptr, never_read}, nullptr, {}, {}, nullptr, N, K, F, pass,
                                              nullptr, test_stream());
            },
            ExitCode::failure);
    };
    for (const auto& [N, K, F] : {std::tuple{64, 128, 256}, {128, 128, 384}, {128, 24, 256}, {0, 128, 256}})
        CHECK(refusal(N, K, F, QuantizePass::train).find("must be a multiple of 128") != std::string::npos);
    CHECK(refusal(128, 128, 256, QuantizePass::measure).find("measures nothing") != std::string::npos);
}
