// Records of outliers: the specifications of all kernels that observe FP8, and values with known results.
#include "llmc/kernels/outliers.h"

#include "test/kernels/specifications.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<float> alignment_of(const std::vector<float>& weight, int F, int C) {
    DeviceArray<float> device(weight), alignment(2), cosines(static_cast<size_t>(F));
    gate_alignment<float>(alignment, cosines, device, F, C, test_stream());
    return alignment.download();
}

}  // namespace

TEST_CASE("records of outliers, probes and smoothing meet their specifications") {
    check_specifications(check::add_observer_tests);
}

TEST_CASE("add_moments: kurtosis is 1 of equal magnitudes and n of a single one, whatever their size") {
    constexpr size_t n = 512;
    const auto kurtosis = [&](std::vector<bf16> values) {
        DeviceArray<bf16> device(values);
        DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(moment_parts(n));
        add_moments<bf16>(sums, parts, device, n, nullptr, test_stream());
        const auto s = sums.download();
        return s[0] * s[2] / (s[1] * s[1]);
    };
    std::vector<bf16> values(n, to_bf16(-0x1p-60f));
    CHECK(kurtosis(values) == 1);
    values.assign(n, to_bf16(0.0f));
    values[77] = to_bf16(0x1p60f);
    CHECK(kurtosis(values) == n);
    DeviceArray<bf16> device(values);
    DeviceArray<double> sums(3), parts(moment_parts(n));
    CHECK_THROWS_AS(add_moments<bf16>(sums, parts, device, 12, nullptr, test_stream()), Error);
}

TEST_CASE("add_differences: equal values have none, and n must be a multiple of 8") {
    const auto values = random_normal<bf16>(512, 1.0f, 7);
    DeviceArray<bf16> a(values), b(values);
    DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(moment_parts(512));
    add_differences<bf16>(sums, parts, a, b, 512, test_stream());
    CHECK(sums.download()[1] == 0);
    CHECK(sums.download()[2] > 0);
    CHECK_THROWS_AS(add_differences<bf16>(sums, parts, a, b, 12, test_stream()), Error);
}

TEST_CASE("gate_alignment: 1 for parallel and for opposite rows of any length, 0 for others and for empty ones") {
    // Rows of gate, then of up: parallel, opposite, orthogonal, empty.
    constexpr int F = 4, C = 8;
    std::vector<float> weight(2 * F * C, 0.0f);
    const auto set = [&](int row, int channel, float value) { weight[row * C + channel] = value; };
    set(0, 3, 0x1p-30f), set(F, 3, 0x1p-40f);
    set(1, 5, 2.0f), set(F + 1, 5, -0x1p50f);
    set(2, 1, 1.0f), set(F + 2, 2, 1.0f);
    set(3, 1, 1.0f);
    CHECK(alignment_of(weight, F, C) == std::vector<float>{0.5f, 1.0f});
    set(0, 3, 0.0f), set(1, 5, 0.0f);
    CHECK(alignment_of(weight, F, C) == std::vector<float>{0.0f, 0.0f});
    CHECK_THROWS_AS(alignment_of(weight, F, 4), Error);
}
