// Quantization with block scales: its specifications at many shapes, and properties that a specification cannot
// express.
#include "llmc/kernels/quantize_blocks.h"

#include <random>

#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("quantize_blocks, quantize_weight_tiles and dequantize_blocks meet their specifications") {
    check_specifications(check::add_quantize_blocks_tests);
}

TEST_CASE("block exponents are the smallest that bring amax to 448") {
    for (const float amax : {448.0f, 449.0f, 447.0f, 1.0f, 1.75f, 1.7500001f, 1.5f, 3.5f, 3.6f, 1e-30f, 3e38f, 1e-38f,
                             1e-45f, 0.0f, 7.0f, 0x1.cp-118f, 0x1.cp-119f}) {
        CAPTURE(amax);
        CHECK(block_exponent(amax) == reference::exponent_by_search(static_cast<double>(amax)));
    }
    std::mt19937 engine(1);
    int wrong = 0;
    for (int i = 0; i < 100000; i++) {
        const float amax = float_from_bits(engine() % kFloatInfinityBits);
        wrong += block_exponent(amax) != reference::exponent_by_search(static_cast<double>(amax));
    }
    CHECK(wrong == 0);
}

TEST_CASE("block quantization refuses shapes without whole blocks") {
    DeviceArray<bf16> inp(128 * 256);
    DeviceArray<float> master(128 * 256);
    QuantizedArrays<e4m3> to(128 * 256, used_state(3.0f));
    DeviceArray<char> row_scales(scale_bytes(ScaleLayout::vectors, 128, 256)),
        transposed_scales(scale_bytes(ScaleLayout::vectors, 256, 128));
    const Quantized<e4m3> target{to.row, to.transposed, to.state, row_scales.get(), transposed_scales.get()};
    const auto run = [&](int N, int C, Fp8Scaling scaling, QuantizePass pass, bool scales = true) {
        return error_of([&] {
            Quantized<e4m3> asked = target;
            if (!scales) asked.transposed_scales = nullptr;
            quantize_blocks(asked, nullptr, nullptr, inp.get(), N, C, scaling, false, pass, test_stream());
        });
    };
    CHECK(run(128, 256, Fp8Scaling::block, QuantizePass::train) == "");
    CHECK(contains(run(64, 256, Fp8Scaling::block, QuantizePass::train), "N=64 is not a positive multiple of 128"));
    CHECK(contains(run(128, 48, Fp8Scaling::mx, QuantizePass::train), "C=48 is not a positive multiple of 32"));
    CHECK(contains(run(128, 256, Fp8Scaling::block, QuantizePass::measure), "measuring"));
    CHECK(run(128, 256, Fp8Scaling::tensor, QuantizePass::train) != "");
    CHECK(contains(run(128, 256, Fp8Scaling::block, QuantizePass::train, false), "needs its scales"));
    const auto weight = [&] {
        quantize_weight_tiles(target, master.get(), 64, 256, QuantizePass::train, test_stream());
    };
    CHECK(contains(error_of(weight), "N=64"));
}
