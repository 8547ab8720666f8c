// Quantization against a cast by table look-up: every pass, both formats, both layouts, bias gradients, weights.
#include "llmc/kernels/quantize.h"

#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

struct BiasGradient {
    DeviceArray<float> dbias, scratch;
    BiasGradient(int N, int C) : dbias(static_cast<size_t>(C)), scratch(quantize_scratch(N, C)) {}
};

}  // namespace

TEST_CASE("the comparison of codes sees what it should") {
    CHECK(nearest_code<e4m3>(1.0).code == 0x38);
    CHECK(nearest_code<e4m3>(1.0625).code == 0x38);  // halfway between 1 and 1.125: to even
    CHECK(nearest_code<e4m3>(1.1875).code == 0x3a);  // halfway between 1.125 and 1.25
    CHECK(nearest_code<e4m3>(-1e9).code == 0xfe);
    CHECK(nearest_code<e5m2>(1e9).code == 0x7b);
    CHECK(nearest_code<e5m2>(-0.0).code == 0x80);
    CHECK(nearest_code<e4m3>(0x1p-10).code == 0);
    CHECK(nearest_code<e4m3>(0x1.01p-10).code == 1);

    const auto x = to_floats(wide_values<bf16>(256, 3));
    const QuantizedReference<e4m3> reference(x, 16.0f);
    CHECK(reference.counted.saturated > 0);  // or the counters' tests would show nothing
    CHECK(reference.counted.underflowed > 0);
    std::vector<e4m3> row;
    for (const NearestCode& c : reference.row) row.push_back({c.code});
    CHECK(wrong_codes(row, reference.row, Known::exactly) == 0);
    row[100].bits ^= 1;
    CHECK(wrong_codes(row, reference.row, Known::exactly) == 1);
    CHECK(not_transposed(row, row, 16, 16) > 0);
    Fp8State state = used_state(4.0f), other = state;
    CHECK(state_matches(state, other, Known::exactly, 0));
    other.underflowed++;
    CHECK(!state_matches(state, other, Known::exactly, 5));
    other = state;
    other.amax *= 1.01f;
    CHECK(!state_matches(state, other, Known::nearly, 5));
}

TEST_CASE_TEMPLATE("quantize, all passes", F8, e4m3, e5m2) {
    for (const auto [N, C] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        const size_t n = static_cast<size_t>(N) * C;
        const auto values = wide_values<bf16>(n, static_cast<uint32_t>(N * 7 + C));
        DeviceArray<bf16> inp(values), low(random_normal<bf16>(n, 0.001f, 9));
        const float scale = sizeof(F8) == 1 && std::is_same_v<F8, e4m3> ? 16.0f : 0.3f;
        check_quantizer<F8>(to_floats(values), N, C, scale, Known::exactly,
                            [&](const Quantized<F8>& to, QuantizePass p) {
                                quantize<F8>(to, nullptr, nullptr, inp.get(), nullptr, N, C, false, p, test_stream());
                            });
        auto sum = to_floats(values);
        const auto cut_off = to_floats(low.download());
        for (size_t i = 0; i < n; i++) sum[i] += cut_off[i];
        check_quantizer<F8>(sum, N, C, 3.7f, Known::exactly, [&](const Quantized<F8>& to, QuantizePass p) {
            quantize<F8>(to, nullptr, nullptr, inp.get(), low.get(), N, C, false, p, test_stream());
        });
    }
}

TEST_CASE("quantize with its bias gradient") {
    for (const auto [N, C] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        const size_t n = static_cast<size_t>(N) * C;
        DeviceArray<bf16> inp(random_normal<bf16>(n, 1.0f, 11, 0.2f)), low(random_normal<bf16>(n, 0.002f, 12));
        auto x = to_floats(inp.download());
        const auto cut_off = to_floats(low.download());
        for (size_t i = 0; i < n; i++) x[i] += cut_off[i];
        auto expected = column_sums(x, C);
        BiasGradient b(N, C);
        const auto run = [&](const Quantized<e5m2>& to, QuantizePass p, bool accumulate) {
            quantize<e5m2>(to, b.dbias, b.scratch, inp.get(), low.get(), N, C, accumulate, p, test_stream());
        };
        check_quantizer<e5m2>(x, N, C, 64.0f, Known::exactly,
                              [&](const Quantized<e5m2>& to, QuantizePass p) { run(to, p, false); });
        const auto dbias = b.dbias.download();
        CHECK(max_relative_error(dbias, expected, 1.0 + 0.2 * N) < 1e-6);

        QuantizedArrays<e5m2> to(n, used_state(64.0f));
        run(to.both(), QuantizePass::measure, true);
        CHECK(same_bits(b.dbias.download(), dbias));
        const auto before = random_normal<float>(static_cast<size_t>(C), 10.0f, 5);
        b.dbias.upload(before);
        for (size_t c = 0; c < before.size(); c++) expected[c] += static_cast<double>(before[c]);
        run(to.both(), QuantizePass::train, true);
        CHECK(max_relative_error(b.dbias.download(), expected, 10.0 + 0.2 * N) < 1e-6);
        run(to.both(), QuantizePass::write, false);
        CHECK(same_bits(b.dbias.download(), dbias));  // the same bits again
    }
}

