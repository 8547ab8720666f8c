// Products of FP8 operands with block scales, against FP64 sums of the dequantized operands.
#include <memory>

#include "llmc/kernels/quantize.h"
#include "llmc/kernels/quantize_blocks.h"
#include "llmc/linear/matmul.h"
#include "test/helpers.h"
#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// A matrix (R, C) in both layouts, and the values of its codes.
struct Operand {
    ScaleLayout layout;
    int R, C;
    DeviceArray<e4m3> row, transposed;
    DeviceArray<char> row_scales, transposed_scales;
    DeviceArray<Fp8State> state{std::vector<Fp8State>{Fp8State{}}};

    Operand(ScaleLayout l, int R_, int C_)
        : layout(l),
          R(R_),
          C(C_),
          row(static_cast<size_t>(R) * C),
          transposed(static_cast<size_t>(R) * C),
          row_scales(scale_bytes(l, static_cast<size_t>(R), static_cast<size_t>(C))),
          transposed_scales(scale_bytes(l, static_cast<size_t>(C), static_cast<size_t>(R))) {}
    Quantized<e4m3> both() {
        return {row.get(), transposed.get(), state.get(), row_scales.get(), transposed_scales.get()};
    }
    // (R, C), or (C, R) of the transposed codes.
    std::vector<double> values(bool of_transposed) {
        const Quantized<e4m3> q = both();
        DeviceArray<bf16> back(row.size());
        dequantize(back.get(), of_transposed ? q.transposed : q.row, of_transposed ? q.transposed_scales : q.row_scales,
                   layout, of_transposed ? C : R, of_transposed ? R : C, test_stream());
        return to_doubles(back.download());
    }
};

std::unique_ptr<Operand> activation(Fp8Scaling scaling, int R, int C, float deviation, uint32_t seed) {
    auto result = std::make_unique<Operand>(scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors, R, C);
    auto values = random_normal<bf16>(static_cast<size_t>(R) * C, deviation, seed);
    for (size_t i = 0; i < values.size(); i++)  // blocks of different sizes both ways
        values[i] = to_bf16(to_float(values[i]) *
                            std::ldexp(1.0f, static_cast<int>(i / C / 16 * 7 % 11) - static_cast<int>(i % C / 32 % 5)));
    DeviceArray<bf16> inp(values);
    quantize_blocks(result->both(), nullptr, nullptr, inp.get(), R, C, scaling, false, QuantizePass::train,
                    test_stream());
    synchronize(test_stream());
    return result;
}

std::unique_ptr<Operand> weight_of(Fp8Scaling scaling, int R, int C, uint32_t seed) {
    if (scaling == Fp8Scaling::mx) return activation(scaling, R, C, 0.02f, seed);
    auto result = std::make_unique<Operand>(ScaleLayout::tiles, R, C);
    auto values = random_normal<float>(static_cast<size_t>(R) * C, 0.02f, seed);
    for (size_t i = 0; i < values.size(); i++)
        values[i] *= std::ldexp(1.0f, static_cast<int>(i / C / 128) - static_cast<int>(i % C / 128) * 2);
    DeviceArray<float> master(values);
    quantize_weight_tiles(result->both(), master.get(), R, C, QuantizePass::train, test_stream());
    synchronize(test_stream());
    return result;
}

}  // namespace

TEST_CASE("products with block scales equal FP64 products of the dequantized operands") {
    test_stream();
    if (!device_info().has_fp8) return;
    const struct {
        Fp8Scaling scaling;
        int N, C, OC;
    } cases[] = {{Fp8Scaling::block, 128, 128, 128}, {Fp8Scaling::block, 128, 384, 256},
                 {Fp8Scaling::block, 256, 128, 640}, {Fp8Scaling::mx, 32, 64, 96},
                 {Fp8Scaling::mx, 160, 32, 64},      {Fp8Scaling::mx, 64, 288, 160}};
    for (const auto& [scaling, N, C, OC] : cases) {
        CAPTURE(static_cast<int>(scaling));
        CAPTURE(N);
        CAPTURE(C);
        CAPTURE(OC);
        const auto inp = activation(scaling, N, C, 1.0f, 1), dout = activation(scaling, N, OC, 1e-4f, 2);
        const auto weight = weight_of(scaling, OC, C, 3);
        const Quantized<e4m3> x = inp->both(), w = weight->both(), d = dout->both();
        const auto bias = random_normal<bf16>(static_cast<size_t>(OC), 2.0f, 4);
        DeviceArray<bf16> d_bias(bias), out(static_cast<size_t>(N) * OC), dinp(static_cast<size_t>(N) * C);
        DeviceArray<float> dweight(static_cast<size_t>(OC) * C);
        Matmul matmul(false, FastAccumulation::forward, scaling);
        matmul.reserve({N, C, OC});
        matmul.forward_fp8(out, x.row, x.row_scale_inv(), w.row, w.row_scale_inv(), {d_bias}, N, C, OC, test_stream());
        matmul.dgrad_fp8<e4m3>(dinp, d.row, d.row_scale_inv(), w.transposed, w.transposed_scale_inv(), N, C, OC,
                               test_stream());
        for (const bool accumulate : {false, true})
            matmul.wgrad_fp8<e4m3>(dweight, d.transposed, d.transposed_scale_inv(), x.transposed,
                                   x.transposed_scale_inv(), N, C, OC, accumulate, test_stream());

        const ExactSums forward(inp->values(false), weight->values(false), C),
            dgrad(dout->values(false), weight->values(true), OC), wgrad(dout->values(true), inp->values(true), N);
        const double u = fp8_unit();
        CHECK(part_of_allowed(out.download(), forward.plus(to_doubles(bias)), u) <= 1);
        CHECK(part_of_allowed(dinp.download(), dgrad, u) <= 1);
        CHECK(part_of_allowed(dweight.download(), wgrad.twice(), u) <= 1);
        CHECK(matmul.counts().fp8 == 4);
        CHECK(matmul.counts().emulated == (Matmul::emulated_because(scaling).empty() ? 0 : 4));
    }
}

TEST_CASE("products with block scales refuse dimensions that do not divide into blocks") {
    test_stream();
    if (!device_info().has_fp8) return;
    DeviceArray<e4m3> a(128 * 128), b(128 * 128);
    DeviceArray<e5m2> gradient(128 * 128);
    DeviceArray<float> scales(512);
    DeviceArray<bf16> out(128 * 128);
    Matmul blocks(false, FastAccumulation::none, Fp8Scaling::block);
    blocks.reserve({128, 128, 128});
    CHECK(error_of([&] {
              blocks.forward_fp8(out, a, scales, b, scales, {}, 64, 128, 128, test_stream());
          }).find("with block scales N=64 C=128 OC=128: N=64 is not a multiple of 128") != std::string::npos);
    CHECK(error_of([&] {
              blocks.dgrad_fp8<e5m2>(out, gradient, scales, b, scales, 128, 128, 128, test_stream());
          }).find("block scales are for E4M3") != std::string::npos);
}
