// Quantization with block scales against a direct reference: every block's scale, both layouts from the source, bias
// gradients, what the state notes, the scale layouts by cuBLASLt's documentation, and exact dequantization.
#include "llmc/kernels/quantize_blocks.h"

#include <random>

#include "llmc/kernels/quantize.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using reference::BlockReference, reference::exponent_by_search, reference::turned, reference::uneven_values;
using reference::wrong_scales;

ScaleLayout layout_of(Fp8Scaling scaling) { return scaling == Fp8Scaling::mx ? ScaleLayout::mx : ScaleLayout::vectors; }

struct BlockArrays {
    ScaleLayout layout;
    int N, C;
    DeviceArray<e4m3> row, transposed;
    DeviceArray<char> row_scales, transposed_scales;
    DeviceArray<Fp8State> state;

    BlockArrays(ScaleLayout l, int N_, int C_)
        : layout(l),
          N(N_),
          C(C_),
          row(static_cast<size_t>(N) * C),
          transposed(static_cast<size_t>(N) * C),
          row_scales(scale_bytes(l, static_cast<size_t>(N), static_cast<size_t>(C))),
          transposed_scales(scale_bytes(l, static_cast<size_t>(C), static_cast<size_t>(N))),
          state(std::vector<Fp8State>{used_state(3.0f)}) {}
    Quantized<e4m3> both() {
        return {row.get(), transposed.get(), state.get(), row_scales.get(), transposed_scales.get()};
    }
    void check(const BlockReference& rows, const BlockReference& columns, QuantizePass pass) const {
        CHECK(wrong_codes(row.download(), rows.codes, Known::exactly) == 0);
        CHECK(wrong_codes(transposed.download(), columns.codes, Known::exactly) == 0);
        CHECK(wrong_scales(row_scales.download(), layout, rows) == 0);
        CHECK(wrong_scales(transposed_scales.download(), layout, columns) == 0);
        CHECK(state_matches(state.download()[0], rows.after(used_state(3.0f), pass), Known::exactly, 0));
    }
};

std::vector<std::pair<int, int>> block_shapes(Fp8Scaling scaling) {
    if (scaling == Fp8Scaling::block) return {{128, 128}, {384, 128}, {128, 640}, {256, 384}};
    return {{32, 32}, {32, 160}, {96, 64}, {160, 128}, {288, 352}};
}

}  // namespace

TEST_CASE("block exponents are the smallest that bring amax to 448") {
    for (const float amax : {448.0f, 449.0f, 447.0f, 1.0f, 1.75f, 1.7500001f, 1.5f, 3.5f, 3.6f, 1e-30f, 3e38f, 1e-38f,
                             1e-45f, 0.0f, 7.0f, 0x1.cp-118f, 0x1.cp-119f}) {
        CAPTURE(amax);
        CHECK(block_exponent(amax) == exponent_by_search(static_cast<double>(amax)));
    }
    std::mt19937 engine(1);
    int wrong = 0;
    for (int i = 0; i < 100000; i++) {
        const float amax = float_from_bits(engine() % kFloatInfinityBits);
        wrong += block_exponent(amax) != exponent_by_search(static_cast<double>(amax));
    }
    CHECK(wrong == 0);
}

TEST_CASE("quantize_blocks, both scalings, both layouts, all passes") {
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx})
        for (const auto& [N, C] : block_shapes(scaling)) {
            CAPTURE(N);
            CAPTURE(C);
            const int length = scaling == Fp8Scaling::mx ? 32 : 128;
            const auto values = uneven_values<bf16>(N, C, static_cast<uint32_t>(N + 3 * C));
            const auto x = to_floats(values);
            const BlockReference rows(x, N, C, 1, length), columns(turned(x, N, C), C, N, 1, length);
            REQUIRE(rows.counted.underflowed > 0);
            DeviceArray<bf16> inp(values);
            for (const QuantizePass pass : {QuantizePass::train_counted, QuantizePass::train,
                                            QuantizePass::write_counted, QuantizePass::write, QuantizePass::replay}) {
                BlockArrays to(layout_of(scaling), N, C);
                quantize_blocks(to.both(), nullptr, nullptr, inp.get(), N, C, scaling, false, pass, test_stream());
                to.check(rows, columns, pass);
            }
            // One layout alone: an evaluation needs no transposed copy.
            BlockArrays one(layout_of(scaling), N, C);
            quantize_blocks({one.row.get(), nullptr, one.state.get(), one.row_scales.get(), nullptr}, nullptr, nullptr,
                            inp.get(), N, C, scaling, false, QuantizePass::replay, test_stream());
            CHECK(wrong_codes(one.row.download(), rows.codes, Known::exactly) == 0);
        }
}

TEST_CASE("quantize_blocks sums columns for a bias gradient") {
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx})
        for (const auto& [N, C] : block_shapes(scaling)) {
            CAPTURE(N);
            CAPTURE(C);
            DeviceArray<bf16> inp(random_normal<bf16>(static_cast<size_t>(N) * C, 1.0f, 11, 0.2f));
            auto expected = column_sums(to_floats(inp.download()), C);
            DeviceArray<float> dbias(static_cast<size_t>(C)), scratch(quantize_scratch(N, C));
            BlockArrays to(layout_of(scaling), N, C);
            const auto run = [&](bool accumulate, const Quantized<e4m3>& target) {
                quantize_blocks(target, dbias, scratch, inp.get(), N, C, scaling, accumulate, QuantizePass::train,
                                test_stream());
            };
            run(false, to.both());
            const auto once = dbias.download();
            CHECK(max_relative_error(once, expected, 1.0 + 0.2 * N) < 1e-6);
            for (double& e : expected) e *= 2;
            run(true, to.both());
            CHECK(max_relative_error(dbias.download(), expected, 1.0 + 0.2 * N) < 1e-6);
            run(false, {to.row.get(), nullptr, to.state.get(), to.row_scales.get(), nullptr});
            CHECK(same_bits(dbias.download(), once));
        }
}

