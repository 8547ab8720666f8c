// Kurtosis of activations, differences of products, and alignment of gate and up against FP64.
#include "llmc/kernels/outliers.h"

#include "llmc/check/reference_outliers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

template <class T>
std::vector<T> stored(const std::vector<float>& numbers) {
    std::vector<T> values;
    for (const float number : numbers) values.push_back(to<T>(number));
    return values;
}

std::string problem_of(const std::vector<double>& sums, const Bounded& expected) {
    return not_within({"sums", {{"", sums.size()}}}, sums, expected);
}

std::vector<float> alignment_of(const std::vector<float>& weight, int F, int C) {
    DeviceArray<float> device(weight), alignment(2), cosines(static_cast<size_t>(F));
    gate_alignment<float>(alignment, cosines, device, F, C, test_stream());
    return alignment.download();
}

}  // namespace

TEST_CASE_TEMPLATE("add_moments: sums over micro-batches with scales of their own", T, e4m3, bf16) {
    for (const size_t n : {size_t{8}, size_t{4096}, size_t{70000}}) {
        CAPTURE(n);
        const auto values = stored<T>(random_normal<float>(n, 20.0f, static_cast<uint32_t>(n)));
        DeviceArray<T> device(values);
        DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(moment_parts(n));
        std::vector<double> all;
        for (const float scale_inv : {1.5f, 0x1p-20f}) {
            const float scale = sizeof(T) == 1 ? scale_inv : 1.0f;
            Fp8State state{};
            state.scale_inv = scale;
            DeviceArray<Fp8State> with(std::vector<Fp8State>{state});
            add_moments<T>(sums, parts, device, n, sizeof(T) == 1 ? with.get() : nullptr, test_stream());
            for (const double x : to_doubles(values)) all.push_back(x * static_cast<double>(scale));
        }
        CHECK(problem_of(sums.download(), reference::moments(all)) == "");
    }
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

TEST_CASE_TEMPLATE("add_differences: sums over products", T, bf16, float) {
    for (const size_t n : {size_t{8}, size_t{4096}, size_t{70000}}) {
        CAPTURE(n);
        DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(moment_parts(n));
        std::vector<double> all_actual, all_expected;
        for (const float size : {1.0f, 0x1p-20f}) {
            const auto expected = stored<T>(random_normal<float>(n, size, static_cast<uint32_t>(n)));
            const auto actual = stored<T>(random_normal<float>(n, 1.5f * size, static_cast<uint32_t>(n) + 1));
            DeviceArray<T> a(actual), e(expected);
            add_differences<T>(sums, parts, a, e, n, test_stream());
            for (const double x : to_doubles(actual)) all_actual.push_back(x);
            for (const double x : to_doubles(expected)) all_expected.push_back(x);
        }
        CHECK(problem_of(sums.download(), reference::differences(all_actual, all_expected)) == "");
    }
}

TEST_CASE("add_differences: what is equal has none, and n is a multiple of 8") {
    const auto values = stored<bf16>(random_normal<float>(512, 1.0f, 7));
    DeviceArray<bf16> a(values), b(values);
    DeviceArray<double> sums(std::vector<double>(3, 0.0)), parts(moment_parts(512));
    add_differences<bf16>(sums, parts, a, b, 512, test_stream());
    CHECK(sums.download()[1] == 0);
    CHECK(sums.download()[2] > 0);
    CHECK_THROWS_AS(add_differences<bf16>(sums, parts, a, b, 12, test_stream()), Error);
}

TEST_CASE_TEMPLATE("gate_alignment", T, e4m3, bf16, float) {
    const std::pair<int, int> shapes[] = {{1, 8}, {16, 64}, {77, 264}, {520, 40}};
    for (const auto& [F, C] : shapes) {
        CAPTURE(F);
        CAPTURE(C);
        const size_t rows = static_cast<size_t>(F), width = static_cast<size_t>(C);
        const auto values = stored<T>(random_normal<float>(2 * rows * width, 1.0f, 5));
        DeviceArray<T> weight(values);
        DeviceArray<float> alignment(2), cosines(rows);
        gate_alignment<T>(alignment, cosines, weight, F, C, test_stream());
        const auto expected = reference::alignment(to_doubles(values), rows, width);
        CHECK(problem_of(to_doubles(alignment.download()), expected) == "");
    }
}

TEST_CASE("gate_alignment: 1 for parallel and for opposite rows of any length, 0 for others and for empty ones") {
    // Rows of gate, then of up: parallel, opposite, orthogonal, empty.
    constexpr int F = 4, C = 8;
    std::vector<float> weight(2 * F * C, 0.0f);
    const auto set = [&](int row, int channel, float value) { weight[static_cast<size_t>(row * C + channel)] = value; };
    set(0, 3, 0x1p-30f), set(F, 3, 0x1p-40f);
    set(1, 5, 2.0f), set(F + 1, 5, -0x1p50f);
    set(2, 1, 1.0f), set(F + 2, 2, 1.0f);
    set(3, 1, 1.0f);
    CHECK(alignment_of(weight, F, C) == std::vector<float>{0.5f, 1.0f});
    set(0, 3, 0.0f), set(1, 5, 0.0f);
    CHECK(alignment_of(weight, F, C) == std::vector<float>{0.0f, 0.0f});
    CHECK_THROWS_AS(alignment_of(weight, F, 4), Error);
}
