// Quantizing GELU against the plain FP32 kernels, which gelu.cpp compares with FP64.
#include "llmc/kernels/activation.h"

#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<float> gelu_forward_reference(const std::vector<bf16>& inp) {
    DeviceArray<float> x(to_floats(inp)), y(inp.size());
    gelu_forward<float>(y, x.get(), inp.size(), test_stream());
    return y.download();
}

std::vector<float> gelu_backward_reference(const std::vector<bf16>& dout, const std::vector<bf16>& inp, int N, int C) {
    DeviceArray<float> d(to_floats(dout)), x(to_floats(inp)), dinp(inp.size()), dbias(static_cast<size_t>(C)),
        scratch(gelu_backward_scratch(N, C));
    gelu_backward<float>(dinp, dbias, scratch, d.get(), x.get(), N, C, false, test_stream());
    return dinp.download();
}

struct Inputs {
    std::vector<bf16> dout, inp;
    Inputs(int N, int C)
        : dout(wide_values<bf16>(static_cast<size_t>(N) * C, static_cast<uint32_t>(N + 3 * C))),
          inp(random_normal<bf16>(static_cast<size_t>(N) * C, 2.0f, static_cast<uint32_t>(N + C))) {}
};

}  // namespace

TEST_CASE("gelu_forward_fp8, all passes") {
    for (const auto [N, C] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        const Inputs in(N, C);
        DeviceArray<bf16> inp(in.inp);
        const auto expected = gelu_forward_reference(in.inp);
        for (const float scale : {100.0f, 0.01f}) {  // saturates; underflows
            check_quantizer<e4m3>(expected, N, C, scale, Known::nearly,
                                  [&](const Quantized<e4m3>& to, QuantizePass pass) {
                                      gelu_forward_fp8(to, inp.get(), N, C, pass, test_stream());
                                  });
        }
    }
}

TEST_CASE_TEMPLATE("gelu_backward_fp8 and its bias gradient, all passes", F8, e4m3, e5m2) {
    for (const auto [N, C] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        const Inputs in(N, C);
        DeviceArray<bf16> dout(in.dout), inp(in.inp);
        DeviceArray<float> dbias(static_cast<size_t>(C)), scratch(quantize_scratch(N, C));
        const auto x = gelu_backward_reference(in.dout, in.inp, N, C);
        const auto run = [&](const Quantized<F8>& to, QuantizePass pass, bool accumulate) {
            gelu_backward_fp8<F8>(to, dbias, scratch, dout.get(), inp.get(), N, C, accumulate, pass, test_stream());
        };
        const float scale = std::is_same_v<F8, e4m3> ? 16.0f : 700.0f;
        check_quantizer<F8>(x, N, C, scale, Known::nearly,
                            [&](const Quantized<F8>& to, QuantizePass pass) { run(to, pass, false); });
        auto expected = column_sums(x, C);
        const auto sums = dbias.download();
        CHECK(max_relative_error(sums, expected, 1.0 + N) < 1e-6);

        QuantizedArrays<F8> to(x.size(), used_state(scale));
        run(to.both(), QuantizePass::measure, true);
        CHECK(same_bits(dbias.download(), sums));
        const auto before = random_normal<float>(static_cast<size_t>(C), 10.0f, 5);
        dbias.upload(before);
        for (size_t c = 0; c < before.size(); c++) expected[c] += static_cast<double>(before[c]);
        run(to.both(), QuantizePass::train, true);
        CHECK(max_relative_error(dbias.download(), expected, 10.0 + N) < 1e-6);
        run(to.both(), QuantizePass::write, false);
        CHECK(same_bits(dbias.download(), sums));
    }
}

TEST_CASE("gelu_*_fp8 count what is not finite") {
    const int N = 48, C = 144;
    Inputs in(N, C);
    in.inp[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    in.inp[47 * C + 100] = to_bf16(std::numeric_limits<float>::infinity());
    in.dout[20 * C + 7] = to_bf16(-std::numeric_limits<float>::infinity());
    DeviceArray<bf16> dout(in.dout), inp(in.inp);
    const auto y = gelu_forward_reference(in.inp), x = gelu_backward_reference(in.dout, in.inp, N, C);
    REQUIRE(QuantizedReference<e4m3>(y, 1.0f).counted.nonfinite == 2);
    REQUIRE(QuantizedReference<e5m2>(x, 1.0f).counted.nonfinite == 3);
    check_quantizer<e4m3>(y, N, C, 8.0f, Known::nearly, [&](const Quantized<e4m3>& to, QuantizePass pass) {
        gelu_forward_fp8(to, inp.get(), N, C, pass, test_stream());
    });
    check_quantizer<e5m2>(x, N, C, 8.0f, Known::nearly, [&](const Quantized<e5m2>& to, QuantizePass pass) {
        gelu_backward_fp8<e5m2>(to, nullptr, nullptr, dout.get(), inp.get(), N, C, false, pass, test_stream());
    });
}

TEST_CASE("gelu_*_fp8 refuse what they cannot do") {
    DeviceArray<bf16> inp(512);
    DeviceArray<float> dbias(32);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    CHECK(refusal([&] {
              gelu_forward_fp8(to.both(), inp.get(), 24, 16, QuantizePass::train, test_stream());
          }).find("gelu_forward_fp8: N=24") != std::string::npos);
    CHECK(refusal([&] {
              gelu_backward_fp8<e4m3>(to.both(), nullptr, nullptr, inp.get(), inp.get(), 16, 24, false,
                                      QuantizePass::train, test_stream());
          }).find("gelu_backward_fp8: C=24") != std::string::npos);
    CHECK(refusal([&] {
              gelu_backward_fp8<e4m3>(to.both(), dbias, nullptr, inp.get(), inp.get(), 16, 16, false,
                                      QuantizePass::train, test_stream());
          }).find("scratch") != std::string::npos);
}
