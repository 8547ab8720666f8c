// Element-wise updates of weights, with the working copy and the amax that they leave.
#include "llmc/kernels/update.h"
#include "llmc/train/config.h"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

using reference::kUnit;

enum class Rule { adamw, lion, sgd, muon };
constexpr Rule kRules[] = {Rule::adamw, Rule::lion, Rule::sgd, Rule::muon};

struct Update {
    Rule rule = Rule::adamw;
    size_t count = 4101, decay_count = 1500;
    bool skip = false, measured = false;
    StateFormat masters = StateFormat::fp32, gradients = StateFormat::fp32;
    StateFormat moments = StateFormat::fp32;  // AdamW
    bool cautious = false, nesterov = false;  // AdamW
    SgdConfig sgd = {0.9, true, 0.1};         // SGD
    MuonUpdate muon = {2.5, 0.1};             // Muon, which decays every weight
    size_t largest = 0;                       // index of the largest weight
    float bad = 0;                            // if not 0: the value of that weight

    bool has_moment() const { return rule != Rule::muon && !(rule == Rule::sgd && sgd.momentum == 0); }
    size_t decayed() const { return rule == Rule::muon ? count : decay_count; }
    StateFormat second_moments() const { return second_moment_format(moments); }
    std::string name() const;
    std::string text() const { return measured ? " with amax" : ""; }
};

constexpr LionConfig kLion{0.9, 0.99, 0.1};

std::string Update::name() const {
    const char* const names[] = {"adamw_update", "lion_update", "sgd_update", "muon_update"};
    std::string text = names[static_cast<int>(rule)];
    for (const auto& [of, format] : {std::pair{"gradients", gradients}, {"masters", masters}, {"moments", moments}})
        if (format != StateFormat::fp32) text += fmt::format(", {} {}", of, word_of(format));
    if (rule == Rule::sgd) text += fmt::format(", momentum {:g}{}", sgd.momentum, sgd.nesterov ? " Nesterov" : "");
    if (nesterov) text += ", Nesterov";
    if (cautious || muon.cautious) text += ", cautious";
    if (skip) text += ", skipped step";
    if (bad != 0) text += fmt::format(", with {:g}", bad);
    return text + fmt::format(", {} of {} decay,", decayed(), count);
}

// Tensors before an update. Where the direction and the weight have opposite signs, a cautious update does not decay.
template <class Real>
struct Before {
    std::vector<float> master, m, v, grad;
    std::vector<Real> direction;

    Before(Trial& t, const Update& u)
        : master(t.random<float>(u.count, 0.5f)),
          m(t.random<float>(u.count, 0.01f)),
          grad(t.random<float>(u.count, 0.2f)),
          direction(t.random<Real>(u.count, 0.3f)) {
        constexpr float kWeights[] = {2, 2, -2, -2, 0, 2, -2, 1e-30f, -1e-30f, 3},
                        kDirections[] = {1, -1, 1, -1, 1, 0, 0, -0x1p-100f, 0x1p-100f, 0.5f};
        for (size_t i = 0; i + 10 <= u.count && i < 10; i++) {
            master[i] = kWeights[i];
            direction[i] = to<Real>(kDirections[i]);
            if (i < 3) m[i] = grad[i] = 0;  // Lion's sign is 0
        }
        if (u.largest < u.count) master[u.largest] = u.bad != 0 ? u.bad : -5.0f - static_cast<float>(u.count);
        for (const float g : grad) v.push_back(1e-4f + g * g * 0.01f);
        narrow(u.masters, master);
        narrow(u.moments, m);
        narrow(u.second_moments(), v);
        narrow(u.gradients, grad);
    }
};

// After an update, with bounds of FP32 arithmetic: relative to |value| + a floor.
struct After {
    Bounded master, m, v;
};
constexpr double kUpdateError = 3e-7, kMasterFloor = 1e-3, kFirstMomentFloor = 1e-2, kSecondMomentFloor = 1e-6,
                 kSumMomentFloor = 1;  // SGD's moment: its terms may cancel

