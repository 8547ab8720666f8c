// The kernels of --fp8-smooth at the run's hidden width: all of it is exact.
#include "llmc/kernels/outliers.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_smooth.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 277;  // two blocks, and rows of their own

std::vector<float> powers_of_two(size_t count) {
    std::vector<float> powers(count);
    for (size_t i = 0; i < count; i++) powers[i] = std::ldexp(1.0f, -static_cast<int>(i * i % (kMostSmoothing + 1)));
    return powers;
}

template <class Real>
std::string check_columns(int columns, bool divide, stream_t stream) {
    const size_t C = static_cast<size_t>(columns);
    const auto values = reference::random_normal<Real>(kRows * C, 3.0f, 221);
    const std::vector<float> powers = powers_of_two(C), before(C, 4.0f);
    std::vector<Real> expected;
    std::vector<float> largest = before;
    for (size_t i = 0; i < values.size(); i++) {
        const float x = to_float(values[i]);
        largest[i % C] = std::max(largest[i % C], std::fabs(x));
        expected.push_back(to<Real>(divide ? x / powers[i % C] : x * powers[i % C]));
    }
    Trial trial(stream);
    const float* factors = trial.input(powers);
    Real* inout = trial.result("values", {{"n", kRows}, {"", C}}, values);
    float* amax = trial.result("amax", {{"", C}}, before);
    trial.run_twice([&] { scale_columns<Real>(inout, amax, factors, divide, kRows, columns, stream); });
    trial.equal(inout, expected);
    trial.equal(amax, largest);
    return trial.problem();
}

std::string check_factors(int columns, stream_t stream) {
    constexpr size_t kLayers = 3;  // the last has not seen anything
    const size_t C = static_cast<size_t>(columns);
    std::vector<float> seen = reference::random_normal<float>(kLayers * C, 1.0f, 222), before(kLayers * C, 0.25f);
    std::vector<float> expected;
    for (size_t layer = 0; layer < kLayers; layer++) {
        for (size_t c = 0; c < C; c++) {
            float& amax = seen[layer * C + c];
            amax = layer == 2 || c % 5 == 0 ? 0.0f : std::fabs(amax) * (c % 11 == 0 ? 0x1p30f : 1.0f);
        }
        const auto own = [&](const std::vector<float>& all) {
            return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(layer * C),
                                      all.begin() + static_cast<std::ptrdiff_t>((layer + 1) * C));
        };
        for (const float factor : reference::smoothing(own(seen), own(before))) expected.push_back(factor);
    }
    Trial trial(stream);
    float* factors = trial.result("factors", {{"layer ", kLayers}, {"", C}}, before);
    float* amax = trial.result("amax", {{"layer ", kLayers}, {"", C}}, seen);
    trial.run_twice([&] { smoothing_factors(factors, amax, kLayers, columns, stream); });
    trial.equal(factors, expected);
    trial.equal(amax, std::vector<float>(kLayers * C, 0.0f));
    return trial.problem();
}

}  // namespace

void add_smooth(Items& items, const KernelUse& use) {
    if (!use.fp8 || !use.smooth) return;
    const int F = use.hidden;
    items.push_back({strprintf("scale_columns bf16 C=%d", F), "kernels", "",
                     [F](stream_t s) { return check_columns<bf16>(F, true, s); }});
    items.push_back({strprintf("scale_columns fp32 C=%d", F), "kernels", "",
                     [F](stream_t s) { return check_columns<float>(F, false, s); }});
    items.push_back(
        {strprintf("smoothing_factors C=%d", F), "kernels", "", [F](stream_t s) { return check_factors(F, s); }});
}

}  // namespace llmc::check
