// Clipping, and the optimizer's update against FP64, with the working copy and the amax that it leaves, and that a
// skipped step changes nothing.
#include "llmc/check/families.h"
#include "llmc/check/reference_rows.h"
#include "llmc/check/trial.h"
#include "llmc/kernels/clip.h"

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

constexpr MomentRounding kRounding{12345, 4096};

// To one of its neighbours in BF16: away from 0 where what is lost and `random` / 65536 make up a step.
double rounded_by(double x, uint32_t random) {
    if (x == 0) return 0;
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7), steps = std::fabs(x) / step;
    const double lost = steps - std::floor(steps);
    return std::copysign((std::floor(steps) + (lost + random / 65536.0 >= 1)) * step, x);
}

// What a moment, known within bounds, is in its format. `shift`: of its random bits among an element's.
template <class Moment>
Bounded stored(const Bounded& exact, int shift) {
    if (std::is_same_v<Moment, float>) return exact;
    Bounded range;
    for (size_t i = 0; i < exact.values.size(); i++) {
        const uint64_t bits = moment_bits(kRounding.key, example_state(false).applied, kRounding.first + i / 2 * 2);
        const uint32_t random = bits >> (static_cast<int>(i % 2) * 32 + shift) & 0xffff;
        const double low = rounded_by(exact.values[i] - exact.bounds[i], random);
        const double high = rounded_by(exact.values[i] + exact.bounds[i], random);
        range.push_back((low + high) / 2, (high - low) / 2);
    }
    return range;
}

template <class Moment>
void compare_update(Trial& trial, const Before& before, const float* master, const Moment* m, const Moment* v) {
    const auto expected =
        reference::adamw(before.master, before.m, before.v, before.grad, kDecayCount, kConfig, example_state(false));
    trial.within(master, Bounded(expected.master, reference::kAdamWError, reference::kMasterFloor));
    trial.within(m, stored<Moment>(Bounded(expected.m, reference::kAdamWError, reference::kFirstMomentFloor), 0));
    trial.within(v, stored<Moment>(Bounded(expected.v, reference::kAdamWError, reference::kSecondMomentFloor), 16));
}

// Values that Moment has, here as FP32.
template <class Moment>
std::vector<Moment> narrowed(std::vector<float>& values) {
    std::vector<Moment> narrow;
    for (float& value : values) narrow.push_back(to<Moment>(value)), value = to_float(narrow.back());
    return narrow;
}

template <class Real, class Moment>
std::string check_adamw(bool skip, bool measured, stream_t stream) {
    Before before;
    const std::vector<Moment> m_before = narrowed<Moment>(before.m), v_before = narrowed<Moment>(before.v);
    Trial trial(stream);
    const float* grad = trial.input(before.grad);
    const StepState* state = trial.input(std::vector<StepState>{example_state(skip)});
    const std::vector<Axis> axes = {{"", kCount}};
    float* master = trial.result("master", axes, before.master);
    Moment *m = trial.result("m", axes, m_before), *v = trial.result("v", axes, v_before);
    Real* working = trial.result<Real>("working", axes);
    Fp8State* fp8 = measured ? trial.result<Fp8State>("state", {{"", 1}}, std::vector<Fp8State>(1)) : nullptr;
    trial.run_twice([&] {
        adamw_update(master, m, v, working, fp8, grad, kCount, kDecayCount, kConfig, state, stream, kRounding);
    });

    if (skip)
        trial.equal(master, before.master), trial.equal(m, m_before), trial.equal(v, v_before);
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

// ---- clipping ------------------------------------------------------------------------------------------------------

constexpr double kClip = 0.2;
constexpr float kLossScale = 1024.0f;

std::string check_clip_values(stream_t stream) {
    const auto before = reference::random_normal<float>(kCount, 200.0f, 84);
    Trial trial(stream);
    const float* scale = trial.input(std::vector<float>{kLossScale});
    float* grad = trial.result<float>("gradient", {{"", kCount}}, before);
    trial.run_twice([&] { clip_values(grad, kCount, kClip, scale, stream); });
    const float limit = static_cast<float>(kClip) * kLossScale;
    std::vector<float> expected;
    for (const float g : before) expected.push_back(std::clamp(g, -limit, limit));
    trial.equal(grad, expected);
    return trial.problem();
}

// A norm below the bound, and one above it; `parts` of a sum add up to it.
std::string check_clip_tensors(stream_t stream) {
    const size_t parts = 700;
    for (const double size : {0.4, 3.0}) {  // of the bound
        const auto before = reference::random_normal<float>(kCount, 1.0f, 85);
        const double norm = size * kClip * kLossScale;
        Trial trial(stream);
        const float* scale = trial.input(std::vector<float>{kLossScale});
        const double* partials = trial.input(std::vector<double>(parts, norm * norm / static_cast<double>(parts)));
        double* square = trial.result<double>("square", {{"", 1}});
        float* factor = trial.result<float>("factor", {{"", 1}});
        float* grad = trial.result<float>("gradient", {{"", kCount}}, before);
        trial.run_twice([&] {
            add_partials(square, partials, parts, stream);
            clip_factors(factor, square, 1, kClip, scale, stream);
            scale_gradient(grad, kCount, factor, stream);
        });
        Bounded expected;  // the norm and the factor are rounded to FP32, the gradient too
        for (const float g : before)
            expected.push_back(static_cast<double>(g) / std::max(size, 1.0),
                               size < 1 ? 0 : 4 * reference::kUnit * std::fabs(static_cast<double>(g)));
        trial.within(grad, expected);
        if (!trial.problem().empty()) return trial.problem();
    }
    return "";
}

template <class Real>
void add(Items& items, const KernelUse& use) {
    if (use.clip_kind == ClipKind::value) items.push_back({"clip_values", "kernels", "", check_clip_values});
    if (use.clip_kind == ClipKind::tensor) items.push_back({"clip_tensors", "kernels", "", check_clip_tensors});
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
    const bool is_adamw = use.optimizer == OptimizerKind::adamw || is_muon(use.optimizer);
    if (is_adamw && use.adam_moments == MomentFormat::bf16)
        add_both("adamw_update, moments bf16,", check_adamw<Real, bf16>);
    else if (is_adamw)
        add_both("adamw_update", check_adamw<Real, float>);
    else
        add_both(is_lion ? "lion_update" : "sgd_update", [is_lion](bool skip, bool measures, stream_t s) {
            return check_one_moment<Real>(is_lion, skip, measures, s);
        });
}

}  // namespace

void add_optimizer(Items& items, const KernelUse& use) { use.bf16 ? add<bf16>(items, use) : add<float>(items, use); }

}  // namespace llmc::check
