// Smoothing factors, and the precision that they give to an FP8 product.
#include "llmc/kernels/outliers.h"

#include "llmc/check/reference.h"
#include "llmc/check/trial.h"
#include "llmc/kernels/quantize.h"
#include "llmc/linear/matmul.h"
#include "test/kernels/quantized.h"
#include "test/linear/sums.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("scale_columns refuses columns that are no multiple of 8") {
    DeviceArray<float> values(8), factors(8);
    CHECK_THROWS_AS(scale_columns<float>(values, nullptr, factors, true, 1, 7, test_stream()), Error);
}

TEST_CASE("smoothing_factors: half of an outlier's distance; quiet channels get the middle channel's factor") {
    const auto factors_of = [](const std::vector<float>& seen) {
        DeviceArray<float> factors(std::vector<float>(seen.size(), 0.5f)), amax(seen);
        smoothing_factors(factors, amax, 1, static_cast<int>(seen.size()), test_stream());
        CHECK(amax.download() == std::vector<float>(seen.size(), 0.0f));
        const std::vector<float> found = factors.download(), before(seen.size(), 0.5f);
        CHECK(not_equal({"factors", {{"", seen.size()}}}, found, reference::smoothing(seen, before)) == "");
        return found;
    };
    const std::vector<float> ones(8, 1.0f), unchanged(8, 0.5f);
    CHECK(factors_of({1, 1, 1, 1, 1, 1, 1, 1.9f}) == ones);
    CHECK(factors_of(std::vector<float>(8, 0.0f)) == unchanged);
    CHECK(factors_of({1, 1, 1, 1, 1, 1, 1, 1024}) ==
          std::vector<float>{1 / 32.f, 1 / 32.f, 1 / 32.f, 1 / 32.f, 1 / 32.f, 1 / 32.f, 1 / 32.f, 1});
    CHECK(factors_of({0, 0, 0, 0x1p-9f, 1, 2, 64, 128}) ==
          std::vector<float>{1 / 8.f, 1 / 8.f, 1 / 8.f, 1 / 8.f, 1 / 8.f, 1 / 8.f, 1, 1});
    CHECK(factors_of({0x1p-100f, 0x1p-100f, 0x1p-100f, 0x1p-100f, 0x1p-100f, 1, 1, 1})[0] == 0x1p-20f);
    // No divided channel exceeds the largest one, so that the tensor's scale also fits the divided values.
    std::vector<float> seen;
    for (const float x : random_normal<float>(512, 6.0f, 9)) seen.push_back(std::exp2(x * x / 8));
    const std::vector<float> factors = factors_of(seen);
    const float largest = *std::max_element(seen.begin(), seen.end());
    for (size_t c = 0; c < seen.size(); c++) {
        CHECK(seen[c] / factors[c] <= largest);
        CHECK(factors[c] <= 1);
    }
}

namespace {

constexpr int kN = 32, kC = 64, kOC = 48;
constexpr size_t kLoud = 5;  // the channel that is many times as large as the others

// x (N, C) of +-[1, 2), but for the loud channel; weight (OC, C) of +-[1, 2). In every other row the loud channel's
// weight is 0, so that it does not hide the loss of the other channels.
struct Outlier {
    std::vector<bf16> x;
    std::vector<float> weight;
    explicit Outlier(float times) {
        const auto some = [](size_t i) {
            const float value = 1.0f + static_cast<float>(i * 37 % 64) / 64;
            return i * 11 % 7 < 3 ? -value : value;
        };
        for (size_t i = 0; i < kN * kC; i++) x.push_back(to_bf16(some(i) * (i % kC == kLoud ? times : 1.0f)));
        for (size_t i = 0; i < kOC * kC; i++) weight.push_back(i % kC == kLoud && i / kC % 2 == 0 ? 0.0f : some(i));
    }
};

// x weight^T by codes of these scales, with the columns of both scaled by the factors.
std::vector<bf16> product(const std::vector<bf16>& x, float x_scale, const std::vector<float>& weight, float w_scale,
                          const std::vector<float>& factors) {
    DeviceArray<bf16> values(x), out(kN * kOC);
    DeviceArray<float> master(weight), powers(factors);
    scale_columns<bf16>(values, nullptr, powers, true, kN, kC, test_stream());
    QuantizedArrays<e4m3> x_codes(kN * kC, used_state(x_scale)), w_codes(kOC * kC, used_state(w_scale));
    quantize<e4m3>(x_codes.both(), nullptr, nullptr, values, nullptr, kN, kC, false, QuantizePass::write,
                   test_stream());
    quantize_weight(w_codes.both(), master, kOC, kC, QuantizePass::write, test_stream(), powers);
    Matmul matmul(false, FastAccumulation::none);
    matmul.reserve({kN, kC, kOC});
    matmul.forward_fp8(out, x_codes.row.get(), x_codes.both().row_scale_inv(), w_codes.row.get(),
                       w_codes.both().row_scale_inv(), nullptr, kN, kC, kOC, test_stream());
    return out.download();
}

// How far the product of the codes is from x weight^T, in units of what it may be if every number keeps E4M3's relative
// precision: of sum |x| |weight| 2^-4 for each of the two, 2^-8 for the result in BF16, and what the sum itself may err
// by.
double worst_error(const Outlier& of, const std::vector<float>& factors) {
    const auto scale_for = [](const std::vector<double>& values) {
        double amax = 0;
        for (const double value : values) amax = std::max(amax, std::fabs(value));
        return static_cast<float>(448 / amax);
    };
    const auto scaled =
        product(of.x, scale_for(to_doubles(of.x)), of.weight, scale_for(to_doubles(of.weight)), factors);
    double worst = 0;
    for (size_t n = 0; n < kN; n++)
        for (size_t o = 0; o < kOC; o++) {
            double exact = 0, magnitudes = 0;
            for (size_t c = 0; c < kC; c++) {
                const double term = to_float(of.x[n * kC + c]) * double{of.weight[o * kC + c]};
                exact += term, magnitudes += std::fabs(term);
            }
            const double allowed = ((1 + 0x1p-4) * (1 + 0x1p-4) - 1 + 0x1p-8 + kC * fp8_unit()) * magnitudes;
            worst = std::max(worst, std::fabs(to_float(scaled[n * kOC + o]) - exact) / allowed);
        }
    return worst;
}

std::vector<float> smoothed(const Outlier& of) {
    std::vector<float> seen(kC, 0.0f);
    for (size_t i = 0; i < of.x.size(); i++) seen[i % kC] = std::max(seen[i % kC], std::fabs(to_float(of.x[i])));
    return reference::smoothing(seen, seen);
}

}  // namespace

// E4M3's normal numbers reach from 448 down to 2^-6, 2^14.8; below 2^-10, 2^18.8 under the largest, all becomes 0. At
// 2^10 all numbers are normal either way. At 2^21 the others all vanish, and the rows that do not see the loud channel
// are lost altogether; shared out, they are 2^11 and 2^12 under it on one side and 2^11 on the other.
TEST_CASE("smoothing: a product keeps the precision of E4M3 beside a channel that would drown the others") {
    test_stream();
    if (!device_info().has_fp8) return;
    const std::vector<float> ones(kC, 1.0f);
    for (const float times : {1.0f, 1000.0f, 0x1p21f}) {
        CAPTURE(times);
        const Outlier of(times);
        CHECK(worst_error(of, smoothed(of)) <= 1);
        const double without = worst_error(of, ones);
        if (times < 0x1p12f)
            CHECK(without <= 1);
        else
            CHECK(without > 5);  // of 2^-3 and a bit: nothing of the result is left
    }
}
