// Quantization with one scale per tensor: its specifications at many shapes, and properties that a specification cannot
// express.
#include "llmc/kernels/quantize.h"

#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("quantize, quantize_weight and quantize_flat meet their specifications") {
    check_specifications(check::add_quantize_tests);
}

TEST_CASE("the inputs of the specifications saturate and underflow, or comparing the counters would show nothing") {
    const StateRange state = CodeRanges<e4m3>(Bounded::exactly(wide_values<bf16>(256, 3)), 16.0f)
                                 .after(used_state(16.0f), {QuantizePass::train_counted});
    CHECK(state.least.saturated > used_state(16.0f).saturated);
    CHECK(state.least.underflowed > used_state(16.0f).underflowed);
}

TEST_CASE("quantize_flat takes any count, and counts values that are not finite") {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{4095}, size_t{4097}}) {
        CAPTURE(n);
        auto values = random_normal<float>(n, 1.0f, 3);
        values[n / 2] = INFINITY;
        Trial trial(test_stream());
        const auto master = trial.input(values);
        e4m3* codes = trial.result<e4m3>("codes", n);
        Fp8State* state = trial.result("state", 1, std::vector<Fp8State>{used_state(2.0f)});
        trial.run_twice([&] { quantize_flat(codes, master, n, state, QuantizePass::write, test_stream()); });
        const CodeRanges<e4m3> expected(Bounded::exactly(values), 2.0f);
        trial.note(expected.wrong_codes(trial.shape_of(codes), trial.read(codes)));
        trial.note(wrong_state(trial.read(state)[0], expected.after(used_state(2.0f), {QuantizePass::write})));
        CHECK(trial.problem() == "");
    }
}

TEST_CASE_TEMPLATE("dequantize: every code is its value, and nothing else is written", F8, e4m3, e5m2) {
    for (const size_t n : {size_t{16}, size_t{4096}, size_t{4112}, size_t{9008}}) {
        CAPTURE(n);
        std::vector<F8> codes(n);
        Bounded expected;
        for (size_t i = 0; i < n; i++) {
            codes[i] = F8{static_cast<uint8_t>(i * 7)};
            expected.push_back(reference::value_of<F8>(codes[i].bits), 0);
        }
        Trial trial(test_stream());
        const auto inp = trial.input(codes);
        bf16* out = trial.result<bf16>("values", n);
        trial.run_twice(
            [&] { dequantize<F8>(out, inp, nullptr, ScaleLayout::vectors, 1, static_cast<int>(n), test_stream()); });
        trial.within(out, expected);
        CHECK(trial.problem() == "");
    }
    DeviceArray<F8> inp(32);
    DeviceArray<bf16> out(32);
    CHECK(contains(
        error_of([&] { dequantize(out.get(), inp.get(), nullptr, ScaleLayout::vectors, 1, 24, test_stream()); }),
        "multiple of 16"));
}

TEST_CASE("product factors: both scales, rounded once, and beta") {
    DeviceArray<float> first(std::vector<float>{0.0127f}), second(std::vector<float>{3.3e-7f}), factors(3);
    product_factors(factors, first, second, 1.0f, test_stream());
    const std::vector<float> values = factors.download();
    CHECK(values[0] == 0.0127f * 3.3e-7f);
    CHECK(values[1] == 1.0f);
    CHECK(std::isnan(values[2]));
}

TEST_CASE("quantize refuses unsupported arguments, and says what FP8 needs") {
    DeviceArray<bf16> inp(512);
    DeviceArray<float> master(512), dbias(32);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    const auto run = [&](int N, int C, Fp8State* state) {
        return error_of([&] {
            quantize<e4m3>({to.row.get(), to.transposed.get(), state}, nullptr, nullptr, inp.get(), nullptr, N, C,
                           false, QuantizePass::train, test_stream());
        });
    };
    CHECK(run(16, 32, to.state.get()) == "");
    CHECK(contains(run(24, 16, to.state.get()), "N=24; FP8 matrix products need a positive multiple of 16"));
    CHECK(contains(run(0, 16, to.state.get()), "N=0"));
    CHECK(contains(run(16, 40, to.state.get()), "C=40"));
    CHECK(contains(run(16, 16, nullptr), "state"));
    const auto refused = [](auto&& call, const char* text) { CHECK(contains(error_of(call), text)); };
    const auto pass = QuantizePass::train;
    refused([&] { quantize<e4m3>(to.both(), dbias, nullptr, inp, nullptr, 16, 16, false, pass, test_stream()); },
            "scratch");
    refused([&] { quantize_weight(to.both(), master.get(), 8, 16, pass, test_stream()); }, "N=8");
    refused([&] { quantize_flat(to.row, master.get(), 64, to.state, pass, test_stream()); }, "measured, then written");
    refused([&] { transpose_codes<e4m3>(to.transposed, to.row, 8, 8, test_stream()); }, "multiples of 16");
}