TEST_CASE_TEMPLATE("quantize counts what is not finite, and hides it from amax", F8, e4m3, e5m2) {
    const int N = 144, C = 144;
    auto values = random_normal<bf16>(N * C, 1.0f, 1);
    const float inf = std::numeric_limits<float>::infinity();
    values[3] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    values[130 * C + 1] = to_bf16(inf);
    values[131 * C + 143] = to_bf16(-inf);
    DeviceArray<bf16> inp(values);
    const QuantizedReference<F8> reference(to_floats(values), 2.0f);
    REQUIRE(reference.counted.nonfinite == 3);
    REQUIRE(reference.counted.amax < 10.0f);
    check_quantizer<F8>(to_floats(values), N, C, 2.0f, Known::exactly, [&](const Quantized<F8>& to, QuantizePass p) {
        quantize<F8>(to, nullptr, nullptr, inp.get(), nullptr, N, C, false, p, test_stream());
    });
    BiasGradient b(N, C);
    QuantizedArrays<F8> to(N * C, used_state(2.0f));
    quantize<F8>(to.both(), b.dbias, b.scratch, inp.get(), nullptr, N, C, false, QuantizePass::train, test_stream());
    const auto dbias = b.dbias.download();
    for (int c = 0; c < C; c++) CHECK(std::isfinite(dbias[static_cast<size_t>(c)]) == (c != 1 && c != 3 && c != 143));
}

TEST_CASE("quantize with a scale whose products overflow FP32") {
    const int N = 16, C = 16;
    DeviceArray<bf16> inp(random_normal<bf16>(N * C, 1e10f, 1));
    check_quantizer<e4m3>(to_floats(inp.download()), N, C, 3e38f, Known::exactly,
                          [&](const Quantized<e4m3>& to, QuantizePass p) {
                              quantize<e4m3>(to, nullptr, nullptr, inp.get(), nullptr, N, C, false, p, test_stream());
                          });
}

TEST_CASE("quantize_weight, all passes") {
    for (const auto [R, C] : quantize_shapes()) {
        CAPTURE(R);
        CAPTURE(C);
        const auto values = wide_values<float>(static_cast<size_t>(R) * C, static_cast<uint32_t>(R + 5 * C));
        DeviceArray<float> master(values);
        check_quantizer<e4m3>(values, R, C, 23.0f, Known::exactly, [&](const Quantized<e4m3>& to, QuantizePass p) {
            quantize_weight(to, master.get(), R, C, p, test_stream());
        });
    }
    std::vector<float> bad = random_normal<float>(256, 1.0f, 4);
    bad[77] = std::numeric_limits<float>::infinity();
    DeviceArray<float> master(bad);
    check_quantizer<e4m3>(bad, 16, 16, 1.0f, Known::exactly, [&](const Quantized<e4m3>& to, QuantizePass p) {
        quantize_weight(to, master.get(), 16, 16, p, test_stream());
    });
}

TEST_CASE("quantize refuses what it cannot do, and says what FP8 needs") {
    DeviceArray<bf16> inp(512);
    DeviceArray<float> master(512), dbias(32);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    const auto run = [&](int N, int C, Fp8State* state) {
        return refusal([&] {
            quantize<e4m3>({to.row.get(), to.transposed.get(), state}, nullptr, nullptr, inp.get(), nullptr, N, C,
                           false, QuantizePass::train, test_stream());
        });
    };
    CHECK(run(16, 32, to.state.get()) == "");
    CHECK(run(24, 16, to.state.get()).find("N=24; FP8 matrix products need a positive multiple of 16") !=
          std::string::npos);
    CHECK(run(0, 16, to.state.get()).find("N=0") != std::string::npos);
    CHECK(run(16, 40, to.state.get()).find("C=40") != std::string::npos);
    CHECK(run(16, 16, nullptr).find("state") != std::string::npos);
    CHECK(refusal([&] {
              quantize<e4m3>(to.both(), dbias, nullptr, inp.get(), nullptr, 16, 16, false, QuantizePass::train,
                             test_stream());
          }).find("scratch") != std::string::npos);
    CHECK(refusal([&] {
              quantize_weight(to.both(), master.get(), 8, 16, QuantizePass::train, test_stream());
          }).find("N=8") != std::string::npos);
}