// AdamW as PyTorch has it, with Nesterov momentum as optax has it; Lion, arXiv 2302.06675; SGD as torch.optim.SGD with
// decoupled decay; Muon's step along a direction.
template <class Real>
After expected_update(const Update& u, const Before<Real>& b) {
    const StepState state = example_state();
    const double rate = state.learning_rate, steps = state.applied;
    After after;
    for (size_t i = 0; i < u.count; i++) {
        const double g = double{b.grad[i]} * state.grad_scale, m = b.m[i], v = b.v[i];
        double p = b.master[i], new_m = 0, new_v = 0, step = 0, floor = kMasterFloor;
        double decay = i < u.decayed() ? 0.1 : 0;
        if (u.rule == Rule::adamw) {
            new_m = kAdamW.beta1 * m + (1 - kAdamW.beta1) * g;
            new_v = kAdamW.beta2 * v + (1 - kAdamW.beta2) * g * g;
            double m_hat = new_m / (1 - std::pow(kAdamW.beta1, steps));
            if (u.nesterov)
                m_hat = kAdamW.beta1 * new_m / (1 - std::pow(kAdamW.beta1, steps + 1)) +
                        (1 - kAdamW.beta1) * g / (1 - std::pow(kAdamW.beta1, steps));
            step = m_hat / (std::sqrt(new_v / (1 - std::pow(kAdamW.beta2, steps))) + kAdamW.eps);
            if (u.cautious && step * p < 0) decay = 0;
        } else if (u.rule == Rule::lion) {
            const double c = kLion.beta1 * m + (1 - kLion.beta1) * g;
            step = (c > 0) - (c < 0);
            new_m = kLion.beta2 * m + (1 - kLion.beta2) * g;
        } else if (u.rule == Rule::sgd) {
            new_m = u.sgd.momentum * m + g;
            step = u.sgd.nesterov ? g + u.sgd.momentum * new_m : new_m;
        } else {
            const double d = to_float(b.direction[i]);
            step = u.muon.scale * d;
            const bool away = (p > 0 && d < 0) || (p < 0 && d > 0);
            decay = u.muon.cautious && away ? 0 : u.muon.weight_decay;
            // Roundings of the rate, of the sum of both terms, and of the result.
            const double bound = kUnit * 6 * rate * (std::fabs(p) + std::fabs(step));
            floor = bound / kUpdateError;
        }
        p = p * (1 - rate * decay) - rate * step;
        // Weight and step may cancel, so the step counts with its own size.
        if (u.rule != Rule::muon) floor += rate * std::fabs(step);
        after.master.push_back(p, (u.rule == Rule::muon ? kUnit : kUpdateError) * std::fabs(p) + kUpdateError * floor);
        const double m_floor = u.rule == Rule::sgd ? kSumMomentFloor : kFirstMomentFloor;
        after.m.push_back(new_m, kUpdateError * (std::fabs(new_m) + m_floor));
        after.v.push_back(new_v, kUpdateError * (std::fabs(new_v) + kSecondMomentFloor));
    }
    return after;
}

// Arrays of the state, and nullptr for moments that the rule does not have.
struct State {
    StateArray master, m, v;

    template <class Real>
    State(Trial& t, const Update& u, const Before<Real>& before, const std::string& suffix = "")
        : master(state_result(t, ("master" + suffix).c_str(), u.masters, before.master)) {
        if (u.has_moment()) m = state_result(t, ("m" + suffix).c_str(), u.moments, before.m);
        if (u.rule == Rule::adamw) v = state_result(t, ("v" + suffix).c_str(), u.second_moments(), before.v);
    }
    void equal(Trial& t, const std::vector<float>& masters, const std::vector<float>& first,
               const std::vector<float>& second) const {
        check::equal(t, master, masters);
        if (m.values) check::equal(t, m, first);
        if (v.values) check::equal(t, v, second);
    }
};

