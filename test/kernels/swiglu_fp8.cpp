// Quantizing SwiGLU against the plain kernels, which swiglu.cpp compares with FP64, and a cast of what they write.
#include "llmc/kernels/activation.h"

#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Inputs, and what the plain kernels make of them.
struct Case {
    int N, F;
    size_t n;
    DeviceArray<bf16> inp, dout;
    std::vector<bf16> out, dinp;

    Case(int N_, int F_, const std::vector<bf16>& x, const std::vector<bf16>& d)
        : N(N_), F(F_), n(static_cast<size_t>(N) * F), inp(x), dout(d) {
        DeviceArray<bf16> y(n), dx(2 * n);
        swiglu_forward<bf16>(y, inp, N, F, test_stream());
        swiglu_backward<bf16>(dx, dout, inp, N, F, test_stream());
        out = y.download(), dinp = dx.download();
    }
    Case(int N_, int F_)
        : Case(N_, F_, random_normal<bf16>(static_cast<size_t>(N_) * 2 * F_, 2.0f, static_cast<uint32_t>(N_ + F_)),
               wide_values<bf16>(static_cast<size_t>(N_) * F_, static_cast<uint32_t>(N_ + 3 * F_))) {}

    void check_forward(float scale) {
        check_quantizer<e4m3>(to_floats(out), N, F, scale, Known::exactly,
                              [&](const Quantized<e4m3>& to, QuantizePass pass) {
                                  swiglu_forward_fp8(to, inp.get(), N, F, pass, test_stream());
                              });
    }
    template <class F8>
    void check_backward(float scale) {
        check_quantizer<F8>(to_floats(dinp), N, 2 * F, scale, Known::exactly,
                            [&](const Quantized<F8>& to, QuantizePass pass) {
                                swiglu_backward_fp8<F8>(to, dout.get(), inp.get(), N, F, pass, test_stream());
                            });
    }
};

}  // namespace

TEST_CASE("swiglu_forward_fp8 is swiglu_forward and quantize, all passes") {
    for (const auto [N, F] : quantize_shapes()) {
        CAPTURE(N);
        CAPTURE(F);
        Case c(N, F);
        for (const float scale : {100.0f, 0.01f}) c.check_forward(scale);  // saturates; underflows
    }
}

// Half a tile is 64 columns of gate: less, more and as many.
TEST_CASE_TEMPLATE("swiglu_backward_fp8 is swiglu_backward and quantize, all passes", F8, e4m3, e5m2) {
    std::vector<RowShape> shapes = quantize_shapes();
    shapes.push_back({32, 208});
    for (const auto [N, F] : shapes) {
        CAPTURE(N);
        CAPTURE(F);
        Case(N, F).check_backward<F8>(std::is_same_v<F8, e4m3> ? 16.0f : 700.0f);
    }
}

// Rows of gate and up that agree, times a thousand: the product grows quadratically (arXiv 2409.12517). Codes saturate
// and are counted, nothing is NaN. And with s a power of two, s h and W / s have the bits of h and W but for their
// exponents, so a channel may be scaled before the cast and scaled back behind it.
TEST_CASE("swiglu_forward_fp8 of aligned outliers saturates, and channels scaled by powers of two keep their bits") {
    const int N = 32, F = 64;
    auto x = random_normal<bf16>(static_cast<size_t>(N) * 2 * F, 1.0f, 3);
    for (int c = 0; c < F; c += 16) {
        bf16* const gate = &x[static_cast<size_t>(7 * 2) * F + c];
        gate[0] = gate[F] = to_bf16(1000.0f + 100.0f * std::fabs(to_float(gate[0])));
    }
    Case c(N, F, x, wide_values<bf16>(static_cast<size_t>(N) * F, 4));
    for (const bf16 y : c.out) REQUIRE(std::isfinite(to_float(y)));
    c.check_forward(64.0f);
    c.check_backward<e5m2>(8.0f);
    const QuantizedReference<e4m3> plain(to_floats(c.out), 64.0f);
    CHECK(plain.counted.saturated > 0);

    for (int n = 0; n < N; n++)  // up times 2^-20 where there are outliers
        for (int column = 0; column < F; column += 16) {
            bf16& up = x[static_cast<size_t>(n * 2 + 1) * F + column];
            up = to_bf16(to_float(up) * 0x1p-20f);
        }
    Case scaled(N, F, x, wide_values<bf16>(static_cast<size_t>(N) * F, 4));
    for (size_t i = 0; i < c.n; i++)
        REQUIRE(to_float(scaled.out[i]) * (i % 16 == 0 ? 0x1p20f : 1.0f) == to_float(c.out[i]));
    CHECK(QuantizedReference<e4m3>(to_floats(scaled.out), 64.0f).counted.saturated < plain.counted.saturated);
}

TEST_CASE("swiglu_*_fp8 count what is not finite") {
    const int N = 48, F = 144;
    auto x = random_normal<bf16>(static_cast<size_t>(N) * 2 * F, 2.0f, 5);
    auto d = wide_values<bf16>(static_cast<size_t>(N) * F, 6);
    x[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    x[(47 * 2 + 1) * F + 100] = to_bf16(std::numeric_limits<float>::infinity());
    d[20 * F + 7] = to_bf16(-std::numeric_limits<float>::infinity());
    Case c(N, F, x, d);
    REQUIRE(QuantizedReference<e4m3>(to_floats(c.out), 1.0f).counted.nonfinite == 2);
    REQUIRE(QuantizedReference<e5m2>(to_floats(c.dinp), 1.0f).counted.nonfinite == 5);
    c.check_forward(8.0f);
    c.check_backward<e5m2>(8.0f);
}

TEST_CASE("swiglu_*_fp8 refuse what they cannot do") {
    DeviceArray<bf16> inp(2048);
    QuantizedArrays<e4m3> to(2048, used_state(1.0f));
    CHECK(refusal([&] {
              swiglu_forward_fp8(to.both(), inp.get(), 24, 16, QuantizePass::train, test_stream());
          }).find("swiglu_forward_fp8: N=24") != std::string::npos);
    CHECK(refusal([&] {
              swiglu_backward_fp8<e4m3>(to.both(), inp.get(), inp.get(), 16, 24, QuantizePass::train, test_stream());
          }).find("swiglu_backward_fp8: C=24") != std::string::npos);
}
