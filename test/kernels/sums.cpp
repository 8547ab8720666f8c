// Biases, element-wise sums and squares of gradients: their specifications at many shapes, and properties that a
// specification cannot express.
#include "llmc/kernels/bias.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/elementwise.h"
#include "test/kernels/check_specifications.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("biases, sums and squares meet their specifications") { check_specifications(check::add_sum_tests); }

namespace {

double sum_of(const std::vector<double>& partials, size_t begin, size_t count) {
    double sum = 0;
    for (size_t i = begin; i < begin + count; i++) sum += partials[i];
    return sum;
}

}  // namespace

TEST_CASE("global norm: the number of blocks is a function of the size") {
    CHECK(global_norm_blocks(0) == 0);
    CHECK(global_norm_blocks(1) == 1);
    CHECK(global_norm_blocks(32768) == 1);
    CHECK(global_norm_blocks(32769) == 2);
    CHECK(global_norm_blocks(size_t{1} << 40) == 1024);
}

TEST_CASE("global norm: beyond the largest number of blocks every element still counts once") {
    const size_t n = size_t{1024} * 32768 + 8 * 300 + 3;  // a second, partial stride for some threads
    const std::vector<float> ones(n, 0.5f);
    DeviceArray<float> grad(ones);
    DeviceArray<double> partials(global_norm_blocks(n));
    global_norm_partials(partials, grad.get(), n, test_stream());
    const std::vector<double> parts = partials.download();
    CHECK(sum_of(parts, 0, parts.size()) == 0.25 * static_cast<double>(n));  // all sums are exact in FP32
}

TEST_CASE("global norm: the sum does not depend on where gradients are cut") {
    const size_t n = 3 * 64 * 1024;
    DeviceArray<float> grad(random_normal<float>(n, 0.01f, 5, 0.002f));
    DeviceArray<double> partials(2 * global_norm_blocks(n) + 8);
    double whole = 0;
    for (const size_t parts : {size_t{1}, size_t{2}, size_t{3}, size_t{8}}) {
        const size_t count = n / parts, blocks = global_norm_blocks(count);
        double sum = 0;
        for (size_t p = 0; p < parts; p++) {
            global_norm_partials(partials, grad + p * count, count, test_stream());
            sum += sum_of(partials.download(), 0, blocks);
        }
        if (parts == 1) whole = sum;
        CHECK(std::fabs(sum / whole - 1) < 1e-14);
    }
}

TEST_CASE("global norm: one non-finite gradient makes its part non-finite, wherever it is") {
    const size_t n = 2051;
    for (const size_t position : {size_t{0}, size_t{1000}, n - 4, n - 1})
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            std::vector<float> values(n, 1.0f);
            values[position] = bad;
            DeviceArray<float> grad(values);
            DeviceArray<double> partials(1);
            global_norm_partials(partials, grad.get(), n, test_stream());
            CHECK(!std::isfinite(partials.download()[0]));
        }
}

TEST_CASE("casts between FP32 and BF16: any count, and nothing beyond it") {
    for (const size_t n : {1, 7, 8, 9, 2048, 2049, 5003}) {
        CAPTURE(n);
        Trial trial(test_stream());
        const auto wide = trial.normal<float>(n, 3.0f);
        bf16* narrow = trial.result<bf16>("bf16", n);
        float* back = trial.result<float>("fp32", n);
        trial.run_twice([&] {
            cast(narrow, wide.data, n, test_stream());
            cast(back, static_cast<const bf16*>(narrow), n, test_stream());
        });
        std::vector<bf16> rounded;
        for (const float x : wide.values) rounded.push_back(reference::nearest_bf16(static_cast<double>(x)));
        trial.equal(narrow, rounded);
        trial.equal(back, reference::to_floats(rounded));
        CHECK(trial.problem() == "");
    }
}

TEST_CASE("bias gradients and element-wise sums refuse unsupported arguments") {
    DeviceArray<float> x(64);
    DeviceArray<bf16> narrow(64);
    CHECK_THROWS_WITH(bias_gradient<float>(x, x, x.get(), 4, 12, false, test_stream()),
                      "bias_gradient: C=12 columns; needs a positive multiple of 8 (16-byte accesses)");
    CHECK_THROWS_AS(bias_gradient<float>(x, x, x.get(), 0, 8, false, test_stream()), Error);
    CHECK_THROWS_AS(cast(narrow.get(), static_cast<const float*>(x.get() + 1), 8, test_stream()), Error);
    CHECK_THROWS_AS(add(x, x, x + 2, 8, test_stream()), Error);
    add(x, x, x, 0, test_stream());
    for (const float value : x.download()) CHECK(std::isnan(value));
}
