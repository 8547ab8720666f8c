// What records of FP8 tensors tell of outliers, at the run's widths, against FP64.
#include "llmc/kernels/outliers.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_outliers.h"
#include "llmc/check/trial.h"

namespace llmc::check {

namespace {

constexpr size_t kCount = 70008;  // three blocks, whose threads take several strides

template <class T>
std::string check_moments(stream_t stream) {
    const bool codes = sizeof(T) == 1;
    std::vector<T> values(kCount);
    const auto numbers = reference::random_normal<float>(kCount, 3.0f, 211);
    for (size_t i = 0; i < kCount; i++) values[i] = to<T>(numbers[i]);
    std::vector<double> x = reference::to_doubles(values);
    Fp8State state{};
    state.scale_inv = 0.375f;
    for (double& value : x) value *= codes ? 0.375 : 1.0;
    Trial trial(stream);
    const T* inp = trial.input(values);
    const Fp8State* scaled = codes ? trial.input(std::vector<Fp8State>{state}) : nullptr;
    double* parts = trial.scratch<double>(moment_parts(kCount));
    double* sums = trial.result("sums", {{"", 3}}, std::vector<double>(3, 0.0));
    trial.run_twice([&] { add_moments(sums, parts, inp, kCount, scaled, stream); });
    trial.note(not_within(trial.shape_of(sums), trial.read(sums), reference::moments(x)));
    return trial.problem();
}

template <class T>
std::string check_differences(stream_t stream) {
    std::vector<T> actual(kCount), expected(kCount);
    const auto numbers = reference::random_normal<float>(kCount, 3.0f, 213);
    const auto errors = reference::random_normal<float>(kCount, 0.1f, 214);
    for (size_t i = 0; i < kCount; i++) expected[i] = to<T>(numbers[i]), actual[i] = to<T>(numbers[i] + errors[i]);
    Trial trial(stream);
    const T *a = trial.input(actual), *e = trial.input(expected);
    double* parts = trial.scratch<double>(moment_parts(kCount));
    double* sums = trial.result("sums", {{"", 3}}, std::vector<double>(3, 0.0));
    trial.run_twice([&] { add_differences(sums, parts, a, e, kCount, stream); });
    trial.note(not_within(trial.shape_of(sums), trial.read(sums),
                          reference::differences(reference::to_doubles(actual), reference::to_doubles(expected))));
    return trial.problem();
}

template <class T>
std::string check_alignment(int channels, stream_t stream) {
    constexpr size_t F = 77;
    const size_t C = static_cast<size_t>(channels);
    std::vector<T> values(2 * F * C);
    const auto numbers = reference::random_normal<float>(values.size(), 1.0f, 212);
    // The last row of up has half of its gate's in it.
    for (size_t i = 0; i < values.size(); i++)
        values[i] = to<T>(numbers[i] + (i < (2 * F - 1) * C ? 0.0f : 0.5f * numbers[i - F * C]));
    Trial trial(stream);
    const T* weight = trial.input(values);
    float* alignment = trial.result<float>("alignment", {{"", 2}});
    float* cosines = trial.scratch<float>(F);
    trial.run_twice([&] { gate_alignment(alignment, cosines, weight, static_cast<int>(F), channels, stream); });
    trial.within(alignment, reference::alignment(reference::to_doubles(values), F, C));
    return trial.problem();
}

template <class T>
CheckItem alignment_item(const char* type, int C) {
    return {strprintf("gate_alignment %s C=%d", type, C), "kernels", "",
            [C](stream_t s) { return check_alignment<T>(C, s); }};
}

}  // namespace

void add_outliers(Items& items, const KernelUse& use) {
    if (!use.fp8) return;
    const bool codes = use.scaling == Fp8Scaling::tensor;
    if (codes) items.push_back({"add_moments e4m3", "kernels", "", check_moments<e4m3>});
    if (!codes || use.smooth) items.push_back({"add_moments bf16", "kernels", "", check_moments<bf16>});
    if (use.probe) {
        items.push_back({"add_differences bf16", "kernels", "", check_differences<bf16>});
        items.push_back({"add_differences fp32", "kernels", "", check_differences<float>});
    }
    if (use.activation != Activation::swiglu) return;
    items.push_back(codes                              ? alignment_item<e4m3>("e4m3", use.channels)
                    : use.scaling == Fp8Scaling::block ? alignment_item<float>("fp32", use.channels)
                                                       : alignment_item<bf16>("bf16", use.channels));
}

}  // namespace llmc::check
