// Quantizing layer norm backward against FP64, and its codes, counts and bias gradient against the BF16 gradient that
// it writes beside them.
// build: per device
#include "llmc/kernels/norm.h"

#include "test/kernels/quantized.h"
#include "test/kernels/shared_memory.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Rows of one warp and more, tiles of 32 rows and of 16, the last one whole or not, and at the end widths whose tile
// needs 48 KB of shared memory with the static arrays alone (2320 to 2432).
std::vector<RowShape> gradient_shapes() {
    return {{16, 16},   {48, 64},   {80, 144},  {64, 256},  {48, 272}, {112, 768},
            {16, 1600}, {48, 2064}, {32, 4096}, {16, 2320}, {16, 2432}};
}

// Inputs, and the FP64 gradients.
struct Case {
    int N, C;
    size_t n;
    DeviceArray<bf16> inp, weight, dout, dresidual;
    DeviceArray<float> mean, rstd, dweight, dshift, scratch, bias_parts, dbias;
    std::vector<double> expected, expected_dweight, expected_dshift;  // expected: without dresidual

    Case(int N_, int C_)
        : N(N_),
          C(C_),
          n(static_cast<size_t>(N) * C),
          inp(random_normal<bf16>(n, 2.0f, static_cast<uint32_t>(N * 41 + C), 0.5f)),
          weight(random_normal<bf16>(static_cast<size_t>(C), 0.3f, static_cast<uint32_t>(C + 2), 1.0f)),
          dout(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 43 + C), 0.2f)),
          dresidual(random_normal<bf16>(n, 1.0f, static_cast<uint32_t>(N * 47 + C), 0.3f)),
          mean(static_cast<size_t>(N)),
          rstd(static_cast<size_t>(N)),
          dweight(static_cast<size_t>(C)),
          dshift(static_cast<size_t>(C)),
          scratch(layernorm_backward_fp8_scratch(N, C)),
          bias_parts(layernorm_backward_fp8_bias_parts(N, C)),
          dbias(static_cast<size_t>(C)) {
        const auto x = to_doubles(inp.download());
        const auto s = reference::row_statistics(x, N, C);
        mean.upload(std::vector<float>(s.mean.begin(), s.mean.end()));
        rstd.upload(std::vector<float>(s.rstd.begin(), s.rstd.end()));
        const auto gradient =
            reference::layernorm_gradient(x, to_doubles(dout.download()), to_doubles(weight.download()), s);
        expected = gradient.dinp, expected_dweight = gradient.dweight, expected_dshift = gradient.dshift;
    }

    template <class F8>
    void run(const Quantized<F8>& to, bf16* dinp, const bf16* residual_gradient, QuantizePass pass,
             bool accumulate = false) {
        layernorm_backward_fp8<F8>(to, bias_parts, dinp, residual_gradient, dweight, dshift, scratch, dout.get(),
                                   inp.get(), weight.get(), mean.get(), rstd.get(), N, C, accumulate, pass,
                                   test_stream());
    }
    std::vector<float> bias(bool accumulate) {
        finish_bias_gradient(dbias, bias_parts, N, C, accumulate, test_stream());
        return dbias.download();
    }
};

}  // namespace

