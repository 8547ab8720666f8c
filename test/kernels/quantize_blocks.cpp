// Quantization with block scales against a direct reference: every block's scale, both layouts from the source, bias
// gradients, what the state notes, the scale layouts by cuBLASLt's documentation, and exact dequantization.
#include "llmc/kernels/quantize_blocks.h"

#include "llmc/kernels/quantize.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The definition: the smallest power of two that brings amax to 448 or less, by trying.
int exponent_by_search(double amax) {
    if (amax == 0) return 0;
    int e = -126;
    while (std::ldexp(amax, -e) > 448.0) e++;
    return e;
}

// An (R, K) matrix with one exponent for each `rows` x `length` block, and the codes that follow.
struct BlockReference {
    int R, K, rows, length;
    std::vector<int> exponents;  // (R / rows, K / length)
    std::vector<NearestCode> codes;
    Fp8State counted{};

    BlockReference(const std::vector<float>& x, int R_, int K_, int rows_, int length_)
        : R(R_), K(K_), rows(rows_), length(length_) {
        const int across = (K + length - 1) / length;
        std::vector<double> amax(static_cast<size_t>((R + rows - 1) / rows * across), 0.0);
        for (int r = 0; r < R; r++)
            for (int k = 0; k < K; k++) {
                const float value = x[static_cast<size_t>(r) * K + k];
                double& block = amax[static_cast<size_t>(r / rows * across + k / length)];
                if (std::isfinite(value)) block = std::max(block, std::fabs(static_cast<double>(value)));
            }
        for (const double a : amax) exponents.push_back(exponent_by_search(a));
        for (int r = 0; r < R; r++)
            for (int k = 0; k < K; k++) {
                const float value = x[static_cast<size_t>(r) * K + k];
                codes.push_back(nearest_code<e4m3>(std::ldexp(static_cast<double>(value), -exponent(r, k))));
                counted.elements++;
                counted.saturated += std::isinf(value);
                counted.underflowed += value != 0.0f && (codes.back().code & 0x7f) == 0;
                counted.nonfinite += !std::isfinite(value);
                if (std::isfinite(value)) counted.amax = std::max(counted.amax, std::fabs(value));
            }
    }
    int exponent(int r, int k) const {
        return exponents[static_cast<size_t>(r / rows * ((K + length - 1) / length) + k / length)];
    }
    Fp8State after(const Fp8State& before, QuantizePass pass) const {
        Fp8State state = before;
        if (pass == QuantizePass::replay) return state;
        state.bad |= counted.nonfinite > 0;
        if (is_any_of(pass, QuantizePass::train, QuantizePass::train_counted))
            state.amax = std::max(state.amax, counted.amax);
        state.nonfinite += counted.nonfinite;
        if (!is_any_of(pass, QuantizePass::train_counted, QuantizePass::write_counted)) return state;
        state.elements += counted.elements, state.saturated += counted.saturated;
        state.underflowed += counted.underflowed;
        return state;
    }
};

// Where the documentation of cuBLASLt ("1D/2D block scaling") puts the scale of (r, k), written out anew.
size_t documented_place(ScaleLayout layout, int rows, int K, int r, int k) {
    const int l = k / 128, vectors = (K + 127) / 128;
    if (layout == ScaleLayout::vectors) return static_cast<size_t>(l * rows + r);  // M-major, M x L
    if (layout == ScaleLayout::tiles) {                                            // K-major, L4 x ceil(M / 128)
        int l4 = vectors;
        while (l4 % 4 != 0) l4++;
        return static_cast<size_t>(r / 128 * l4 + l);
    }
    const int outer = r % 128, inner = k / 32 % 4;
    return static_cast<size_t>((r / 128 * vectors + l) * 512 + outer % 32 * 16 + outer / 32 * 4 + inner);
}

size_t wrong_scales(const std::vector<char>& table, ScaleLayout layout, const BlockReference& reference) {
    size_t wrong = 0;
    std::vector<char> is_used(table.size());
    for (int r = 0; r < reference.R; r++)
        for (int k = 0; k < reference.K; k++) {
            const size_t place = documented_place(layout, reference.R, reference.K, r, k);
            if (layout == ScaleLayout::mx) {
                is_used[place] = 1;
                wrong += static_cast<uint8_t>(table[place]) != reference.exponent(r, k) + 127;
                continue;
            }
            float value;
            std::memcpy(&value, &table[place * sizeof value], sizeof value);
            wrong += value != std::ldexp(1.0f, reference.exponent(r, k));
        }
    // Tiles of mx scales are filled up with 0.
    for (size_t i = 0; layout == ScaleLayout::mx && i < table.size(); i++) wrong += !is_used[i] && table[i] != 0;
    return wrong;
}

std::vector<float> turned(const std::vector<float>& x, int R, int K) {
    std::vector<float> result(x.size());
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) result[static_cast<size_t>(k) * R + r] = x[static_cast<size_t>(r) * K + k];
    return result;
}

// Blocks of very different sizes, some all zero.
template <class Real>
std::vector<Real> uneven_values(int R, int K, uint32_t seed) {
    std::vector<Real> values = random_normal<Real>(static_cast<size_t>(R) * K, 1.0f, seed);
    std::mt19937 engine(seed + 1);
    std::vector<int> row_power(static_cast<size_t>(R)), column_power(static_cast<size_t>(K));
    for (int& p : row_power) p = static_cast<int>(engine() % 40) - 20;
    for (int& p : column_power) p = static_cast<int>(engine() % 24) - 12;
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) {
            Real& v = values[static_cast<size_t>(r) * K + k];
            v = to<Real>(to_float(v) *
                         std::ldexp(1.0f, row_power[static_cast<size_t>(r)] + column_power[static_cast<size_t>(k)]));
            if (r % 7 == 3 && k / 32 % 3 == 1) v = to<Real>(0.0f);
        }
    return values;
}

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
