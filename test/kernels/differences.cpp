// add_differences(): its specification, and values with known results.
#include "llmc/kernels/differences.h"

#include "test/kernels/specifications.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("add_differences meets its specification") { check_specifications(check::add_probe_tests); }

TEST_CASE("add_differences: equal values have none, and n must be a multiple of 8") {
    const auto values = random_normal<bf16>(512, 1.0f, 7);
    DeviceArray<bf16> a(values), b(values);
    DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(difference_parts(512));
    add_differences<bf16>(sums, parts, a, b, 512, test_stream());
    CHECK(sums.download()[1] == 0);
    CHECK(sums.download()[2] > 0);
    CHECK_THROWS_AS(add_differences<bf16>(sums, parts, a, b, 12, test_stream()), Error);
}
