// Layer norm at the run's width against FP64.
#include "llmc/kernels/norm.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 149;
constexpr size_t kRowCount = kRows;

template <class Real>
std::string check_forward(int channels, stream_t stream) {
    const size_t C = static_cast<size_t>(channels), n = kRowCount * C;
    const auto a = reference::random_normal<Real>(n, 1.0f, 21, 1.0f), b = reference::random_normal<Real>(n, 0.7f, 22),
               w = reference::random_normal<Real>(C, 0.3f, 23, 1.0f),
               shift = reference::random_normal<Real>(C, 0.3f, 24);
    Trial trial(stream);
    const Real *inp1 = trial.input(a), *inp2 = trial.input(b), *weight = trial.input(w), *bias = trial.input(shift);
    Real* residual = trial.result<Real>("residual", {{"n", kRowCount}, {"", C}});
    Real* normed = trial.result<Real>("normed", {{"n", kRowCount}, {"", C}});
    float *mean = trial.result<float>("mean", {{"n", kRowCount}}),
          *rstd = trial.result<float>("rstd", {{"n", kRowCount}});
    // The stored residual alone, as when it is computed again, gives the same bits; so does a call without statistics.
    Real* again = trial.result<Real>("normed again", {{"n", kRowCount}, {"", C}});
    trial.run_twice([&] {
        layernorm_forward<Real>(normed, mean, rstd, residual, inp1, inp2, weight, bias, kRows, channels, stream);
        layernorm_forward<Real>(again, nullptr, nullptr, nullptr, residual, nullptr, weight, bias, kRows, channels,
                                stream);
    });
    trial.equal(again, trial.read(normed));
    std::vector<Real> sum(n);
    for (size_t i = 0; i < n; i++) sum[i] = reference::stored_sum(a[i], b[i]);
    trial.equal(residual, sum);
    const auto x = reference::to_doubles(sum);
    const auto expected = reference::row_statistics(x, kRows, channels);
    trial.within(mean, Bounded(expected.mean, reference::kMeanError, 1.0));
    trial.within(rstd, Bounded(expected.rstd, reference::kRstdError, 0.0));
    const auto y = reference::normed_rows(x, expected, reference::to_doubles(w), reference::to_doubles(shift));
    trial.within(normed,
                 Bounded(y, reference::rounding_error<Real>() + reference::kLayernormError, reference::kNormedFloor));
    return trial.problem();
}

template <class Real>
std::string check_backward(int channels, stream_t stream) {
    const size_t C = static_cast<size_t>(channels), n = kRowCount * C;
    const auto x = reference::random_normal<Real>(n, 2.0f, 31, 0.5f),
               g = reference::random_normal<Real>(n, 1.0f, 32, 0.2f), r = reference::random_normal<Real>(n, 1.0f, 33),
               w = reference::random_normal<Real>(C, 0.3f, 34, 1.0f);
    const auto xd = reference::to_doubles(x);
    const auto statistics = reference::row_statistics(xd, kRows, channels);
    auto expected = reference::layernorm_gradient(xd, reference::to_doubles(g), reference::to_doubles(w), statistics);
    Trial trial(stream);
    const Real *inp = trial.input(x), *dout = trial.input(g), *dresidual = trial.input(r), *weight = trial.input(w);
    const float* mean = trial.input(std::vector<float>(statistics.mean.begin(), statistics.mean.end()));
    const float* rstd = trial.input(std::vector<float>(statistics.rstd.begin(), statistics.rstd.end()));
    Real *dinp = trial.result<Real>("dinp", {{"n", kRowCount}, {"", C}}),
         *alone = trial.result<Real>("dinp without dresidual", {{"n", kRowCount}, {"", C}});
    float* dweight = trial.result<float>("dweight", {{"", C}});
    float* dshift = trial.result<float>("dshift", {{"", C}});
    float* scratch = trial.scratch<float>(layernorm_backward_scratch(kRows, channels));
    const auto run = [&](Real* to, const Real* residual_gradient, bool accumulate) {
        layernorm_backward<Real>(to, residual_gradient, dweight, dshift, scratch, dout, inp, weight, mean, rstd, kRows,
                                 channels, accumulate, stream);
    };
    // Once into nothing and once on top of what is there.
    trial.run_twice([&] { run(alone, nullptr, false), run(dinp, dresidual, true); });
    const double relative = reference::rounding_error<Real>() + reference::kLayernormError;
    trial.within(alone, Bounded(expected.dinp, relative, reference::kLayernormGradientFloor));

    for (size_t i = 0; i < n; i++) expected.dinp[i] += static_cast<double>(to_float(r[i]));
    for (double& sum : expected.dweight) sum *= 2;
    for (double& sum : expected.dshift) sum *= 2;
    trial.within(dinp, Bounded(expected.dinp, relative, reference::kNormedFloor));
    trial.within(dweight, Bounded(expected.dweight, reference::kLayernormSumError, 2.0 * (1 + kRows)));
    trial.within(dshift, Bounded(expected.dshift, reference::kLayernormSumError, 2.0 * (1 + kRows)));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const int C = use.channels;
    const std::string suffix = strprintf(" %s C=%d", type_name<Real>(), C);
    items.push_back(
        {"layernorm_forward" + suffix, "kernels", "", [C](stream_t s) { return check_forward<Real>(C, s); }});
    items.push_back(
        {"layernorm_backward" + suffix, "kernels", "", [C](stream_t s) { return check_backward<Real>(C, s); }});
}

}  // namespace

void add_layernorm(Items& items, const KernelUse& use) {
    if (use.layer_norm) use.bf16 ? add<bf16>(items, use) : add<float>(items, use);
}

}  // namespace llmc::check
