// Tests of llmc/kernels/global_norm against FP64 sums, on sizes from one element to several blocks with a tail.
#include "llmc/kernels/clip.h"

#include "test/kernel_test.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

double sum_of(const std::vector<double>& partials, size_t begin, size_t count) {
    double sum = 0;
    for (size_t i = begin; i < begin + count; i++) sum += partials[i];
    return sum;
}

double sum_of_squares(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return sum;
}

}  // namespace

TEST_CASE("the number of blocks is a function of the size") {
    CHECK(global_norm_blocks(0) == 0);
    CHECK(global_norm_blocks(1) == 1);
    CHECK(global_norm_blocks(32768) == 1);
    CHECK(global_norm_blocks(32769) == 2);
    CHECK(global_norm_blocks(size_t{1} << 40) == 1024);
}

TEST_CASE("partial sums of several tensors in one array") {
    // 70001: three blocks, whose threads take several strides, and a tail of one element.
    const size_t sizes[] = {1, 7, 8, 2051, 32768, 70001};
    size_t total_blocks = 0;
    for (const size_t n : sizes) total_blocks += global_norm_blocks(n);

    DeviceArray<double> partials(total_blocks + 1);
    std::vector<double> expected;
    size_t offset = 0;
    for (const size_t n : sizes) {
        const std::vector<float> grad = random_normal<float>(n, 0.01f, static_cast<uint32_t>(n), 0.002f);
        DeviceArray<float> device_grad(grad);
        global_norm_partials(partials + offset, device_grad, n, test_stream());
        expected.push_back(sum_of_squares(grad));
        offset += global_norm_blocks(n);
    }
    const std::vector<double> parts = partials.download();
    CHECK(parts.back() != parts.back());  // one beyond the last part is untouched
    offset = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        const size_t blocks = global_norm_blocks(sizes[i]);
        CAPTURE(sizes[i]);
        CHECK(std::fabs(sum_of(parts, offset, blocks) / expected[i] - 1.0) < 1e-6);
        offset += blocks;
    }
}

TEST_CASE("beyond the largest number of blocks every element still counts once" * doctest::test_suite(kNotUnderTsan)) {
    const size_t n = size_t{1024} * 32768 + 8 * 300 + 3;  // a second, partial stride for some threads
    const std::vector<float> ones(n, 0.5f);
    DeviceArray<float> grad(ones);
    DeviceArray<double> partials(global_norm_blocks(n));
    global_norm_partials(partials, grad, n, test_stream());
    const std::vector<double> parts = partials.download();
    CHECK(sum_of(parts, 0, parts.size()) == 0.25 * static_cast<double>(n));  // all sums are exact in FP32
}

TEST_CASE("the sum does not depend on where gradients are cut") {
    const size_t n = 3 * 64 * 1024;
    const std::vector<float> grad = random_normal<float>(n, 0.01f, 5, 0.002f);
    DeviceArray<float> device_grad(grad);
    DeviceArray<double> partials(2 * global_norm_blocks(n) + 8);
    double whole = 0;
    for (const size_t parts : {size_t{1}, size_t{2}, size_t{3}, size_t{8}}) {
        const size_t count = n / parts, blocks = global_norm_blocks(count);
        double sum = 0;
        for (size_t p = 0; p < parts; p++) {
            global_norm_partials(partials, device_grad + p * count, count, test_stream());
            sum += sum_of(partials.download(), 0, blocks);
        }
        if (parts == 1) whole = sum;
        CHECK(std::fabs(sum / whole - 1) < 1e-14);
    }
}

TEST_CASE("one non-finite gradient makes its part non-finite, wherever it is") {
    const size_t n = 2051;
    for (const size_t position : {size_t{0}, size_t{1000}, n - 4, n - 1})
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            std::vector<float> grad(n, 1.0f);
            grad[position] = bad;
            DeviceArray<float> device_grad(grad);
            DeviceArray<double> partials(1);
            global_norm_partials(partials, device_grad, n, test_stream());
            CHECK(!std::isfinite(partials.download()[0]));
        }
}
