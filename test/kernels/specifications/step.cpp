// The small kernels of a step: norm and skip, loss scale, scales of FP8 tensors; clipping of gradients by value and by
// a tensor's norm, and of the weights of queries and keys by their logits.
#include "llmc/fp8/scaling.h"
#include "llmc/kernels/clip.h"
#include "llmc/optim/prepare_step.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

using reference::kUnit;

constexpr double kTwoRoundings = 0x1p-23;  // relative, in FP32

void compare(Trial& trial, const std::string& name, double actual, double expected, double relative = 0) {
    trial.note(not_within({name, {}}, {actual}, Bounded({expected}, relative, 0)));
}

// ---- norm, skip, loss scale ----------------------------------------------------------------------------------------

constexpr double kNormClip = 1.0;
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
        prepare_step(state, partials, squares.size(), loss, &scale->scale, nullptr, schedule, kAdamW, kNormClip, {},
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
    compare(trial, "grad_scale", after.state.grad_scale, kNormClip / norm / kLossScale, 2 * kTwoRoundings);
    compare(trial, "bias_correction1", after.state.bias_correction1, correction(kAdamW.beta1), kTwoRoundings);
    compare(trial, "bias_correction2", after.state.bias_correction2, correction(kAdamW.beta2), kTwoRoundings);
    StepState expected = after.state;  // those four are right
    expected.applied = kApplied + 1;
    expected.skipped = kSkipped;
    expected.consecutive_skips = 0;
    expected.skip = 0;
    expected.learning_rate = learning_rate(schedule, kApplied + kSkipped);
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
    expected.learning_rate = learning_rate({}, kApplied + kSkipped);
    compare_rest(trial, run_step(trial, squares, {}), expected, {kLossScale / 2, 0.5f, 0, 0});
}

// ---- scales of FP8 tensors -----------------------------------------------------------------------------------------

constexpr int kTensors = 2 * kFp8Roles, kBadTensor = 3, kHistory = 4;
constexpr int64_t kUpdates = 5;
constexpr double kWeightFactor = 1 - 0.09016994374947424 / 2;  // 5 * 0.618... is 3.0902

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
    const int64_t* updates = trial.input_of(kUpdates);
    const std::vector<Axis> axes = {{"tensor ", kTensors}};
    Fp8State* now = trial.result("state", axes, before);
    Fp8State* later = trial.result("state after the step", axes, before);
    float* history = trial.result("history", {{"tensor ", kTensors}, {"", kHistory}}, windows);
    int* flag = trial.result<int>("bad tensor", 1);
    trial.run_twice([&] {
        fp8_set_current(now, 0, kTensors, config, updates, stream);
        fp8_set_current(later, 0, kTensors, config, updates, stream);
        fp8_any_bad(flag, now, kTensors, stream);
        fp8_finish_step(later, history, kTensors, config, change, stream);
    });
    trial.equal(flag, {1 + kBadTensor});
    const auto current = trial.read(now), finished = trial.read(later);
    for (int i = 0; i < kTensors; i++) {
        const bool gradient = role_of(i) == Fp8Role::dout, weight = role_of(i) == Fp8Role::w, bad = i == kBadTensor;
        const double largest = gradient && !e4m3_gradients ? 57344.0 : 448.0;
        const float amax = static_cast<float>(i + 1);
        const double scale = bad ? 1.0 : largest / amax * (weight ? kWeightFactor : 1.0);
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

// ---- clipping of gradients ------------------------------------------------------------------------------------------

constexpr double kClip = 0.2;

struct Gradient {
    size_t count = 4101;
    float loss_scale = 1024.0f;
    std::string text() const { return ""; }
};

void clipped_values(Trial& t, const Gradient& s) {
    const auto [count, loss_scale] = s;
    std::vector<float> before = t.random<float>(count, 0.2f * loss_scale);
    before[count / 2] = -0.0f;
    const auto scale = t.input_of(loss_scale);
    float* grad = t.result("gradient", count, before);
    t.run_twice([&] { clip_values(grad, count, kClip, scale, t.stream()); });
    const float limit = static_cast<float>(kClip) * loss_scale;
    for (float& g : before) g = std::clamp(g, -limit, limit);
    t.equal(grad, before);
}

// A gradient whose norm is `size` times the bound; the parts of a sum of squares add up to it.
void clipped_tensor(Trial& t, const Gradient& s, double size) {
    const auto [count, loss_scale] = s;
    const size_t parts = 700;
    const auto before = t.random<float>(count, 1.0f);
    const double norm = size * kClip * loss_scale;
    const auto scale = t.input_of(loss_scale);
    const auto partials = t.input(std::vector<double>(parts, norm * norm / parts));
    double* square = t.result<double>("square", 1);
    float* factor = t.result<float>("factor", 1);
    float* grad = t.result("gradient", count, before);
    t.run_twice([&] {
        add_partials(square, partials, parts, t.stream());
        clip_factors(factor, square, 1, kClip, scale, t.stream());
        scale_gradient(grad, count, factor, t.stream());
    });
    t.within(grad, [&](size_t i) {  // the norm and the factor are rounded to FP32, the gradient too
        const double g = before[i];
        return std::pair{g / std::max(size, 1.0), size < 1 ? 0 : 4 * kUnit * std::fabs(g)};
    });
}

void clipped_tensors(Trial& t, const Gradient& s) {
    for (const double size : {0.4, 3.0}) t.nested([&](Trial& trial) { clipped_tensor(trial, s, size); });
}

// ---- QK-clip -------------------------------------------------------------------------------------------------------

struct QkClip {
    AttentionHeads heads = {3, 3, 32};
    size_t columns = 36, first = 0;  // columns of the weight (1 for the bias), and the slice's first element
    size_t left_out = 0;             // elements of the weight after the slice
    bool skip = false, measured = false;
    StateFormat masters = StateFormat::fp32;

    std::string text() const {
        return fmt::format("qk_clip NH={} NKV={} HD={} columns={} from {}{}{}{}", heads.NH, heads.NKV, heads.HD,
                           columns, first, skip ? ", skipped step" : "", measured ? ", measured" : "",
                           masters == StateFormat::bf16 ? ", masters bf16" : "");
    }
};

// The largest logit of head 0 is within the limit; the other heads exceed it.
template <class Real>
void clipped_heads(Trial& t, const QkClip& s) {
    const int NH = s.heads.NH, NKV = s.heads.NKV;
    const size_t head_elements = s.heads.HD * s.columns;
    const size_t count = s.heads.rows() * head_elements - s.first - s.left_out;
    const float limit = 30;
    std::vector<float> logits, before = t.random<float>(count, 0.5f);
    for (int h = 0; h < NH; h++) logits.push_back(limit * static_cast<float>(h == 0 ? 1 : 1.3 + h));
    narrow(s.masters, before);
    const auto maxima = t.input(logits);
    const auto state = t.input_of(example_state(s.skip));
    const StateArray master = state_result(t, "master", s.masters, before);
    Real* working = s.measured ? nullptr : t.result("working", count, reference::nearest<Real>(before));
    Fp8State* fp8 = s.measured ? t.result_of("state", Fp8State{}) : nullptr;
    t.run_twice([&] {
        qk_clip<Real>(master, working, fp8, maxima, s.heads, s.columns, s.first, count, limit, state, t.stream(),
                      kRounding);
    });
    if (s.skip) {
        equal(t, master, before);
        if (working) t.equal(working, reference::nearest<Real>(before));
        if (fp8) t.equal(fp8, Fp8State{});
        return;
    }
    Bounded expected;
    for (size_t i = 0; i < count; i++) {
        const int head = static_cast<int>((s.first + i) / head_elements);
        const bool shared = NKV < NH, is_query = head < NH;
        const bool clips = is_query || (!shared && head < NH + NKV);
        const double largest = clips ? logits[is_query ? head : head - NH] : 0;
        const double gamma = largest > limit ? limit / largest : 1;
        const double value = before[i] * (shared ? gamma : std::sqrt(gamma));
        expected.push_back(value, gamma == 1 ? 0 : 3 * kUnit * std::fabs(value));
    }
    within(t, master, expected, StateKind::master);
    compare_copies(t, values_in(t, master), working, fp8, Fp8State{});
}

template <class Real>
void add_qk_clip(Items& items, const QkClip& s) {
    add_kernel(items, fmt::format("{} {}", s.text(), type_name<Real>()), [s](Trial& t) { clipped_heads<Real>(t, s); });
}

}  // namespace

