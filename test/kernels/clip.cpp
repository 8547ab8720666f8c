// Tests of clipping's kernels: every element against its definition, tails, loss scales, and norms in FP64.
#include "llmc/kernels/clip.h"

#include "test/kernels/updates.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("clip_values: to the bound times the loss scale, and nothing behind the tail") {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}})
        for (const float scale : {1.0f, 1024.0f}) {
            CAPTURE(n);
            std::vector<float> before = random_normal<float>(n, 0.3f * scale, 1), expected;
            before[n / 2] = -0.0f;
            DeviceArray<float> grad(poisoned_behind(before)), loss_scale(std::vector<float>{scale});
            clip_values(grad, n, 0.2, loss_scale, test_stream());
            for (const float g : before) expected.push_back(std::clamp(g, -0.2f * scale, 0.2f * scale));
            const std::vector<float> after = grad.download();
            CHECK(same_bits(first(after, n), expected));
            for (size_t i = n; i < n + kPoison; i++) REQUIRE(std::isnan(after[i]));
        }
    DeviceArray<float> grad(16), scale(1);
    CHECK_THROWS_AS(clip_values(grad + 1, 8, 1.0, scale, test_stream()), Error);
    CHECK_THROWS_AS(scale_gradient(grad + 1, 8, scale, test_stream()), Error);
}

TEST_CASE("scale_gradient: every element times the factor") {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2048}, size_t{4101}})
        for (const float factor : {1.0f, 0.3f}) {
            CAPTURE(n);
            const std::vector<float> before = random_normal<float>(n, 1.0f, 2);
            DeviceArray<float> grad(poisoned_behind(before)), by(std::vector<float>{factor});
            scale_gradient(grad, n, by, test_stream());
            std::vector<float> expected;
            for (const float g : before) expected.push_back(g * factor);
            const std::vector<float> after = grad.download();
            CHECK(same_bits(first(after, n), expected));
            for (size_t i = n; i < n + kPoison; i++) REQUIRE(std::isnan(after[i]));
        }
}

TEST_CASE("clip_factors: of sums of squares, in FP32 of the norm in FP64") {
    for (const float scale : {1.0f, 4096.0f}) {
        const size_t n = 300;
        std::vector<double> squares;
        for (size_t i = 0; i < n; i++) squares.push_back(scale * scale * std::pow(0.01 * static_cast<double>(i), 2));
        DeviceArray<double> device(squares);
        DeviceArray<float> factors(n), loss_scale(std::vector<float>{scale});
        clip_factors(factors, device, n, 1.25, loss_scale, test_stream());
        const std::vector<float> found = factors.download();
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            const double norm = static_cast<float>(std::sqrt(squares[i]) / static_cast<double>(scale));
            wrong += found[i] != static_cast<float>(norm > 1.25 ? 1.25 / norm : 1.0);
        }
        CHECK(wrong == 0);
        CHECK(found[125] == 1.0f);
        CHECK(found[126] < 1.0f);
    }
}

TEST_CASE("add_partials: all of them, however many") {
    for (const size_t n : {size_t{1}, size_t{255}, size_t{256}, size_t{1024}}) {
        std::vector<double> parts;
        for (size_t i = 0; i < n; i++) parts.push_back(static_cast<double>(i + 1));
        DeviceArray<double> device(parts), sum(1);
        add_partials(sum, device, n, test_stream());
        CHECK(sum.download()[0] == static_cast<double>(n * (n + 1) / 2));
    }
}