TEST_CASE_TEMPLATE("layernorm_backward_fp8, train and measure, with and without dresidual", F8, e4m3, e5m2) {
    const float scale = std::is_same_v<F8, e4m3> ? 300.0f : 0.7f;  // saturates; a little underflows
    for (const auto [N, C] : gradient_shapes()) {
        forget_shared_memory();
        CAPTURE(N);
        CAPTURE(C);
        Case c(N, C);
        const auto untouched = DeviceArray<F8>(c.n).download();
        for (const bool with_residual : {true, false}) {
            auto total = c.expected;
            const auto r = to_doubles(c.dresidual.download());
            for (size_t i = 0; i < c.n; i++) total[i] += with_residual ? r[i] : 0;
            const Fp8State before = used_state(scale);
            DeviceArray<bf16> dinp(c.n), measured(c.n);
            QuantizedArrays<F8> to(c.n, before), other(c.n, before);
            c.run<F8>(to.both(), dinp, with_residual ? c.dresidual.get() : nullptr, QuantizePass::train_counted);
            const auto gradient = dinp.download();
            const auto dweight = c.dweight.download(), dshift = c.dshift.download(), dbias = c.bias(false);
            CHECK(max_relative_error(gradient, total, 0.5) < rounding_error<bf16>() + 5e-6);
            CHECK(max_relative_error(dweight, c.expected_dweight, 1.0 + N) < 2e-6);
            CHECK(max_relative_error(dshift, c.expected_dshift, 1.0 + N) < 2e-6);

            // Everything else follows from the rounded gradient.
            const auto values = to_floats(gradient);
            const QuantizedReference<F8> reference(values, scale);
            CHECK(wrong_codes(to.row.download(), reference.row, Known::exactly) == 0);
            CHECK(not_transposed(to.row.download(), to.transposed.download(), N, C) == 0);
            CHECK(state_matches(to.state.download()[0], reference.after(before, QuantizePass::train_counted),
                                Known::exactly, 0));
            CHECK(max_relative_error(dbias, column_sums(values, C), 1.0 + 0.3 * N) < 1e-6);

            const auto parts = c.bias_parts.download();
            QuantizedArrays<F8> uncounted(c.n, before);
            c.run<F8>(uncounted.both(), measured, with_residual ? c.dresidual.get() : nullptr, QuantizePass::train);
            CHECK(same_bits(uncounted.row.download(), to.row.download()));
            CHECK(state_matches(uncounted.state.download()[0], reference.after(before, QuantizePass::train),
                                Known::exactly, 0));

            // Measuring gives the same gradients and writes no FP8.
            c.run<F8>(other.both(), measured, with_residual ? c.dresidual.get() : nullptr, QuantizePass::measure);
            CHECK(same_bits(measured.download(), gradient));
            CHECK(same_bits(c.dweight.download(), dweight));
            CHECK(same_bits(c.dshift.download(), dshift));
            CHECK(same_bits(other.row.download(), untouched));
            CHECK(same_bits(other.transposed.download(), untouched));
            CHECK(same_bits(c.bias_parts.download(), parts));
            CHECK(state_matches(other.state.download()[0], reference.after(before, QuantizePass::measure),
                                Known::exactly, 0));
        }
    }
}

// A block that takes a second tile must not write its codes before the first one's have been read. One warp with tiles
// of 32 rows has the most blocks, nine with tiles of 16 the fewest.
TEST_CASE("layernorm_backward_fp8 with more tiles than blocks") {
    for (const auto [rows, C] : {RowShape{32, 16}, {16, 2064}}) {
        const int blocks = static_cast<int>(layernorm_backward_fp8_scratch(1 << 20, C) / (2 * static_cast<size_t>(C)));
        REQUIRE(blocks < (1 << 20) / rows);
        const int N = rows * blocks + 16;
        CAPTURE(N);
        Case c(N, C);
        DeviceArray<bf16> dinp(c.n);
        QuantizedArrays<e5m2> to(c.n, used_state(0.7f));
        c.run<e5m2>(to.both(), dinp, nullptr, QuantizePass::train);
        const auto gradient = dinp.download();
        CHECK(max_relative_error(gradient, c.expected, 0.5) < rounding_error<bf16>() + 5e-6);
        CHECK(max_relative_error(c.dweight.download(), c.expected_dweight, 1.0 + N) < 2e-6);
        CHECK(max_relative_error(c.dshift.download(), c.expected_dshift, 1.0 + N) < 2e-6);
        CHECK(max_relative_error(c.bias(false), column_sums(to_floats(gradient), C), 1.0 + 0.3 * N) < 2e-6);
        CHECK(wrong_codes(to.row.download(), QuantizedReference<e5m2>(to_floats(gradient), 0.7f).row, Known::exactly) ==
              0);
        CHECK(not_transposed(to.row.download(), to.transposed.download(), N, C) == 0);
    }
}