void add_step(Items& items, const KernelUse& use) {
    add_kernel(items, "prepare_step, update_loss_scale", check_step);
    add_kernel(items, "prepare_step, update_loss_scale, skipped step", check_skipped_step);
    if (!use.fp8 || use.scaling != Fp8Scaling::tensor) return;
    add_kernel(items, use.e4m3_gradients ? "FP8 scales, e4m3 gradients" : "FP8 scales, e5m2 gradients",
               [e4m3 = use.e4m3_gradients](Trial& trial) { check_scales(trial, e4m3); });
}

void add_clipping(Items& items, const KernelUse& use) {
    if (use.qk_clip)
        for (const size_t columns : {1, 36}) {
            QkClip s{.heads = use.attention_heads(), .columns = columns, .masters = use.optimizer.masters};
            s.measured = use.fp8 && columns > 1;
            with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_qk_clip<Real>(items, s); });
        }
    if (use.optimizer.clip_kind == ClipKind::value) add_kernel(items, "clip_values", clipped_values, {});
    if (use.optimizer.clip_kind == ClipKind::tensor) add_kernel(items, "clip_tensors", clipped_tensors, {});
}

void add_clipping_tests(Items& items) {
    for (const size_t count : {1, 7, 2048, 4101})
        for (const float loss_scale : {1.0f, 1024.0f}) {
            add_kernel(items, "clip_values", clipped_values, {count, loss_scale});
            add_kernel(items, "clip_tensors", clipped_tensors, {count, loss_scale});
        }
    // Weights and biases, slices of them, grouped queries, and a head that threads share with the next.
    for (QkClip s : {QkClip{},
                     {{3, 3, 80}, 1},
                     {{6, 2, 32}, 36},
                     {{2, 1, 96}, 1, 40, 24},
                     {{3, 3, 32}, 36, 1000, 2000},
                     {{3, 3, 32}, 36, 7000, 3}})
        for (const bool measured : {false, true})
            for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16}) {
                s.measured = measured;
                s.masters = masters;
                s.skip = false;
                if (masters == StateFormat::fp32) add_qk_clip<float>(items, s);
                add_qk_clip<bf16>(items, s);
                s.skip = true;
                add_qk_clip<bf16>(items, s);
            }
}

}  // namespace llmc::check