TEST_CASE("quantize_blocks keeps what is not finite out of its scales, and counts it") {
    const int N = 128, C = 256;
    auto values = random_normal<bf16>(static_cast<size_t>(N) * C, 1.0f, 5);
    const float inf = std::numeric_limits<float>::infinity();
    values[5] = to_bf16(inf), values[3 * C + 200] = to_bf16(-inf), values[70 * C + 1] = to_bf16(NAN);
    DeviceArray<bf16> inp(values);
    for (const Fp8Scaling scaling : {Fp8Scaling::block, Fp8Scaling::mx}) {
        const int length = scaling == Fp8Scaling::mx ? 32 : 128;
        const auto x = to_floats(values);
        const BlockReference rows(x, N, C, 1, length), columns(turned(x, N, C), C, N, 1, length);
        REQUIRE(rows.counted.nonfinite == 3);
        BlockArrays to(layout_of(scaling), N, C);
        quantize_blocks(to.both(), nullptr, nullptr, inp.get(), N, C, scaling, false, QuantizePass::train,
                        test_stream());
        to.check(rows, columns, QuantizePass::train);
    }
}

TEST_CASE("quantize_weight_tiles") {
    for (const auto& [R, C] : {std::pair{128, 128}, {384, 128}, {128, 640}, {256, 384}}) {
        CAPTURE(R);
        CAPTURE(C);
        auto x = uneven_values<float>(R, C, static_cast<uint32_t>(R * 3 + C));
        for (int i = 0; i < 128 * C; i++)
            if (i % C < 128) x[static_cast<size_t>(i)] *= 1e-6f;  // tiles differ
        const BlockReference rows(x, R, C, 128, 128), columns(turned(x, R, C), C, R, 128, 128);
        DeviceArray<float> master(x);
        for (const QuantizePass pass : {QuantizePass::train_counted, QuantizePass::train, QuantizePass::write_counted,
                                        QuantizePass::write, QuantizePass::replay}) {
            BlockArrays to(ScaleLayout::tiles, R, C);
            quantize_weight_tiles(to.both(), master.get(), R, C, pass, test_stream());
            to.check(rows, columns, pass);
            CHECK(not_transposed(to.row.download(), to.transposed.download(), R, C) == 0);
        }
    }
}

TEST_CASE("dequantize_blocks is exact") {
    for (const auto& [scaling, N, C] : {std::tuple{Fp8Scaling::block, 128, 384}, {Fp8Scaling::mx, 96, 160}}) {
        const int length = scaling == Fp8Scaling::mx ? 32 : 128;
        const auto values = uneven_values<bf16>(N, C, 8);
        const BlockReference rows(to_floats(values), N, C, 1, length);
        DeviceArray<bf16> inp(values), back(values.size());
        BlockArrays to(layout_of(scaling), N, C);
        quantize_blocks(to.both(), nullptr, nullptr, inp.get(), N, C, scaling, false, QuantizePass::train,
                        test_stream());
        dequantize_blocks(back.get(), to.row.get(), to.row_scales.get(), layout_of(scaling), N, C, test_stream());
        const auto actual = back.download();
        int wrong = 0;
        for (size_t i = 0; i < actual.size(); i++) {
            const int r = static_cast<int>(i) / C, k = static_cast<int>(i) % C;
            const double code = static_cast<double>(to_float(e4m3{rows.codes[i].code}));
            wrong += static_cast<double>(to_float(actual[i])) != std::ldexp(code, rows.exponent(r, k));
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("block quantization refuses shapes without whole blocks") {
    DeviceArray<bf16> inp(128 * 256);
    DeviceArray<float> master(128 * 256);
    BlockArrays to(ScaleLayout::vectors, 128, 256);
    const auto run = [&](int N, int C, Fp8Scaling scaling, QuantizePass pass, bool scales = true) {
        return refusal([&] {
            Quantized<e4m3> target = to.both();
            if (!scales) target.transposed_scales = nullptr;
            quantize_blocks(target, nullptr, nullptr, inp.get(), N, C, scaling, false, pass, test_stream());
        });
    };
    CHECK(run(128, 256, Fp8Scaling::block, QuantizePass::train) == "");
    CHECK(run(64, 256, Fp8Scaling::block, QuantizePass::train).find("N=64 is not a positive multiple of 128") !=
          std::string::npos);
    CHECK(run(128, 48, Fp8Scaling::mx, QuantizePass::train).find("C=48 is not a positive multiple of 32") !=
          std::string::npos);
    CHECK(run(128, 256, Fp8Scaling::block, QuantizePass::measure).find("measuring") != std::string::npos);
    CHECK(run(128, 256, Fp8Scaling::tensor, QuantizePass::train) != "");
    CHECK(run(128, 256, Fp8Scaling::block, QuantizePass::train, false).find("needs its scales") != std::string::npos);
    CHECK(refusal([&] {
              quantize_weight_tiles(to.both(), master.get(), 64, 256, QuantizePass::train, test_stream());
          }).find("N=64") != std::string::npos);
}