TEST_CASE("layernorm_backward_fp8 in place, accumulating, and with one layout alone") {
    for (const auto [N, C] : {RowShape{80, 144}, {48, 272}}) {
        Case c(N, C);
        const Fp8State before = used_state(8.0f);
        QuantizedArrays<e5m2> to(c.n, before), row(c.n, before), columns(c.n, before);
        DeviceArray<bf16> dinp(c.n);
        const auto untouched = to.row.download();
        c.run<e5m2>(to.both(), dinp, c.dresidual.get(), QuantizePass::train);
        const auto gradient = dinp.download();
        const auto dweight = c.dweight.download(), dbias = c.bias(false);

        c.run<e5m2>({row.row.get(), nullptr, row.state.get()}, dinp, c.dresidual.get(), QuantizePass::train, true);
        c.run<e5m2>({nullptr, columns.transposed.get(), columns.state.get()}, dinp, c.dresidual.get(),
                    QuantizePass::train);
        CHECK(same_bits(row.row.download(), to.row.download()));
        CHECK(same_bits(row.transposed.download(), untouched));
        CHECK(same_bits(columns.transposed.download(), to.transposed.download()));
        CHECK(same_bits(columns.row.download(), untouched));
        CHECK(same_bits(columns.state.download(), to.state.download()));

        c.run<e5m2>(row.both(), c.dresidual, c.dresidual.get(), QuantizePass::train, true);
        CHECK(same_bits(c.dresidual.download(), gradient));
        CHECK(same_bits(row.row.download(), to.row.download()));
        auto twice = c.expected_dweight;
        for (double& w : twice) w *= 2;
        CHECK(max_relative_error(c.dweight.download(), twice, 2.0 + 2.0 * N) < 2e-6);
        auto sums = column_sums(to_floats(gradient), C);
        for (double& sum : sums) sum *= 2;
        CHECK(max_relative_error(c.bias(true), sums, 2.0 + 0.6 * N) < 1e-6);
        CHECK(same_bits(c.bias(false), dbias));

        c.run<e5m2>(to.both(), c.dout, nullptr, QuantizePass::train);  // over dout
        CHECK(same_bits(c.dweight.download(), dweight));
    }
}

TEST_CASE("layernorm_backward_fp8 counts what is not finite") {
    Case c(48, 144);
    auto values = c.dresidual.download();
    values[5] = to_bf16(std::numeric_limits<float>::infinity());
    values[1000] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    c.dresidual.upload(values);
    for (const QuantizePass pass : {QuantizePass::train, QuantizePass::train_counted, QuantizePass::measure}) {
        DeviceArray<bf16> dinp(c.n);
        QuantizedArrays<e5m2> to(c.n, used_state(8.0f));
        c.run<e5m2>(to.both(), dinp, c.dresidual.get(), pass);
        const QuantizedReference<e5m2> reference(to_floats(dinp.download()), 8.0f);
        CHECK(reference.counted.nonfinite == 2);
        CHECK(state_matches(to.state.download()[0], reference.after(used_state(8.0f), pass), Known::exactly, 0));
    }
}

TEST_CASE("layernorm_backward_fp8 refuses what it cannot do") {
    DeviceArray<bf16> x(512);
    DeviceArray<float> f(512);
    QuantizedArrays<e5m2> to(512, used_state(1.0f));
    const auto run = [&](int N, int C, QuantizePass pass) {
        return refusal([&] {
            layernorm_backward_fp8<e5m2>(to.both(), f, x, nullptr, f, f, f, x.get(), x.get(), x.get(), f.get(), f.get(),
                                         N, C, false, pass, test_stream());
        });
    };
    CHECK(run(24, 16, QuantizePass::train).find("N=24") != std::string::npos);
    CHECK(run(16, 24, QuantizePass::train).find("C=24") != std::string::npos);
    CHECK(run(16, 4112, QuantizePass::train).find("C=4112") != std::string::npos);
    CHECK(run(16, 16, QuantizePass::write).find("runs once") != std::string::npos);
    CHECK(run(16, 16, QuantizePass::replay).find("runs once") != std::string::npos);
}

// A multiprocessor holds 16 warps of the kernel's 128 registers, in whole blocks. The scratch says how many blocks.
TEST_CASE("layernorm_backward_fp8: one full wave of blocks on an H100") {
    for (const int C : {256, 768, 1024, 1280, 1600, 2048, 4096}) {
        CAPTURE(C);
        const int warps = (C + 255) / 256;
        const size_t blocks = layernorm_backward_fp8_scratch(1 << 20, C) / (2 * static_cast<size_t>(C));
        CHECK(blocks % 132 == 0);
        CHECK(static_cast<int>(blocks / 132) == 16 / warps);
    }
}
