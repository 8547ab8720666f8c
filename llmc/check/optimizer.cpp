// The optimizer's update against FP64, with the working copy and the amax that it leaves, and that a skipped step
// changes nothing.
#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"

namespace llmc::check {
namespace {

constexpr size_t kCount = 4101, kDecayCount = 1500;
constexpr AdamWConfig kConfig{0.9, 0.95, 1e-8, 0.1};

StepState example_state(bool skip) {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = static_cast<float>(1 / (1 - std::pow(kConfig.beta1, 3)));
    state.bias_correction2 = static_cast<float>(1 / (1 - std::pow(kConfig.beta2, 3)));
    state.skip = skip;
    return state;
}

struct Before {
    std::vector<float> master = reference::random_normal<float>(kCount, 0.5f, 81),
                       m = reference::random_normal<float>(kCount, 0.01f, 82), v,
                       grad = reference::random_normal<float>(kCount, 0.2f, 83);
    Before() {
        for (const float g : grad) v.push_back(1e-4f + g * g * 0.01f);
    }
};

// What all optimizers leave beside their own: the working copy of the new masters, and their amax.
template <class Real>
void compare_copies(Trial& trial, const float* master, const Real* working, const Fp8State* fp8, bool skip) {
    const std::vector<float> after = trial.read(master);
    std::vector<Real> rounded(kCount);
    if (skip) std::memset(static_cast<void*>(rounded.data()), 0xFF, kCount * sizeof(Real));
    for (size_t i = 0; i < kCount && !skip; i++)
        if constexpr (sizeof(Real) == 2)
            rounded[i] = reference::nearest_bf16(static_cast<double>(after[i]));
        else
            rounded[i] = after[i];
    trial.equal(working, rounded);
    if (!fp8) return;
    Fp8State expected{};
    for (const float weight : after) expected.amax_now = skip ? 0.0f : std::max(expected.amax_now, std::fabs(weight));
    trial.note(wrong_state(trial.read(fp8)[0], {expected, expected}));
}

void compare_update(Trial& trial, const Before& before, const float* master, const float* m, const float* v) {
    const auto expected =
        reference::adamw(before.master, before.m, before.v, before.grad, kDecayCount, kConfig, example_state(false));
    trial.within(master, Bounded(expected.master, reference::kAdamWError, reference::kMasterFloor));
    trial.within(m, Bounded(expected.m, reference::kAdamWError, reference::kFirstMomentFloor));
    trial.within(v, Bounded(expected.v, reference::kAdamWError, reference::kSecondMomentFloor));
}

template <class Real>
std::string check_adamw(bool skip, bool measured, stream_t stream) {
    const Before before;
    Trial trial(stream);
    const float* grad = trial.input(before.grad);
    const StepState* state = trial.input(std::vector<StepState>{example_state(skip)});
    const std::vector<Axis> axes = {{"", kCount}};
    float *master = trial.result("master", axes, before.master), *m = trial.result("m", axes, before.m),
          *v = trial.result("v", axes, before.v);
    Real* working = trial.result<Real>("working", axes);
    Fp8State* fp8 = measured ? trial.result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>(1)) : nullptr;
    trial.run_twice(
        [&] { adamw_update<Real>(master, m, v, working, fp8, grad, kCount, kDecayCount, kConfig, state, stream); });

    if (skip)
        trial.equal(master, before.master), trial.equal(m, before.m), trial.equal(v, before.v);
    else
        compare_update(trial, before, master, m, v);
    compare_copies(trial, master, working, fp8, skip);
    return trial.problem();
}

constexpr LionConfig kLion{0.9, 0.99, 0.1};
constexpr SgdConfig kSgd{0.9, true, 0.1};

// Lion, or SGD.
template <class Real>
std::string check_one_moment(bool is_lion, bool skip, bool measured, stream_t stream) {
    const Before before;
    Trial trial(stream);
    const float* grad = trial.input(before.grad);
    const StepState* state = trial.input(std::vector<StepState>{example_state(skip)});
    const std::vector<Axis> axes = {{"", kCount}};
    float *master = trial.result("master", axes, before.master), *m = trial.result("m", axes, before.m);
    Real* working = trial.result<Real>("working", axes);
    Fp8State* fp8 = measured ? trial.result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>(1)) : nullptr;
    trial.run_twice([&] {
        if (is_lion)
            lion_update<Real>(master, m, working, fp8, grad, kCount, kDecayCount, kLion, state, stream);
        else
            sgd_update<Real>(master, m, working, fp8, grad, kCount, kDecayCount, kSgd, state, stream);
    });
    if (skip) {
        trial.equal(master, before.master), trial.equal(m, before.m);
    } else {
        const auto expected =
            is_lion ? reference::lion(before.master, before.m, before.grad, kDecayCount, kLion, example_state(false))
                    : reference::sgd(before.master, before.m, before.grad, kDecayCount, kSgd, example_state(false));
        const double floor = is_lion ? reference::kFirstMomentFloor : reference::kSumMomentFloor;
        trial.within(master, Bounded(expected.master, reference::kAdamWError, reference::kMasterFloor));
        trial.within(m, Bounded(expected.m, reference::kAdamWError, floor));
    }
    compare_copies(trial, master, working, fp8, skip);
    return trial.problem();
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    const auto add_both = [&](const char* name, const auto& check) {
        for (const bool measured : {false, true}) {
            if (measured && !(use.fp8 && use.scaling == Fp8Scaling::tensor))
                continue;  // also then, not all tensors are
            const std::string suffix = std::string(" ") + type_name<Real>() + (measured ? " with amax" : "");
            for (const bool skip : {false, true})
                items.push_back({name + (skip ? ", skipped step," + suffix : suffix), "kernels", "",
                                 [check, skip, measured](stream_t s) { return check(skip, measured, s); }});
        }
    };
    const bool is_lion = use.optimizer == OptimizerKind::lion;
    if (use.optimizer == OptimizerKind::adamw || is_muon(use.optimizer))
        add_both("adamw_update", check_adamw<Real>);
    else
        add_both(is_lion ? "lion_update" : "sgd_update", [is_lion](bool skip, bool measures, stream_t s) {
            return check_one_moment<Real>(is_lion, skip, measures, s);
        });
}

}  // namespace

void add_optimizer(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
