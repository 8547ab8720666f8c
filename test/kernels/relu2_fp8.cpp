// Quantizing ReLU squared against the plain kernels, which relu2.cpp compares with FP64, and a cast of what they write.
#include "llmc/kernels/activation.h"

#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

struct Case {
    int N, C;
    DeviceArray<bf16> inp, dout;
    std::vector<float> out, dinp;

    Case(int N_, int C_, const std::vector<bf16>& x, const std::vector<bf16>& d) : N(N_), C(C_), inp(x), dout(d) {
        DeviceArray<bf16> y(x.size()), dx(x.size());
        relu2_forward<bf16>(y, inp.get(), x.size(), test_stream());
        relu2_backward<bf16>(dx, dout.get(), inp.get(), x.size(), test_stream());
        out = to_floats(y.download()), dinp = to_floats(dx.download());
    }
    void check_forward(float scale) {
        check_quantizer<e4m3>(out, N, C, scale, Known::exactly, [&](const Quantized<e4m3>& to, QuantizePass pass) {
            relu2_forward_fp8(to, inp.get(), N, C, pass, test_stream());
        });
    }
    template <class F8>
    void check_backward(float scale) {
        check_quantizer<F8>(dinp, N, C, scale, Known::exactly, [&](const Quantized<F8>& to, QuantizePass pass) {
            relu2_backward_fp8<F8>(to, dout.get(), inp.get(), N, C, pass, test_stream());
        });
    }
};

Case random_case(int N, int C) {
    const size_t n = static_cast<size_t>(N) * C;
    return Case(N, C, random_normal<bf16>(n, 2.0f, static_cast<uint32_t>(N + C)),
                wide_values<bf16>(n, static_cast<uint32_t>(N + 3 * C)));
}

}  // namespace

TEST_CASE("relu2_*_fp8 are the plain kernels and quantize, all passes") {
    for (const auto [N, C] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(C);
        Case c = random_case(N, C);
        for (const float scale : {100.0f, 0.01f}) c.check_forward(scale);  // saturates; underflows
        c.check_backward<e4m3>(16.0f);
        c.check_backward<e5m2>(700.0f);
    }
}

TEST_CASE("relu2_*_fp8 count what is not finite") {
    const int N = 48, C = 144;
    auto x = random_normal<bf16>(static_cast<size_t>(N) * C, 2.0f, 5);
    auto d = wide_values<bf16>(static_cast<size_t>(N) * C, 6);
    x[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    x[47 * C + 100] = to_bf16(std::numeric_limits<float>::infinity());
    x[20 * C + 7] = to_bf16(1.0f);
    d[20 * C + 7] = to_bf16(-std::numeric_limits<float>::infinity());
    Case c(N, C, x, d);
    REQUIRE(QuantizedReference<e4m3>(c.out, 1.0f).counted.nonfinite == 2);
    REQUIRE(QuantizedReference<e5m2>(c.dinp, 1.0f).counted.nonfinite == 3);
    c.check_forward(8.0f);
    c.check_backward<e5m2>(8.0f);
}

TEST_CASE("relu2_*_fp8 refuse what they cannot do") {
    DeviceArray<bf16> inp(512);
    QuantizedArrays<e4m3> to(512, used_state(1.0f));
    CHECK(refusal([&] {
              relu2_forward_fp8(to.both(), inp.get(), 24, 16, QuantizePass::train, test_stream());
          }).find("relu2_forward_fp8: N=24") != std::string::npos);
    CHECK(refusal([&] {
              relu2_backward_fp8<e4m3>(to.both(), inp.get(), inp.get(), 16, 24, QuantizePass::train, test_stream());
          }).find("relu2_backward_fp8: C=24") != std::string::npos);
}