// Updates all elements in one call, and in a second copy of the state slice by slice, which must give the same bits.
template <class Real>
void update(Trial& t, const Update& u) {
    const Before<Real> before(t, u);
    const StateArray grad = state_input(t, u.gradients, before.grad);
    const auto direction = t.input(before.direction);
    const auto step = t.input_of(example_state(u.skip));
    Fp8State fp8_before{};
    fp8_before.scale = 3.0f;
    fp8_before.amax = 0.5f;
    fp8_before.amax_now = 0.25f;
    fp8_before.elements = 7;
    const State whole(t, u, before), sliced(t, u, before, " in slices");
    Real* const working = t.result<Real>("working", u.count);
    Fp8State* const fp8 = u.measured ? t.result_of("state", fp8_before) : nullptr;
    AdamWConfig adamw = kAdamW;
    adamw.cautious_decay = u.cautious;
    adamw.nesterov = u.nesterov;
    const auto run = [&](const State& to, size_t begin, size_t count, Real* copy, Fp8State* amax) {
        const size_t decayed = std::min(count, u.decay_count - std::min(begin, u.decay_count));
        const StateArray master = to.master.from(begin), m = to.m.from(begin), g = grad.from(begin);
        const StateRounding rounding{kRounding.key, kRounding.first + begin};
        if (u.rule == Rule::adamw)
            adamw_update<Real>({master, m, to.v.from(begin), copy, g, rounding}, amax, count, decayed, adamw, step,
                               t.stream());
        else if (u.rule == Rule::muon)
            muon_update<Real>(master, copy, amax, direction + begin, count, u.muon, step, t.stream(), rounding);
        else if (u.rule == Rule::lion)
            lion_update<Real>({master, m, {}, copy, g, rounding}, amax, count, decayed, kLion, step, t.stream());
        else
            sgd_update<Real>({master, m, {}, copy, g, rounding}, amax, count, decayed, u.sgd, step, t.stream());
    };
    // A slice begins on 16 bytes of an array in BF16, and with a group in fp8.
    const size_t multiple = u.moments == StateFormat::fp8 ? kStateGroup : 8, cut = u.count / 4 / multiple * multiple;
    t.run_twice([&] {
        run(whole, 0, u.count, working, fp8);
        if (cut > 0) run(sliced, 0, cut, nullptr, nullptr);
        run(sliced, cut, u.count - cut, nullptr, nullptr);
    });
    const std::vector<float> masters = values_in(t, whole.master);
    const auto moments = [&](const StateArray& m) { return m.values ? values_in(t, m) : std::vector<float>(); };
    sliced.equal(t, masters, moments(whole.m), moments(whole.v));
    if (u.skip) {
        whole.equal(t, before.master, before.m, before.v);
        t.untouched(working);
        if (fp8) t.equal(fp8, fp8_before);
        return;
    }
    const After expected = expected_update(u, before);
    within(t, whole.master, expected.master, StateKind::master);
    if (whole.m.values) within(t, whole.m, expected.m, StateKind::first_moment);
    if (whole.v.values) within(t, whole.v, expected.v, StateKind::second_moment);
    compare_copies(t, masters, working, fp8, fp8_before);
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_update(Items& items, const Update& u) {
    add_kernel<Real>(items, u.name(), update<Real>, u);
}

template <class Real>
void add_tests(Items& items) {
    const auto add = [&](const Update& u) { add_update<Real>(items, u); };
    for (const Rule rule : kRules) {
        for (const size_t count : {1, 7, 8, 33, 1024, 2048, 4101, 8200, 20001})
            for (const size_t decayed : {size_t{0}, count / 2, count})
                add({.rule = rule,
                     .count = count,
                     .decay_count = decayed,
                     .measured = true,
                     .largest = count - 1 - decayed / 2});
        add({.rule = rule, .skip = true, .measured = true, .largest = 2077});
        add({.rule = rule, .largest = 2077});
        for (const float bad : {NAN, INFINITY, -INFINITY})
            if (std::isnan(bad) || rule == Rule::adamw)
                add({.rule = rule, .measured = true, .largest = 2077, .bad = bad});
        for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16})
            for (const StateFormat moments : {StateFormat::fp32, StateFormat::bf16, StateFormat::fp8}) {
                if (rule != Rule::adamw && moments != StateFormat::fp32) continue;
                Update u{.rule = rule, .measured = true, .masters = masters, .moments = moments};
                u.gradients = masters == moments ? masters : StateFormat::bf16;
                for (const size_t count : {1, 7, 8, 2048, 20001}) {
                    u.count = count;
                    u.decay_count = count / 2;
                    add(u);
                }
                u.skip = true;
                add(u);
            }
    }
    add({.rule = Rule::sgd, .sgd = {0.9, false, 0.1}});
    add({.rule = Rule::sgd, .sgd = {0, false, 0.1}});
    add({.rule = Rule::muon, .measured = true, .muon = {2.5, 0.1, true}});
    for (const auto& [nesterov, cautious, measured] :
         {std::tuple{false, true, false}, {true, false, false}, {true, true, true}})
        for (const bool narrow : {false, true})
            for (const size_t count : {8, 4101})
                add({.count = count,
                     .decay_count = count / 2,
                     .measured = measured,
                     .masters = narrow ? StateFormat::bf16 : StateFormat::fp32,
                     .moments = narrow ? StateFormat::fp8 : StateFormat::fp32,
                     .cautious = cautious,
                     .nesterov = nesterov});
}

}  // namespace

void add_optimizer(Items& items, const KernelUse& use) {
    Update u{.masters = use.optimizer.masters, .gradients = use.gradients};
    if (use.optimizer.kind == OptimizerKind::lion) {
        u.rule = Rule::lion;
    } else if (use.optimizer.kind == OptimizerKind::sgd) {
        u.rule = Rule::sgd;
        u.sgd = use.optimizer.sgd();
        u.sgd.weight_decay = Update().sgd.weight_decay;
    } else {
        u.moments = use.optimizer.adam_moments;
        u.cautious = use.adamw.cautious_decay;
        u.nesterov = use.adamw.nesterov;
    }
    const bool casts = use.fp8 && use.scaling == Fp8Scaling::tensor;  // but not every tensor is cast
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) {
        for (const bool measured : {false, true})
            for (const bool skip : {false, true}) {
                u.measured = measured;
                u.skip = skip;
                if (casts || !measured) add_update<Real>(items, u);
            }
        if (is_muon(use.optimizer.kind))
            add_update<Real>(items, {.rule = Rule::muon,
                                     .measured = casts,
                                     .masters = use.optimizer.masters,
                                     .muon = {2.5, 0.1, use.optimizer.cautious_decay}});
    });
}

void add_optimizer_tests(Items& items) {
    each_type<float, bf16>([&]<class Real>(Real) { add_tests<Real>(items); });
}

}  // namespace llmc::check
