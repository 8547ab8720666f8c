// The small kernels that decide a step: norm and skip, loss scale, scales of FP8 tensors.
#include "llmc/check/families.h"
#include "llmc/check/state_results.h"
#include "llmc/fp8/scaling.h"
#include "llmc/optim/loss_scale.h"
#include "llmc/optim/prepare_step.h"

namespace llmc::check {
namespace {

constexpr double kTwoRoundings = 0x1p-23;  // relative, in FP32

void compare(Trial& trial, const std::string& name, double actual, double expected, double relative = 0) {
    trial.note(not_within({name, {}}, {actual}, Bounded({expected}, relative, 0)));
}

// ---- norm, skip, loss scale ----------------------------------------------------------------------------------------

constexpr double kClip = 1.0;
constexpr float kLossScale = 1024.0f;
constexpr int kApplied = 7, kSkipped = 2;

struct Step {
    StepState state;
    LossScaleState loss_scale;
};

// One step of a run that has applied some and skipped some.
Step run_step(Trial& trial, const std::vector<double>& squares, const ScheduleConfig& schedule) {
    StepState before = {};
    before.applied = kApplied;
    before.skipped = kSkipped;
    before.consecutive_skips = 1;
    const LossScaleState scale_before{kLossScale, 1.0f, 41, 0};
    LossScaleConfig config;
    config.dynamic = true;
    config.hysteresis = 2;
    const double* partials = trial.input(squares);
    const double* loss = trial.input_of(3.25);
    StepState* state = trial.result_of("step state", before);
    LossScaleState* scale = trial.result_of("loss scale", scale_before);
    trial.run_twice([&] {
        prepare_step(state, partials, squares.size(), loss, &scale->scale, nullptr, schedule, kAdamW, kClip, {},
                     trial.stream());
        update_loss_scale(scale, state, config, trial.stream());
    });
    return {trial.read(state)[0], trial.read(scale)[0]};
}

// Compares the exact fields one by one, and then every bit.
void compare_rest(Trial& trial, const Step& after, StepState expected, const LossScaleState& loss_scale) {
    const StepState& state = after.state;
    expected.spike = expected.bad_tensor = 0;
    expected.loss_limit = expected.norm_limit = INFINITY;
    compare(trial, "applied", state.applied, expected.applied);
    compare(trial, "skipped", state.skipped, expected.skipped);
    compare(trial, "skip", state.skip, expected.skip);
    compare(trial, "consecutive_skips", state.consecutive_skips, expected.consecutive_skips);
    compare(trial, "learning_rate", state.learning_rate, expected.learning_rate);
    compare(trial, "loss_sum", state.loss_sum, expected.loss_sum);
    compare(trial, "loss scale", after.loss_scale.scale, loss_scale.scale);
    compare(trial, "clean_steps", after.loss_scale.clean_steps, loss_scale.clean_steps);
    if (std::memcmp(&state, &expected, sizeof state) != 0) trial.note("step state: another field is wrong");
    if (std::memcmp(&after.loss_scale, &loss_scale, sizeof loss_scale) != 0)
        trial.note("loss scale: another field is wrong");
}

void check_step(Trial& trial) {
    std::vector<double> squares;
    double sum = 0;
    for (const double x : reference::random_normal<float>(1003, kLossScale, 141)) {
        squares.push_back(x * x);
        sum += x * x;
    }
    const double norm = std::sqrt(sum) / kLossScale;
    const ScheduleConfig schedule{ScheduleKind::cosine, 1e-2, 5, 20, 0.1};
    const Step after = run_step(trial, squares, schedule);
    const auto correction = [](double beta) { return 1 / (1 - std::pow(beta, kApplied + 1)); };
    compare(trial, "norm", after.state.norm, norm, kTwoRoundings);
    compare(trial, "grad_scale", after.state.grad_scale, kClip / norm / kLossScale, 2 * kTwoRoundings);
    compare(trial, "bias_correction1", after.state.bias_correction1, correction(kAdamW.beta1), kTwoRoundings);
    compare(trial, "bias_correction2", after.state.bias_correction2, correction(kAdamW.beta2), kTwoRoundings);
    StepState expected = after.state;  // those four are right
    expected.applied = kApplied + 1;
    expected.skipped = kSkipped;
    expected.consecutive_skips = 0;
    expected.skip = 0;
    expected.learning_rate = learning_rate(schedule, kApplied);
    expected.loss_sum = 3.25f;
    compare_rest(trial, after, expected, {kLossScale, 1.0f, 42, 0});
}

void check_skipped_step(Trial& trial) {
    std::vector<double> squares(300, 1.0);
    squares[299] = INFINITY;
    StepState expected = {};
    expected.applied = kApplied;
    expected.skipped = kSkipped + 1;
    expected.consecutive_skips = 2;
    expected.skip = 1;
    expected.norm = INFINITY;
    expected.loss_sum = 3.25f;
    expected.learning_rate = learning_rate({}, kApplied);
    compare_rest(trial, run_step(trial, squares, {}), expected, {kLossScale / 2, 0.5f, 0, 0});
}

// ---- scales of FP8 tensors -----------------------------------------------------------------------------------------

constexpr int kTensors = 2 * kFp8Roles, kBadTensor = 3, kHistory = 4;

void compare_scale(Trial& trial, const std::string& name, const Fp8State& state, const Fp8State& wanted, double scale) {
    Fp8State expected = wanted;
    compare(trial, name + "scale", state.scale, scale, kTwoRoundings);
    compare(trial, name + "scale_inv", state.scale_inv, 1 / scale, 2 * kTwoRoundings);
    compare(trial, name + "amax", state.amax, expected.amax);
    compare(trial, name + "last_amax", state.last_amax, expected.last_amax);
    expected.scale = state.scale;
    expected.scale_inv = state.scale_inv;
    if (std::memcmp(&state, &expected, sizeof state) != 0) trial.note(name + "another field is wrong");
}

// Tensor i has seen amax i + 1, and in an earlier step 4 (i + 1); one tensor held a value that is not finite.
void check_scales(Trial& trial, bool e4m3_gradients) {
    Fp8Config config;
    config.history = kHistory;
    config.grad = e4m3_gradients ? Fp8Grad::e4m3 : Fp8Grad::e5m2;
    std::vector<Fp8State> before(kTensors);
    std::vector<float> windows(kTensors * kHistory);
    for (int i = 0; i < kTensors; i++) {
        Fp8State& state = before[i];
        state.scale = state.scale_inv = 1.0f;
        state.amax_now = static_cast<float>(i + 1);
        state.bad = i == kBadTensor;
        windows[(i + 1) * kHistory - 1] = static_cast<float>(4 * (i + 1));
    }
    const stream_t stream = trial.stream();
    const float* change = trial.input_of(0.5f);
    const std::vector<Axis> axes = {{"tensor ", kTensors}};
    Fp8State* now = trial.result("state", axes, before);
    Fp8State* later = trial.result("state after the step", axes, before);
    float* history = trial.result("history", {{"tensor ", kTensors}, {"", kHistory}}, windows);
    int* flag = trial.result<int>("bad tensor", 1);
    trial.run_twice([&] {
        fp8_set_current(now, 0, kTensors, config, stream);
        fp8_set_current(later, 0, kTensors, config, stream);
        fp8_any_bad(flag, now, kTensors, stream);
        fp8_finish_step(later, history, kTensors, config, change, stream);
    });
    trial.equal(flag, {1 + kBadTensor});
    const auto current = trial.read(now), finished = trial.read(later);
    for (int i = 0; i < kTensors; i++) {
        const bool gradient = role_of(i) == Fp8Role::dout, weight = role_of(i) == Fp8Role::w, bad = i == kBadTensor;
        const double largest = gradient && !e4m3_gradients ? 57344.0 : 448.0;
        const float amax = static_cast<float>(i + 1);
        const double scale = bad ? 1.0 : largest / amax;
        Fp8State expected{};
        expected.amax = amax;
        expected.bad = bad;
        compare_scale(trial, fmt::format("tensor {}: ", i), current[i], expected, scale);
        // Gradients are half as large from the next step on, so their scale doubles.
        const double next = (weight || bad ? scale : scale / 4) * (gradient ? 2 : 1);
        expected.amax = 0;
        expected.bad = 0;
        expected.last_amax = amax;
        compare_scale(trial, fmt::format("tensor {} after the step: ", i), finished[i], expected, next);
        // The windows of weights and of bad tensors stand still; the others move on.
        float* const window = &windows[i * kHistory];
        if (!weight && !bad) {
            window[kHistory - 2] = window[kHistory - 1];
            window[kHistory - 1] = amax;
        }
        for (int k = 0; k < kHistory && gradient; k++) window[k] *= 0.5f;
    }
    trial.equal(history, windows);
}

}  // namespace

void add_step(Items& items, const KernelUse& use) {
    add_kernel(items, "prepare_step, update_loss_scale", check_step);
    add_kernel(items, "prepare_step, update_loss_scale, skipped step", check_skipped_step);
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    add_kernel(items, use.e4m3_gradients ? "FP8 scales, e4m3 gradients" : "FP8 scales, e5m2 gradients",
               [e4m3 = use.e4m3_gradients](Trial& trial) { check_scales(trial, e4m3); });
}

}  // namespace llmc::check
