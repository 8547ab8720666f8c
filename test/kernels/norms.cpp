// Layer norm and RMS norm: their specifications at many shapes, and properties that a specification cannot express.
// build: per device
#include "llmc/kernels/norm.h"

#include <numeric>

#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif
#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("norms, plain and quantizing, meet their specifications") { check_specifications(check::add_norm_tests); }

TEST_CASE("layer norm keeps its precision far from zero") {
    const int N = 5, C = 768;
    const auto x = random_normal<float>(size_t{1} * N * C, 1.0f, 1, 1000.0f);
    DeviceArray<float> inp(x), normed(x.size()), mean(N), rstd(N), weight(random_normal<float>(C, 0.3f, 2, 1.0f));
    // sum(x^2) - mean^2 in FP32 would lose everything here.
    norm_forward<float>({weight, weight}, normed, mean, rstd, inp, N, C, test_stream());
    CHECK(max_relative_error(rstd.download(), reference::layernorm_statistics(to_doubles(x), N, C).rstd, 0.0) < 1e-5);
}

TEST_CASE("gradients of norms are the derivatives of their forward passes") {
    const int N = 3, C = 64;
    const auto x = to_doubles(random_normal<float>(N * C, 2.0f, 1, 0.5f)),
               dout = to_doubles(random_normal<float>(N * C, 1.0f, 2, 0.2f)),
               weight = to_doubles(random_normal<float>(C, 0.3f, 3, 1.0f));
    for (const bool centered : {true, false}) {
        CAPTURE(centered);
        const auto statistics_of = [&](const std::vector<double>& values) {
            return centered ? reference::layernorm_statistics(values, N, C)
                            : reference::rmsnorm_statistics(values, N, C, 1e-5);
        };
        const auto loss = [&](const std::vector<double>& values) {
            const auto y = reference::normed_rows(values, statistics_of(values), weight, {});
            return std::inner_product(y.begin(), y.end(), dout.begin(), 0.0);
        };
        const auto gradient = reference::norm_gradient(x, dout, weight, statistics_of(x), centered).dinp;
        for (size_t i = 0; i < x.size(); i += 17) {
            auto up = x, down = x;
            up[i] += 1e-4;
            down[i] -= 1e-4;
            CHECK((loss(up) - loss(down)) / 2e-4 == doctest::Approx(gradient[i]).epsilon(1e-6));
        }
    }
}

#if !LLMC_CUDA
// Cards with less shared memory per block put fewer rows in a block from C=5760 (99 KB) or 9856 (163 KB) on.
TEST_CASE("the quantizing norm gives the same bytes with any amount of shared memory") {
    size_t& limit = host::settings().shared_limit;
    const size_t usual = limit;
    for (const int C : {1536, 5760, 5776, 9872, 11648}) {
        CAPTURE(C);
        const int N = 32;
        const size_t n = size_t{1} * N * C;
        DeviceArray<bf16> inp(random_normal<bf16>(n, 1.0f, 1, 0.5f)), weight(random_normal<bf16>(C, 0.3f, 3, 1.0f)),
            shift(random_normal<bf16>(C, 0.3f, 4));
        DeviceArray<float> mean(N), rstd(N);
        const auto run = [&](QuantizedArrays<e4m3>& to) {
            norm_forward_fp8({weight, shift}, to.both(), mean, rstd, inp, N, C, QuantizePass::train, test_stream());
        };
        limit = 227 * 1024;
        QuantizedArrays<e4m3> expected(n, used_state(64.0f));
        run(expected);
        CHECK(same_bits(expected.transposed.download(), reference::turned(expected.row.download(), N, C)));
        for (const size_t kilobytes : {163, 99}) {
            CAPTURE(kilobytes);
            limit = kilobytes * 1024;
            QuantizedArrays<e4m3> to(n, used_state(64.0f));
            run(to);
            CHECK(same_bits(to.row.download(), expected.row.download()));
            CHECK(same_bits(to.transposed.download(), expected.transposed.download()));
            CHECK(same_bits(to.state.download(), expected.state.download()));
        }
        limit = usual;
    }
    limit = 99 * 1024;
    DeviceArray<bf16> x(size_t{16} * 11664);
    QuantizedArrays<e4m3> to(x.size(), used_state(1.0f));
    const std::string message = error_of([&] {
        norm_forward_fp8({x, x}, to.both(), nullptr, nullptr, x, 16, 11664, QuantizePass::train, test_stream());
    });
    limit = usual;
    CAPTURE(message);
    CHECK(contains(message, "C=11664 need "));
    CHECK(contains(message, "a block 101376"));
}
#endif

