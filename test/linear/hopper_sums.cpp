// FP8 products with Hopper's sums (--fp8-arithmetic hopper), bit by bit against a slow calculation in FP64 that follows
// the definition in products_host.h.
#include "llmc/linear/products_host.h"

#include "llmc/kernels/quantize_blocks.h"
#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// The definition's numbers. Tests change one of them to see that it decides bits.
struct Definition {
    int terms = 32, fraction_bits = 13, result_bits = 13, promotion = 128;
    double (*cut)(double) = std::trunc;
    bool subnormals_have_least = true;
};

double cut_to(double x, double unit, double (*cut)(double)) { return cut(x / unit) * unit; }

template <class F8>
int exponent_of(F8 code, const Definition& d) {
    const int least = std::is_same_v<F8, e4m3> ? -6 : -14, own = std::ilogb(to_float(code));
    return d.subnormals_have_least ? std::max(own, least) : own;
}

// One instruction's sum. FP64 has every number here exactly.
template <class F8>
double instruction(double sum, const F8* a, const e4m3* b, int n, const Definition& d) {
    int top = sum != 0 ? std::ilogb(sum) : -1000;
    for (int i = 0; i < n; i++)
        if (to_float(a[i]) != 0 && to_float(b[i]) != 0)
            top = std::max(top, exponent_of(a[i], d) + exponent_of(b[i], d));
    if (top == -1000) return 0;
    const double unit = std::ldexp(1.0, top - d.fraction_bits);
    double total = cut_to(sum, unit, d.cut);
    for (int i = 0; i < n; i++) total += cut_to(static_cast<double>(to_float(a[i])) * to_float(b[i]), unit, d.cut);
    return total == 0 ? 0 : cut_to(total, std::ldexp(1.0, std::ilogb(total) - d.result_bits), std::trunc);
}

// Scales that multiply the partial sums, by row and number of the part.
using Scales = std::vector<std::vector<float>>;

// The sums of all elements of first (rows, inner) * second (columns, inner)^T, in FP32.
template <class F8>
std::vector<float> sums(const std::vector<F8>& first, const std::vector<e4m3>& second, int inner, bool fast,
                        const Definition& d = {}, const Scales& first_scales = {}, const Scales& second_scales = {}) {
    std::vector<float> result;
    const size_t n = static_cast<size_t>(inner);
    for (size_t r = 0; r < first.size() / n; r++)
        for (size_t c = 0; c < second.size() / n; c++) {
            float total = 0;
            double part = 0;
            for (int k = 0; k < inner; k += d.terms) {
                part = instruction(part, &first[r * n + k], &second[c * n + k], std::min(d.terms, inner - k), d);
                const bool promotes = (k + d.terms) % d.promotion == 0 || k + d.terms >= inner;
                if (fast || !promotes) continue;
                const int block = k / d.promotion;
                const float scale = first_scales.empty() ? 1 : first_scales[r][block] * second_scales[c][block];
                total += static_cast<float>(part) * scale;
                part = 0;
            }
            result.push_back(fast ? static_cast<float>(part) : total);
        }
    return result;
}

std::vector<bf16> rounded(std::vector<float> values, float scale, const std::vector<bf16>& bias = {}) {
    std::vector<bf16> result;
    for (size_t i = 0; i < values.size(); i++)
        result.push_back(to_bf16(values[i] * scale + (bias.empty() ? 0 : to_float(bias[i % bias.size()]))));
    return result;
}

// Numbers of many magnitudes, with zeros and subnormal codes.
template <class F8>
std::vector<F8> spread_codes(size_t n, uint32_t seed) {
    std::vector<F8> codes = random_normal<F8>(n, 8.0f, seed);
    for (size_t i = 0; i < n; i++) {
        const auto draw = static_cast<uint32_t>((i + seed) * 2654435761u) >> 16;
        if (draw % 4 == 0) codes[i].bits = static_cast<uint8_t>(codes[i].bits & 0x80) | draw / 4 % 20;
    }
    return codes;
}

template <class F8>
void check_products(int N, int C, int OC, FastAccumulation wanted) {
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    CAPTURE(sizeof(F8));
    const size_t n = N, c = C, oc = OC;
    const Fp8Operands<F8> o(N, C, OC, spread_codes<e4m3>(n * c, 1), spread_codes<e4m3>(oc * c, 2),
                            spread_codes<F8>(n * oc, 3));
    Matmul matmul(false, wanted, Fp8Scaling::tensor, Fp8Arithmetic::hopper);
    const auto results = o.multiply(matmul);

    const bool fast_forward = wanted != FastAccumulation::none, fast = wanted == FastAccumulation::all;
    const float scale = o.x_scale.value * o.weight_scale.value;
    const std::vector<float> forward = sums(o.x, o.weight, C, fast_forward);
    CHECK(same_bits(results.out, rounded(forward, scale, o.bias)));
    CHECK(same_bits(results.out_without_bias, rounded(forward, scale)));
    CHECK(same_bits(results.dinp,
                    rounded(sums(o.dout, o.weight_transposed, OC, fast), o.dout_scale.value * o.weight_scale.value)));
    std::vector<float> wgrad = sums(o.dout_transposed, o.x_transposed, N, fast);
    for (float& x : wgrad) x *= o.dout_scale.value * o.x_scale.value;
    CHECK(same_bits(results.dweight, wgrad));
    for (float& x : wgrad) x += x;
    CHECK(same_bits(results.dweight_twice, wgrad));
}

