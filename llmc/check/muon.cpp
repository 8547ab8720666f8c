// Muon's kernels against FP64; its products are among the run's.
#include "llmc/kernels/muon.h"
#include "llmc/check/families.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr double kSafety = 1.02, kBeta2 = 0.9;
constexpr int kRows = 72, kColumns = 209;
constexpr size_t kCount = static_cast<size_t>(kRows) * kColumns;
constexpr double kUnit = 0x1p-24;  // of FP32, to nearest
constexpr MuonUpdate kUpdate{2.5, 0.1};

StepState example_state() {
    StepState state = {};
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    return state;
}

// What rounding to Real loses, relative.
template <class Real>
constexpr double kRounding = sizeof(Real) == 2 ? 0x1p-8 : 0x1p-24;

template <class Real>
std::string check_momentum(stream_t stream) {
    Trial trial(stream);
    const auto before = reference::random_normal<float>(kCount, 0.01f, 91);
    const auto gradient = reference::random_normal<float>(kCount, 0.2f, 92);
    const float* grad = trial.input(gradient);
    // A quarter of the way from 0.85 to 0.95: of 400 updates 100 have gone before this one.
    const MuonMomentum config{0.95, 400};
    const double beta = 0.875;
    StepState host_state = example_state();
    host_state.applied = 101;
    const StepState* state = trial.input(std::vector<StepState>{host_state});
    float* m = trial.result("m", {{"", kCount}}, before);
    Real* u = trial.result<Real>("u", {{"", kCount}});
    trial.run_twice([&] { muon_momentum(m, u, grad, kCount, config, true, state, stream); });
    Bounded momentum, direction;
    for (size_t i = 0; i < kCount; i++) {
        const double old = beta * static_cast<double>(before[i]), g = 0.25 * static_cast<double>(gradient[i]);
        const double now = old + (1 - beta) * g, terms = std::fabs(old) + std::fabs(g);
        const double ahead = (1 - beta) * g + beta * now;
        momentum.push_back(now, 4 * kUnit * terms);
        direction.push_back(ahead, 8 * kUnit * terms + kRounding<Real> * std::fabs(ahead));
    }
    trial.within(m, momentum);
    trial.within(u, direction);
    return trial.problem();
}

template <class Real>
std::string check_orientation(stream_t stream) {
    Trial trial(stream);
    const auto values = reference::random_normal<Real>(kCount, 1.0f, 93);
    const Real* x = trial.input(values);
    const StepState* state = trial.input(std::vector<StepState>{example_state()});
    double* partials = trial.scratch<double>(muon_norm_blocks(kCount));
    float* inverse = trial.result<float>("inverse norm", {{"", 1}});
    Real* turned = trial.result<Real>("transpose", {{"column ", kColumns}, {"", kRows}});
    float* factors = trial.result<float>("factors", {{"column ", kColumns}});
    float* squares = trial.scratch<float>(kColumns);
    const std::vector<float> before(kColumns, 0.5f);
    float* second = trial.result("second moment", {{"column ", kColumns}}, before);
    trial.run_twice([&] {
        muon_inverse_norm(inverse, partials, x, kCount, kSafety, stream);
        copy_matrix(turned, x, kRows, kColumns, true, nullptr, FactorOf::none, stream);
        normuon_factors(factors, second, squares, x, kRows, kColumns, false, kBeta2, state, stream);
    });
    double sum = 0, weighted = 0;
    Bounded average, expected;
    std::vector<Real> transposed;
    for (int c = 0; c < kColumns; c++) {
        double column = 0;
        for (int r = 0; r < kRows; r++) {
            const Real value = values[static_cast<size_t>(r * kColumns + c)];
            transposed.push_back(value);
            column += static_cast<double>(to_float(value)) * static_cast<double>(to_float(value));
        }
        const double second_moment = kBeta2 * 0.5 + (1 - kBeta2) * column / kRows;
        average.push_back(second_moment, (kRows + 8) * kUnit * second_moment);
        sum += column, weighted += column / second_moment;
    }
    for (const double second_moment : average.values) {
        const double factor = std::sqrt(sum / weighted / second_moment);
        expected.push_back(factor, 2 * (kRows + 8) * kUnit * factor);
    }
    trial.equal(turned, transposed);
    trial.within(inverse, Bounded({1 / (kSafety * std::sqrt(sum))}, 2 * kUnit, 0));
    trial.within(second, average);
    trial.within(factors, expected);
    return trial.problem();
}

template <class Real>
std::string check_update(bool measured, stream_t stream) {
    Trial trial(stream);
    const auto before = reference::random_normal<float>(kCount, 0.5f, 94);
    const auto directions = reference::random_normal<Real>(kCount, 0.3f, 95);
    const Real* o = trial.input(directions);
    const StepState* state = trial.input(std::vector<StepState>{example_state()});
    float* master = trial.result("master", {{"", kCount}}, before);
    Real* working = trial.result<Real>("working", {{"", kCount}});
    Fp8State* fp8 = measured ? trial.result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>(1)) : nullptr;
    trial.run_twice([&] { muon_update(master, working, fp8, o, kCount, kUpdate, state, stream); });
    Bounded expected;
    for (size_t i = 0; i < kCount; i++) {
        const double p = static_cast<double>(before[i]), d = static_cast<double>(to_float(directions[i]));
        const double after = p - 2e-3 * (kUpdate.weight_decay * p + kUpdate.scale * d);
        expected.push_back(after,
                           kUnit * (std::fabs(after) + 6 * 2e-3 * (std::fabs(p) + kUpdate.scale * std::fabs(d))));
    }
    trial.within(master, expected);
    std::vector<Real> rounded;
    Fp8State largest{};
    for (const float weight : trial.read(master)) {
        rounded.push_back(to<Real>(weight));
        largest.amax_now = std::max(largest.amax_now, std::fabs(weight));
    }
    trial.equal(working, rounded);
    if (measured) trial.note(wrong_state(trial.read(fp8)[0], {largest, largest}));
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const bool measured = use.fp8 && use.scaling == Fp8Scaling::tensor;
    const std::string suffix = std::string(" ") + type_name<Real>();
    items.push_back({"muon_momentum" + suffix, "kernels", "", check_momentum<Real>});
    items.push_back(
        {"muon_inverse_norm, copy_matrix, normuon_factors" + suffix, "kernels", "", check_orientation<Real>});
    items.push_back({"muon_update" + suffix + (measured ? " with amax" : ""), "kernels", "",
                     [measured](stream_t s) { return check_update<Real>(measured, s); }});
}

}  // namespace

void add_muon(Items& items, const KernelUse& use) {
    if (is_muon(use.optimizer)) use.bf16 ? add<bf16>(items, use) : add<float>(items, use);
}

}  // namespace llmc::check
