// RMS norm at the run's width against FP64.
#include "llmc/kernels/norm.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_rms.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 149;
constexpr size_t kRowCount = kRows;
constexpr float kEps = 0.01f;  // large enough for its absence to show

template <class Real>
std::string check_forward(int channels, bool gains, stream_t stream) {
    const size_t C = static_cast<size_t>(channels), n = kRowCount * C;
    const auto a = reference::random_normal<Real>(n, 1.0f, 161, 1.0f), b = reference::random_normal<Real>(n, 0.7f, 162),
               w = example_gains<Real>(C, gains);
    Trial trial(stream);
    const Real *inp1 = trial.input(a), *inp2 = trial.input(b), *weight = trial.input_or_none(w);
    const std::vector<Axis> axes = {{"n", kRowCount}, {"", C}};
    Real *residual = trial.result<Real>("residual", axes), *normed = trial.result<Real>("normed", axes);
    float* rstd = trial.result<float>("rstd", {{"n", kRowCount}});
    // The stored residual alone, as when it is computed again, gives the same bits; so does a call that keeps nothing.
    Real* again = trial.result<Real>("normed again", axes);
    trial.run_twice([&] {
        rmsnorm_forward<Real>(normed, rstd, residual, inp1, inp2, weight, kRows, channels, kEps, stream);
        rmsnorm_forward<Real>(again, nullptr, nullptr, residual, nullptr, weight, kRows, channels, kEps, stream);
    });
    trial.equal(again, trial.read(normed));
    std::vector<Real> sum(n);
    for (size_t i = 0; i < n; i++) sum[i] = reference::stored_sum(a[i], b[i]);
    trial.equal(residual, sum);
    const auto x = reference::to_doubles(sum);
    const auto expected = reference::rms_rstd(x, kRows, channels, static_cast<double>(kEps));
    trial.within(rstd, Bounded(expected, reference::kRstdError, 0.0));
    trial.within(normed, Bounded(reference::rms_rows(x, expected, reference::to_doubles(w), channels),
                                 reference::rounding_error<Real>() + reference::kLayernormError, 0.0));
    return trial.problem();
}

template <class Real>
std::string check_backward(int channels, bool gains, stream_t stream) {
    const size_t C = static_cast<size_t>(channels), n = kRowCount * C;
    const auto x = reference::random_normal<Real>(n, 2.0f, 165, 0.5f),
               g = reference::random_normal<Real>(n, 1.0f, 166, 0.2f), r = reference::random_normal<Real>(n, 1.0f, 167),
               w = example_gains<Real>(C, gains);
    const auto xd = reference::to_doubles(x);
    const auto statistics = reference::rms_rstd(xd, kRows, channels, static_cast<double>(kEps));
    auto expected =
        reference::rms_gradient(xd, reference::to_doubles(g), statistics, reference::to_doubles(w), channels);
    Trial trial(stream);
    const Real *inp = trial.input(x), *dout = trial.input(g), *weight = trial.input_or_none(w);
    const float* rstd = trial.input(std::vector<float>(statistics.begin(), statistics.end()));
    const std::vector<Axis> axes = {{"n", kRowCount}, {"", C}};
    Real *alone = trial.result<Real>("dinp without dresidual", axes), *dinp = trial.result("dinp", axes, r);
    float* dweight = gains ? trial.result<float>("dweight", {{"", C}}) : nullptr;
    float* scratch = gains ? trial.scratch<float>(rmsnorm_backward_scratch(kRows, channels)) : nullptr;
    const auto run = [&](Real* to, const Real* dresidual, bool accumulate) {
        rmsnorm_backward<Real>(to, dresidual, dweight, scratch, dout, inp, weight, rstd, kRows, channels, accumulate,
                               stream);
    };
    // Once into nothing, and once over the residual's gradient and on top of what is there.
    trial.run_twice([&] { run(alone, nullptr, false), run(dinp, dinp, true); });
    const double relative = reference::rounding_error<Real>() + reference::kLayernormError;
    trial.within(alone, Bounded(expected.dinp, relative, reference::kLayernormGradientFloor));
    for (size_t i = 0; i < n; i++) expected.dinp[i] += static_cast<double>(to_float(r[i]));
    trial.within(dinp, Bounded(expected.dinp, relative, reference::kNormedFloor));
    if (!gains) return trial.problem();
    for (double& sum : expected.dweight) sum *= 2;
    trial.within(dweight, Bounded(expected.dweight, reference::kLayernormSumError, 2.0 * (1 + kRows)));
    return trial.problem();
}

template <class Real>
void add(Items& items, int C, bool gains) {
    const std::string suffix = strprintf(" %s C=%d%s", type_name<Real>(), C, gains ? "" : " without gains");
    items.push_back(
        {"rmsnorm_forward" + suffix, "kernels", "", [=](stream_t s) { return check_forward<Real>(C, gains, s); }});
    items.push_back(
        {"rmsnorm_backward" + suffix, "kernels", "", [=](stream_t s) { return check_backward<Real>(C, gains, s); }});
}

}  // namespace

void add_rmsnorm(Items& items, const KernelUse& use) {
    for (const bool gains : {true, false})
        if (gains ? use.rms_norm : use.rms_norm_without_gains)
            use.bf16 ? add<bf16>(items, use.channels, gains) : add<float>(items, use.channels, gains);
}

}  // namespace llmc::check