// forward (N, OC) with unit scales.
std::vector<bf16> forward(const std::vector<e4m3>& x, const std::vector<e4m3>& w, int C, Fp8Arithmetic arithmetic,
                          FastAccumulation fast = FastAccumulation::forward) {
    const int N = static_cast<int>(x.size()) / C, OC = static_cast<int>(w.size()) / C;
    const TensorScale one(1);
    DeviceArray<e4m3> d_x(x), d_w(w);
    DeviceArray<bf16> out(static_cast<size_t>(N) * OC);
    Matmul matmul(false, fast, Fp8Scaling::tensor, arithmetic);
    matmul.reserve({N, C, OC});
    matmul.forward_fp8(out, d_x, one.inv(), d_w, one.inv(), nullptr, N, C, OC, test_stream());
    return out.download();
}

}  // namespace

TEST_CASE("Hopper's sums: products have the bits of the definition, in every kind of accumulation") {
    test_stream();
    if (!device_info().is_host) return;
    for (const FastAccumulation wanted : {FastAccumulation::none, FastAccumulation::forward, FastAccumulation::all}) {
        check_products<e5m2>(48, 272, 112, wanted);
        check_products<e4m3>(144, 16, 304, wanted);
    }
}

TEST_CASE("Hopper's sums: each number of the definition decides bits") {
    test_stream();
    if (!device_info().is_host) return;
    auto x = spread_codes<e4m3>(16 * 512, 1), w = spread_codes<e4m3>(16 * 512, 2);
    for (int k = 0; k < 512; k++) {  // only subnormal codes, one product much larger than the others
        x[k].bits = 1;
        w[k] = to_e4m3(k % 32 == 0 ? 256.0f : 0.0625f);
    }
    const auto out = forward(x, w, 512, Fp8Arithmetic::hopper, FastAccumulation::none);
    const auto agrees = [&](const Definition& d) { return same_bits(out, rounded(sums(x, w, 512, false, d), 1)); };
    CHECK(agrees({}));
    CHECK_FALSE(agrees({.terms = 16}));
    CHECK_FALSE(agrees({.fraction_bits = 12}));
    CHECK_FALSE(agrees({.fraction_bits = 14}));
    CHECK_FALSE(agrees({.result_bits = 12}));
    CHECK_FALSE(agrees({.promotion = 256}));
    CHECK_FALSE(agrees({.cut = std::floor}));
    CHECK_FALSE(agrees({.cut = std::nearbyint}));
    CHECK_FALSE(agrees({.subnormals_have_least = false}));
    CHECK_FALSE(same_bits(out, forward(x, w, 512, Fp8Arithmetic::hopper, FastAccumulation::all)));
    CHECK_FALSE(same_bits(out, forward(x, w, 512, Fp8Arithmetic::fp32)));
}

TEST_CASE("Hopper's sums: small terms next to a large one vanish") {
    test_stream();
    if (!device_info().is_host) return;
    std::vector<e4m3> x(16 * 32, to_e4m3(0.0625f)), w = x;                         // products of 2^-8
    for (int row = 0; row < 16; row++) x[row * 32] = w[row * 32] = to_e4m3(8.0f);  // 64: units of 2^-7
    CHECK(to_float(forward(x, w, 32, Fp8Arithmetic::hopper)[0]) == 64.0f);
    for (int row = 0; row < 16; row++) x[row * 32] = w[row * 32] = to_e4m3(4.0f);  // 16: units of 2^-9
    CHECK(to_float(forward(x, w, 32, Fp8Arithmetic::hopper)[0]) == to_float(to_bf16(16.0f + 31 * 0x1p-8f)));
}

TEST_CASE("Hopper's sums: a code that is not finite makes its row or column NaN") {
    test_stream();
    if (!device_info().is_host) return;
    std::vector<e4m3> x(48 * 160, to_e4m3(1.0f)), w = x;
    x[5 * 160 + 3].bits = w[40 * 160 + 150].bits = kFp8NaN;
    const auto out = forward(x, w, 160, Fp8Arithmetic::hopper);
    for (int i = 0; i < 48 * 48; i++) CHECK(std::isnan(to_float(out[i])) == (i / 48 == 5 || i % 48 == 40));
}

TEST_CASE("Hopper's sums: block scales multiply the sums of 128 terms") {
    test_stream();
    if (!device_info().is_host) return;
    constexpr int N = 128, C = 256, OC = 384;
    const auto x = spread_codes<e4m3>(N * C, 1), w = spread_codes<e4m3>(OC * C, 2);
    std::vector<float> x_table(scale_bytes(ScaleLayout::vectors, N, C) / sizeof(float)),
        w_table(scale_bytes(ScaleLayout::tiles, OC, C) / sizeof(float));
    for (size_t i = 0; i < x_table.size(); i++) x_table[i] = std::ldexp(1.0f + i % 7 / 8.0f, static_cast<int>(i % 5));
    for (size_t i = 0; i < w_table.size(); i++) w_table[i] = std::ldexp(1.0f, -static_cast<int>(i % 4));
    const auto scales = [](const std::vector<float>& table, ScaleLayout layout, int rows) {
        Scales all(rows);
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < C; k += 128) all[r].push_back(block_scale_inv(table.data(), layout, rows, C, r, k));
        return all;
    };
    DeviceArray<e4m3> d_x(x), d_w(w);
    DeviceArray<float> d_x_table(x_table), d_w_table(w_table);
    DeviceArray<bf16> out(N * OC);
    Matmul matmul(false, FastAccumulation::all, Fp8Scaling::block, Fp8Arithmetic::hopper);
    matmul.reserve({N, C, OC});
    matmul.forward_fp8(out, d_x, d_x_table, d_w, d_w_table, nullptr, N, C, OC, test_stream());
    const std::vector<float> expected =
        sums(x, w, C, false, {}, scales(x_table, ScaleLayout::vectors, N), scales(w_table, ScaleLayout::tiles, OC));
    CHECK(same_bits(out.download(), rounded(expected, 1)));
}