// A multiprocessor holds 16 warps of these kernels' 128 registers, in whole blocks. The scratch's size tells how many
// blocks a kernel has.
TEST_CASE("backward passes of layer norm: one full wave of blocks on an H100") {
    const auto check_wave = [](int C, size_t scratch, int warps) {
        CAPTURE(C);
        const size_t blocks = scratch / (2 * static_cast<size_t>(C));
        CHECK(blocks % 132 == 0);
        CHECK(static_cast<int>(blocks / 132) == 16 / warps);
    };
    for (const int C : {256, 768, 1024, 1280, 1600, 2048, 4096, 5120, 12288}) {
        const int width = C > 4096 ? 768 : 256;
        check_wave(C, norm_backward_scratch(NormKind::layer, 1 << 20, C), (C + width - 1) / width);
        if (C <= kWidestFusedGradient)
            check_wave(C, norm_backward_fp8_scratch(NormKind::layer, 1 << 20, C), (C + 255) / 256);
    }
}

TEST_CASE("plain norms refuse unsupported arguments") {
    DeviceArray<float> x(12304);
    const auto layernorm = [&](float* mean, int N, int C) {
        norm_forward<float>({x, x}, x, mean, x, x, N, C, test_stream());
    };
    const auto rmsnorm = [&](float* mean, int N, int C) {
        norm_forward<float>({x}, x, mean, x, x, N, C, test_stream());
    };
    CHECK(contains(error_of([&] { rmsnorm(nullptr, 1, 12); }), "norm_forward: C=12"));
    for (const auto& [N, C] : {std::pair{1, 12}, {0, 8}, {1, 12296}}) {
        CHECK_THROWS_AS(layernorm(x, N, C), Error);
        CHECK_THROWS_AS(rmsnorm(nullptr, N, C), Error);
    }
    CHECK_THROWS_AS(layernorm(nullptr, 1, 8), Error);
    CHECK_THROWS_AS(rmsnorm(x, 1, 8), Error);
    CHECK_THROWS_AS(norm_backward<float>({x, x}, {x, x, x}, x, nullptr, x, x, x, x, 1, 12, test_stream()), Error);
    const auto backward = [&](float* dweight, const float* weight, int C) {
        norm_backward<float>({weight}, {dweight, nullptr, x}, x, nullptr, x, x, nullptr, x, 1, C, test_stream());
    };
    CHECK_THROWS_AS(backward(x, x, 12), Error);
    CHECK_THROWS_AS(backward(x, nullptr, 8), Error);
    CHECK_THROWS_AS(backward(nullptr, x, 8), Error);
}

TEST_CASE("quantizing norms refuse unsupported arguments") {
    DeviceArray<bf16> x(512);
    DeviceArray<float> f(512);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    QuantizedArrays<e5m2> gradient(512, used_state(1.0f));
    const auto layernorm = [&](float* mean, int N, int C) {
        return error_of([&] {
            norm_forward_fp8({x, x}, to.both(), mean, f, x, N, C, QuantizePass::train, test_stream());
        });
    };
    const auto rmsnorm = [&](float* mean, int N, int C) {
        return error_of(
            [&] { norm_forward_fp8({x}, to.both(), mean, f, x, N, C, QuantizePass::train, test_stream()); });
    };
    CHECK(layernorm(f, 16, 16) == "");
    CHECK(contains(layernorm(f, 24, 16), "N=24"));
    CHECK(contains(layernorm(f, 16, 24), "C=24"));
    CHECK(contains(layernorm(f, 16, 12304), "C=12304"));
    CHECK(layernorm(nullptr, 16, 16) != "");
    CHECK(rmsnorm(nullptr, 16, 16) == "");
    CHECK(contains(rmsnorm(nullptr, 24, 16), "norm_forward_fp8: N=24"));
    CHECK(contains(rmsnorm(nullptr, 16, 12304), "C=12304"));
    CHECK(rmsnorm(f, 16, 16) != "");

    const auto layernorm_gradient = [&](int N, int C, QuantizePass pass) {
        return error_of([&] {
            norm_backward_fp8({x, x}, {f, f, f}, gradient.both(), f, x, nullptr, x, x, f, f, N, C, pass, test_stream());
        });
    };
    CHECK(contains(layernorm_gradient(24, 16, QuantizePass::train), "N=24"));
    CHECK(contains(layernorm_gradient(16, 24, QuantizePass::train), "C=24"));
    CHECK(contains(layernorm_gradient(16, 4112, QuantizePass::train), "C=4112"));
    CHECK(contains(layernorm_gradient(16, 16, QuantizePass::write), "runs once"));
    CHECK(contains(layernorm_gradient(16, 16, QuantizePass::replay), "runs once"));
    const auto rmsnorm_gradient = [&](float* dweight, int C, QuantizePass pass) {
        return error_of([&] {
            norm_backward_fp8({x}, {dweight, nullptr, f}, gradient.both(), nullptr, x, nullptr, x, x, nullptr, f, 16, C,
                              pass, test_stream());
        });
    };
    CHECK(rmsnorm_gradient(f, 16, QuantizePass::train) == "");
    CHECK(contains(rmsnorm_gradient(f, 4112, QuantizePass::train), "norm_backward_fp8: C=4112"));
    CHECK(contains(rmsnorm_gradient(f, 16, QuantizePass::write), "runs once"));
    CHECK(contains(rmsnorm_gradient(nullptr, 16, QuantizePass::train), "go together"));
}
