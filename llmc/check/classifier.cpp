// Softmax cross-entropy over the run's vocabulary against FP64, with a target to be ignored and a logit that is not
// finite; and the sum of losses.
#include "llmc/kernels/classifier.h"

#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr int kRows = 5, kIgnoredRow = 2, kBadRow = 3;
constexpr float kLossGradient = 1.0f / kRows, kLossScale = 4096.0f;

// Padding holds NaN: it must not be used.
template <class Real>
std::vector<Real> example_logits(int V, int padded_V, float cap) {
    const size_t width = static_cast<size_t>(padded_V);
    auto logits = reference::random_normal<Real>(kRows * width, cap > 0 ? cap / 2 : 3.0f, 61);  // many near the cap
    for (size_t row = 0; row < kRows; row++)
        for (size_t v = static_cast<size_t>(V); v < width; v++) logits[row * width + v] = to<Real>(std::nanf(""));
    logits[kBadRow * width + static_cast<size_t>(V) / 3] = to<Real>(std::nanf(""));
    return logits;
}

std::vector<int> example_targets(int V) {
    std::vector<int> targets = {V - 1, V / 2, -1, 0, V / 3};
    return targets;
}

template <class Real>
std::string check_cross_entropy(int V, int padded_V, const LogitShaping& shaping, stream_t stream) {
    const size_t width = static_cast<size_t>(padded_V);
    const auto before = example_logits<Real>(V, padded_V, shaping.soft_cap);
    const auto targets = example_targets(V);
    const double dloss = static_cast<double>(kLossGradient) * static_cast<double>(kLossScale);
    const auto expected = reference::cross_entropy(reference::to_doubles(before), targets, V, padded_V, dloss, shaping);
    const double of_cap = reference::soft_cap_error(static_cast<double>(shaping.soft_cap));
    Bounded losses(expected.losses, reference::kLossError + of_cap, 1.0);
    // What smoothing takes off may leave next to nothing.
    const double of_all = static_cast<double>(shaping.trained.label_smoothing) / V;
    Bounded gradient(expected.gradient, reference::rounding_error<Real>() + reference::kLogitGradientError + 2 * of_cap,
                     (reference::kLogitGradientFloor + of_all) * dloss);
    losses.values[kBadRow] = std::nan("");
    for (size_t v = 0; v < width; v++)
        if (v < static_cast<size_t>(V)) gradient.values[kBadRow * width + v] = std::nan("");
    for (size_t row = 0; row < kRows; row++)
        for (size_t v = 0; v < width; v++)
            if (v >= static_cast<size_t>(V) || row == kIgnoredRow) gradient.bounds[row * width + v] = 0;
    losses.bounds[kIgnoredRow] = 0;

    Trial trial(stream);
    const int* device_targets = trial.input(targets);
    const float* scale = trial.input(std::vector<float>{kLossScale});
    const std::vector<Axis> axes = {{"row", kRows}, {"", width}};
    Real* dlogits = trial.result<Real>("dlogits", axes, before);
    Real* logits = trial.result<Real>("logits without gradient", axes, before);
    float* loss = trial.result<float>("loss", {{"row", kRows}});
    float* evaluated = trial.result<float>("evaluated loss", {{"row", kRows}});
    trial.run_twice([&] {
        softmax_cross_entropy<Real>(dlogits, loss, device_targets, kLossGradient, scale, kRows, V, padded_V, true,
                                    stream, shaping);
        softmax_cross_entropy<Real>(logits, evaluated, device_targets, 1.0f, nullptr, kRows, V, padded_V, false, stream,
                                    shaping);
    });
    trial.within(loss, losses);
    trial.within(evaluated, losses);
    trial.within(dlogits, gradient);
    trial.equal(logits, before);
    return trial.problem();
}

std::string check_sum_losses(stream_t stream) {
    constexpr int n = 1031;
    auto losses = reference::random_normal<float>(n, 1.0f, 62, 5.0f);
    std::vector<int> targets(n);
    double sum = 0;
    int counted = 0;
    for (int i = 0; i < n; i++) {
        const size_t at = static_cast<size_t>(i);
        targets[at] = i % 5 == 3 ? -1 : i;
        if (targets[at] < 0) losses[at] = 0.0f;
        sum += static_cast<double>(losses[at]);
        counted += targets[at] >= 0;
    }
    Trial trial(stream);
    const float* device_losses = trial.input(losses);
    const int* device_targets = trial.input(targets);
    double* total = trial.result<double>("total", {{"", 1}});
    int* count = trial.result<int>("count", {{"", 1}});
    trial.run_twice([&] {
        for (const bool accumulate : {false, true})
            sum_losses(total, count, device_losses, device_targets, n, accumulate, stream);
    });
    Bounded expected(0);
    expected.push_back(2 * sum, 1e-14 * n * sum);  // FP64 sums of positive numbers
    trial.note(not_within(trial.shape_of(total), trial.read(total), expected));
    trial.equal(count, {2 * counted});
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const int V = use.vocab, padded_V = use.padded_vocab;
    const LogitShaping shaping{use.logit_cap, use.loss};
    std::string name = strprintf("softmax_cross_entropy %s V=%d/%d", type_name<Real>(), V, padded_V);
    if (use.logit_cap > 0) name += strprintf(" capped at %g", use.logit_cap);
    if (use.loss.z_loss > 0) name += strprintf(" with z-loss %g", use.loss.z_loss);
    if (use.loss.label_smoothing > 0) name += strprintf(" with labels smoothed by %g", use.loss.label_smoothing);
    items.push_back(
        {name, "kernels", "", [=](stream_t s) { return check_cross_entropy<Real>(V, padded_V, shaping, s); }});
    items.push_back({"sum_losses", "kernels", "", check_sum_losses});
}

}  // namespace

void add_classifier(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
