// Optimizers' updates with the working copy and the amax that they leave, Muon's kernels, and clipping. Muon's matrix
// products are among the run's.
#include "llmc/check/families.h"
#include "llmc/kernels/clip.h"
#include "llmc/kernels/muon.h"
#include "llmc/kernels/qk_clip.h"
#include "llmc/kernels/update.h"
#include "llmc/optim/config.h"
#include "llmc/train/words.h"

namespace llmc::check {
namespace {

using reference::kUnit;

// ---- element-wise updates ------------------------------------------------------------------------------------------

enum class Rule { adamw, lion, sgd, muon };

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
    std::string text() const;
};

constexpr AdamWConfig kAdamW{0.9, 0.95, 1e-8, 0.1};
constexpr LionConfig kLion{0.9, 0.99, 0.1};
constexpr StateRounding kRounding{12345, 4096};

std::string Update::text() const {
    const char* const names[] = {"adamw_update", "lion_update", "sgd_update", "muon_update"};
    std::string text = names[static_cast<int>(rule)];
    if (gradients != StateFormat::fp32) text += std::string(", gradients ") + word_of(gradients);
    if (masters != StateFormat::fp32) text += std::string(", masters ") + word_of(masters);
    if (moments != StateFormat::fp32) text += std::string(", moments ") + word_of(moments);
    if (rule == Rule::sgd && (sgd.momentum == 0 || !sgd.nesterov))
        text += fmt::format(", momentum {:g}{}", sgd.momentum, sgd.nesterov ? " Nesterov" : "");
    if (nesterov) text += ", Nesterov";
    if (cautious || muon.cautious) text += ", cautious";
    if (skip) text += ", skipped step";
    if (bad != 0) text += fmt::format(", with {:g}", bad);
    return text + fmt::format(", {} of {} decay,", decayed(), count);
}

StepState example_state(bool skip = false) {
    StepState state = {};
    state.applied = 3;
    state.learning_rate = 2e-3;
    state.grad_scale = 0.25f;
    state.bias_correction1 = static_cast<float>(1 / (1 - std::pow(kAdamW.beta1, 3)));
    state.bias_correction2 = static_cast<float>(1 / (1 - std::pow(kAdamW.beta2, 3)));
    state.skip = skip;
    return state;
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
            master[i] = kWeights[i], direction[i] = to<Real>(kDirections[i]);
            if (i < 3) m[i] = grad[i] = 0;  // Lion's sign is 0
        }
        if (u.largest < u.count) master[u.largest] = u.bad != 0 ? u.bad : -5.0f - static_cast<float>(u.count);
        for (const float g : grad) v.push_back(1e-4f + g * g * 0.01f);
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
    const double rate = state.learning_rate, steps = static_cast<double>(state.applied);
    After after;
    for (size_t i = 0; i < u.count; i++) {
        const double g = static_cast<double>(b.grad[i]) * static_cast<double>(state.grad_scale);
        const double m = static_cast<double>(b.m[i]), v = static_cast<double>(b.v[i]);
        double p = static_cast<double>(b.master[i]), new_m = 0, new_v = 0, step = 0, floor = kMasterFloor;
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
            const double d = static_cast<double>(to_float(b.direction[i]));
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

// The values after rounding to their format. `bits_of` gives the random bits of two neighbours; those of the first
// begin at bit `shift`.
Bounded stored(StateFormat format, const Bounded& exact, decltype(&moment_bits) bits_of, int shift) {
    if (format == StateFormat::fp32) return exact;
    Bounded range;
    for (size_t i = 0; i < exact.values.size(); i++) {
        const uint64_t bits = bits_of(kRounding.key, example_state().applied, kRounding.first + i / 2 * 2);
        const uint32_t random = bits >> (static_cast<int>(i % 2) * 32 + shift) & 0xffff;
        const double low = reference::stochastic_bf16(exact.values[i] - exact.bounds[i], random);
        const double high = reference::stochastic_bf16(exact.values[i] + exact.bounds[i], random);
        range.push_back((low + high) / 2, (high - low) / 2);
    }
    return range;
}

// Groups of fp8, from exact values: the codes' values, and each element's scale.
struct Groups {
    std::vector<double> scales;
    explicit Groups(const std::vector<double>& values) {
        for (size_t i = 0; i < values.size(); i++) {
            if (i % kStateGroup == 0) {
                double amax = 0;
                for (size_t j = i; j < std::min(values.size(), i + kStateGroup); j++)
                    amax = std::max(amax, std::fabs(values[j]));
                int exponent = amax == 0 ? 0 : std::max(std::ilogb(amax) - 8, -117);
                if (std::ldexp(448.0, exponent) < amax) exponent++;
                scales.push_back(std::ldexp(1.0, exponent));
            } else {
                scales.push_back(scales.back());
            }
        }
    }
};
// One of x's neighbours among the numbers with three mantissa bits from 2^-9 on, by 24 random bits where those are not
// normal and by 20 elsewhere, as to_e4m3_stochastic() documents.
double stochastic_e4m3(double x, uint32_t random) {
    if (x == 0) return 0;
    const bool normal = std::fabs(x) >= 0x1p-6;
    const double step = normal ? std::ldexp(1.0, std::ilogb(x) - 3) : 0x1p-9, steps = std::fabs(x) / step;
    const double whole = std::floor(steps), lost = steps - whole;
    const bool up = normal ? lost + (random & 0xfffff) / 0x1p20 >= 1 : (random >> 8) / 0x1p24 < lost;
    return std::copysign(std::min((whole + up) * step, 448.0), x);
}
// First moments known up to bounds, in fp8. The values decide the scale, so they must not be next to a limit.
Bounded stored_fp8(const Bounded& exact) {
    const Groups groups(exact.values);
    Bounded range;
    for (size_t i = 0; i < exact.values.size(); i++) {
        const uint64_t bits = fp8_bits(kRounding.key, example_state().applied, kRounding.first + i / 2 * 2);
        const uint32_t random = static_cast<uint32_t>(bits >> (i % 2 * 32));
        const double scale = groups.scales[i];
        const double low = stochastic_e4m3((exact.values[i] - exact.bounds[i]) / scale, random) * scale;
        const double high = stochastic_e4m3((exact.values[i] + exact.bounds[i]) / scale, random) * scale;
        range.push_back((low + high) / 2, (high - low) / 2);
    }
    return range;
}

// Rounds values to nearest ones of the format.
void narrow(StateFormat format, std::vector<float>& values) {
    const Groups groups(reference::to_doubles(values));
    for (size_t i = 0; i < values.size() && format != StateFormat::fp32; i++) {
        const float scale = static_cast<float>(groups.scales[i]);
        values[i] =
            format == StateFormat::fp8 ? to_float(to_e4m3(values[i] / scale)) * scale : to_float(to_bf16(values[i]));
    }
}
// A result that holds values before the update.
StateArray state_result(Trial& t, const char* name, StateFormat format, const std::vector<float>& before) {
    if (format == StateFormat::fp32) return t.result(name, line(before.size()), before);
    if (format == StateFormat::fp8) {
        const Groups groups(reference::to_doubles(before));
        std::vector<e4m3> codes;
        std::vector<float> scales;
        for (size_t i = 0; i < before.size(); i++) {
            const float scale = static_cast<float>(groups.scales[i]);
            codes.push_back(to_e4m3(before[i] / scale));
            if (i % kStateGroup == 0) scales.push_back(scale);
        }
        e4m3* const values = t.result(name, line(before.size()), codes);
        return {values, format, t.result("scales", line(scales.size()), scales)};
    }
    std::vector<bf16> narrow;
    for (const float value : before) narrow.push_back(to_bf16(value));
    return t.result(name, line(before.size()), narrow);
}
StateArray state_input(Trial& t, StateFormat format, const std::vector<float>& values) {
    if (format == StateFormat::fp32) return t.input(values);
    std::vector<bf16> narrow;
    for (const float value : values) narrow.push_back(to_bf16(value));
    return t.input(narrow);
}
std::vector<float> values_in(const Trial& t, const StateArray& array) {
    std::vector<float> values;
    if (array.format == StateFormat::fp8) {
        const std::vector<float> scales = t.read(array.scales);
        for (const e4m3 code : t.read(array.as<e4m3>()))
            values.push_back(to_float(code) * scales[values.size() / kStateGroup]);
        return values;
    }
    array.typed([&](const auto* pointer) {
        for (const auto value : t.read(pointer)) values.push_back(to_float(value));
    });
    return values;
}
void equal(Trial& t, const StateArray& array, const std::vector<float>& expected) {
    if (array.format == StateFormat::fp32) return t.equal(array.as<float>(), expected);
    if (array.format == StateFormat::fp8)
        return t.note(not_equal({"m in fp8", line(expected.size())}, values_in(t, array), expected));
    std::vector<bf16> narrow;
    for (const float value : expected) narrow.push_back(to_bf16(value));
    t.equal(array.as<bf16>(), narrow);
}
void within(Trial& t, const StateArray& array, const Bounded& expected) {
    if (array.format == StateFormat::fp8)
        return t.note(not_within({"m in fp8", line(expected.values.size())}, reference::to_doubles(values_in(t, array)),
                                 expected));
    array.typed([&](auto* pointer) { t.within(pointer, expected); });
}

// Values in fp8, and their scales. Most values are the same with a scale of twice the size, and only have other codes.
void within_fp8(Trial& t, const StateArray& array, const Bounded& exact) {
    within(t, array, stored_fp8(exact));
    const Groups groups(exact.values);
    std::vector<float> scales;
    for (size_t i = 0; i < groups.scales.size(); i += kStateGroup)
        scales.push_back(static_cast<float>(groups.scales[i]));
    t.equal(array.scales, scales);
}

// The working copy must be the new masters, rounded. The state must receive their amax (infinite if one of them is not
// finite) and nothing else.
template <class Real>
void compare_copies(Trial& t, const Update& u, const std::vector<float>& masters, const Real* working,
                    const Fp8State* fp8, const Fp8State& before) {
    Fp8State state = before;
    std::vector<Real> rounded;
    for (const float weight : masters) {
        if constexpr (sizeof(Real) == 2)
            rounded.push_back(reference::nearest_bf16(static_cast<double>(weight)));
        else
            rounded.push_back(weight);
        if (!u.skip) state.amax_now = std::max(state.amax_now, std::isfinite(weight) ? std::fabs(weight) : INFINITY);
    }
    u.skip ? t.untouched(working) : t.equal(working, rounded);
    if (fp8) t.note(wrong_state(t.read(fp8)[0], {state, state}));
}

template <class Real>
void update(Trial& t, const Update& u) {
    Before<Real> before(t, u);
    narrow(u.masters, before.master), narrow(u.moments, before.m), narrow(second_moment_format(u.moments), before.v);
    narrow(u.gradients, before.grad);
    const StateArray grad = state_input(t, u.gradients, before.grad);
    const auto direction = t.input(before.direction);
    const auto state = t.input(std::vector<StepState>{example_state(u.skip)});
    Fp8State fp8_before{};
    fp8_before.scale = 3.0f, fp8_before.amax = 0.5f, fp8_before.amax_now = 0.25f, fp8_before.elements = 7;
    struct Tensors {
        StateArray master, m, v;
        Real* working = nullptr;
    };
    const auto make = [&](const char* master, const char* m, const char* v) {
        Tensors to{state_result(t, master, u.masters, before.master), {}, {}};
        if (u.has_moment()) to.m = state_result(t, m, u.moments, before.m);
        if (u.rule == Rule::adamw) to.v = state_result(t, v, second_moment_format(u.moments), before.v);
        return to;
    };
    Tensors whole = make("master", "m", "v"), sliced = make("master in slices", "m in slices", "v in slices");
    whole.working = t.result<Real>("working", line(u.count));
    Fp8State* fp8 = u.measured ? t.result("state", line(1), std::vector<Fp8State>{fp8_before}) : nullptr;
    AdamWConfig adamw = kAdamW;
    adamw.cautious_decay = u.cautious;
    adamw.nesterov = u.nesterov;
    const auto run = [&](const Tensors& to, size_t begin, size_t count, Fp8State* amax) {
        const size_t decayed = std::min(count, u.decay_count - std::min(begin, u.decay_count));
        Real* const working = to.working ? to.working + begin : nullptr;
        const StateArray master = to.master.from(begin), m = to.m.from(begin);
        const StateRounding rounding{kRounding.key, kRounding.first + begin};
        if (u.rule == Rule::adamw)
            adamw_update<Real>(master, m, to.v.from(begin), working, amax, grad.from(begin), count, decayed, adamw,
                               state, t.stream(), rounding);
        else if (u.rule == Rule::muon)
            muon_update<Real>(master, working, amax, direction + begin, count, u.muon, state, t.stream(), rounding);
        else if (u.rule == Rule::lion)
            lion_update<Real>(master, m.as<float>(), working, amax, grad.from(begin), count, decayed, kLion, state,
                              t.stream(), rounding);
        else
            sgd_update<Real>(master, m.as<float>(), working, amax, grad.from(begin), count, decayed, u.sgd, state,
                             t.stream(), rounding);
    };
    // A slice begins on 16 bytes of an array in BF16, and with a group in fp8.
    const size_t multiple = u.moments == StateFormat::fp8 ? kStateGroup : 8, cut = u.count / 4 / multiple * multiple;
    t.run_twice([&] {
        run(whole, 0, u.count, fp8);
        if (cut > 0) run(sliced, 0, cut, nullptr);
        run(sliced, cut, u.count - cut, nullptr);
    });
    const std::vector<float> masters = values_in(t, whole.master);
    equal(t, sliced.master, masters);
    if (whole.m.values) equal(t, sliced.m, values_in(t, whole.m));
    if (whole.v.values) equal(t, sliced.v, values_in(t, whole.v));
    if (u.skip) {
        equal(t, whole.master, before.master);
        if (whole.m.values) equal(t, whole.m, before.m);
        if (whole.v.values) equal(t, whole.v, before.v);
    } else {
        const After expected = expected_update(u, before);
        within(t, whole.master, stored(u.masters, expected.master, master_bits, 0));
        if (whole.m.scales)
            within_fp8(t, whole.m, expected.m);
        else if (whole.m.values)
            within(t, whole.m, stored(u.moments, expected.m, moment_bits, 0));
        if (whole.v.values) within(t, whole.v, stored(second_moment_format(u.moments), expected.v, moment_bits, 16));
    }
    compare_copies(t, u, masters, whole.working, fp8, fp8_before);
}

// ---- QK-clip --------------------------------------------------------------------------------------------------------

struct Clipped {
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
void clipped(Trial& t, const Clipped& s) {
    const size_t rows = static_cast<size_t>(s.heads.rows() * s.heads.HD);
    const size_t count = rows * s.columns - s.first - s.left_out;
    const float limit = 30;
    std::vector<float> logits, before = t.random<float>(count, 0.5f);
    for (int h = 0; h < s.heads.NH; h++) logits.push_back(limit * static_cast<float>(h == 0 ? 1 : 1.3 + h));
    narrow(s.masters, before);
    std::vector<Real> copies;
    for (const float weight : before) copies.push_back(to<Real>(weight));
    const auto maxima = t.input(logits);
    const auto state = t.input(std::vector<StepState>{example_state(s.skip)});
    const Fp8State fp8_before{};
    const StateArray master = state_result(t, "master", s.masters, before);
    Real* working = s.measured ? nullptr : t.result("working", line(count), copies);
    Fp8State* fp8 = s.measured ? t.result("state", line(1), std::vector<Fp8State>{fp8_before}) : nullptr;
    t.run_twice([&] {
        qk_clip<Real>(master, working, fp8, maxima, s.heads, s.columns, s.first, count, limit, state, t.stream(),
                      kRounding);
    });
    Bounded expected;
    for (size_t i = 0; i < count; i++) {
        const int head = static_cast<int>((s.first + i) / (s.heads.HD * s.columns));
        const bool shared = s.heads.NKV < s.heads.NH, is_query = head < s.heads.NH;
        const bool clips = !s.skip && (is_query || (!shared && head < s.heads.NH + s.heads.NKV));
        const double largest = clips ? logits[is_query ? head : head - s.heads.NH] : 0;
        const double gamma = clips && largest > limit ? limit / largest : 1;
        const double value = before[i] * (shared ? gamma : std::sqrt(gamma));
        expected.push_back(value, gamma == 1 ? 0 : 3 * kUnit * std::fabs(value));
    }
    within(t, master, s.skip ? expected : stored(s.masters, expected, master_bits, 0));
    const std::vector<float> masters = values_in(t, master);
    if (working) {
        std::vector<Real> rounded;
        for (const float weight : masters) rounded.push_back(to<Real>(weight));
        t.equal(working, rounded);
    }
    Fp8State measured = fp8_before;
    for (const float weight : masters)
        if (!s.skip) measured.amax_now = std::max(measured.amax_now, std::fabs(weight));
    if (fp8) t.note(wrong_state(t.read(fp8)[0], {measured, measured}));
}

// ---- Muon ----------------------------------------------------------------------------------------------------------

constexpr double kSafety = 1.02, kBeta2 = 0.9;

// The relative error of rounding to Real.
template <class Real>
constexpr double kRealUnit = sizeof(Real) == 2 ? 0x1p-8 : kUnit;

struct Momentum {
    size_t count;
    bool nesterov = true, skip = false;
    StateFormat gradients = StateFormat::fp32;
    // A quarter of the way from 0.85 to 0.95: of 400 updates, 100 have gone before this one.
    MuonMomentum config = {0.95, 400};
    int64_t applied = 101;
    double beta = 0.875;
};

template <class Real>
void muon_average(Trial& t, const Momentum& s) {
    const auto before = t.random<float>(s.count, 0.01f);
    auto gradients = t.random<float>(s.count, 0.2f);
    narrow(s.gradients, gradients);
    const StateArray grad = state_input(t, s.gradients, gradients);
    StepState host_state = example_state(s.skip);
    host_state.applied = s.applied;
    const auto state = t.input(std::vector<StepState>{host_state});
    float* m = t.result("m", line(s.count), before);
    Real* u = t.result<Real>("u", line(s.count));
    t.run_twice([&] { muon_momentum<Real>(m, u, grad, s.count, s.config, s.nesterov, state, t.stream()); });
    if (s.skip) return t.equal(m, before);
    Bounded momentum, direction;
    for (size_t i = 0; i < s.count; i++) {
        const double old = s.beta * static_cast<double>(before[i]), g = 0.25 * static_cast<double>(gradients[i]);
        const double now = old + (1 - s.beta) * g, terms = std::fabs(old) + std::fabs(g);
        const double ahead = s.nesterov ? (1 - s.beta) * g + s.beta * now : now;
        momentum.push_back(now, 4 * kUnit * terms);
        direction.push_back(ahead, 8 * kUnit * terms + kRealUnit<Real> * std::fabs(ahead));
    }
    t.within(m, momentum);
    t.within(u, direction);
}

struct Matrix {
    int rows = 72, columns = 209;
    float size = 1.0f;
    bool by_rows = false, skip = false;

    size_t count() const { return size_t{1} * rows * columns; }
};

template <class Real>
void inverse_norm(Trial& t, const Matrix& s) {
    const auto x = t.normal<Real>(s.count(), s.size);
    double* partials = t.scratch<double>(muon_norm_blocks(s.count()));
    float* inverse = t.result<float>("inverse norm", line(1));
    t.run_twice([&] { muon_inverse_norm<Real>(inverse, partials, x, s.count(), kSafety, t.stream()); });
    double sum = 0;
    for (const double value : x.doubles()) sum += value * value;
    // The floor of 1e-7 is rounded to FP32, too.
    t.within(inverse, Bounded({1 / std::max(kSafety * std::sqrt(sum), 1e-7)}, (sum > 0 ? 2 : 4) * kUnit, 0));
}

template <class Real>
void row_factors(Trial& t, const Matrix& s) {
    const auto x = t.normal<Real>(s.count(), s.size);
    float *factors = t.result<float>("factors", line(s.rows)), *squares = t.scratch<float>(s.rows);
    t.run_twice([&] { row_inverse_norms<Real>(factors, squares, x, s.rows, s.columns, kSafety, t.stream()); });
    std::vector<double> sums(s.rows);
    for (size_t i = 0; i < s.count(); i++)
        sums[i / s.columns] += std::pow(static_cast<double>(to_float(x.values[i])), 2);
    Bounded expected;
    for (const double sum : sums) {
        const double factor = 1 / std::max(kSafety * std::sqrt(sum), 1e-7);
        expected.push_back(factor, (s.columns + 8) * kUnit * factor);
    }
    t.within(factors, expected);
}

template <class Real>
void matrix_copy(Trial& t, const Matrix& s, bool transpose, FactorOf of) {
    const auto x = t.normal<Real>(s.count(), s.size);
    const auto factors = t.normal<float>(static_cast<size_t>(std::max(s.rows, s.columns)), 1.0f);
    Real* out = t.result<Real>("copy", line(s.count()));
    t.run_twice([&] { copy_matrix<Real>(out, x, s.rows, s.columns, transpose, factors, of, t.stream()); });
    std::vector<Real> expected;
    for (size_t i = 0; i < s.count(); i++) {
        const int row = static_cast<int>(i) / s.columns, column = static_cast<int>(i) % s.columns;
        const int place = of == FactorOf::row ? row : of == FactorOf::column ? column : 0;
        const float value = to_float(x.values[i]);
        expected.push_back(to<Real>(of == FactorOf::none ? value : value * factors.values[place]));
    }
    t.equal(out, transpose ? reference::turned(expected, s.rows, s.columns) : expected);
}

// NorMuon: the factors give all lines about the same norm, and leave the norm of the matrix unchanged.
template <class Real>
void line_factors(Trial& t, const Matrix& s) {
    const auto x = t.normal<Real>(s.count(), s.size);
    const auto state = t.input(std::vector<StepState>{example_state(s.skip)});
    const int lines = s.by_rows ? s.rows : s.columns, length = s.by_rows ? s.columns : s.rows;
    const std::vector<float> before(static_cast<size_t>(lines), 0.5f);
    float *factors = s.skip ? t.scratch<float>(lines) : t.result<float>("factors", line(lines)),
          *squares = t.scratch<float>(lines), *second = t.result("second moment", line(lines), before);
    t.run_twice([&] {
        normuon_factors<Real>(factors, second, squares, x, s.rows, s.columns, s.by_rows, kBeta2, state, t.stream());
    });
    if (s.skip) return t.equal(second, before);
    std::vector<double> sums(lines);
    for (size_t i = 0; i < s.count(); i++) {
        const double value = static_cast<double>(to_float(x.values[i]));
        sums[static_cast<int>(i) / (s.by_rows ? s.columns : 1) % lines] += value * value;
    }
    Bounded average, expected;
    double sum = 0, weighted = 0;
    for (const double of_line : sums) {
        const double second_moment = kBeta2 * 0.5 + (1 - kBeta2) * of_line / length;
        average.push_back(second_moment, (length + 8) * kUnit * second_moment);
        sum += of_line, weighted += of_line / second_moment;
    }
    for (const double second_moment : average.values) {
        const double factor = std::sqrt(sum / weighted / second_moment);
        expected.push_back(factor, 2 * (length + 8) * kUnit * factor);
    }
    t.within(second, average);
    t.within(factors, expected);
}

// ---- clipping ------------------------------------------------------------------------------------------------------

constexpr double kClip = 0.2;

void clipped_values(Trial& t, size_t count, float loss_scale) {
    std::vector<float> before = t.random<float>(count, 0.2f * loss_scale);
    before[count / 2] = -0.0f;
    const auto scale = t.input(std::vector<float>{loss_scale});
    float* grad = t.result("gradient", line(count), before);
    t.run_twice([&] { clip_values(grad, count, kClip, scale, t.stream()); });
    const float limit = static_cast<float>(kClip) * loss_scale;
    for (float& g : before) g = std::clamp(g, -limit, limit);
    t.equal(grad, before);
}

// A gradient whose norm is `size` times the bound; the parts of a sum of squares add up to it.
void clipped_tensor(Trial& t, size_t count, float loss_scale, double size) {
    const size_t parts = 700;
    const auto before = t.random<float>(count, 1.0f);
    const double norm = size * kClip * static_cast<double>(loss_scale);
    const auto scale = t.input(std::vector<float>{loss_scale});
    const auto partials = t.input(std::vector<double>(parts, norm * norm / static_cast<double>(parts)));
    double* square = t.result<double>("square", line(1));
    float* factor = t.result<float>("factor", line(1));
    float* grad = t.result("gradient", line(count), before);
    t.run_twice([&] {
        add_partials(square, partials, parts, t.stream());
        clip_factors(factor, square, 1, kClip, scale, t.stream());
        scale_gradient(grad, count, factor, t.stream());
    });
    Bounded expected;  // the norm and the factor are rounded to FP32, the gradient too
    for (const float g : before)
        expected.push_back(static_cast<double>(g) / std::max(size, 1.0),
                           size < 1 ? 0 : 4 * kUnit * std::fabs(static_cast<double>(g)));
    t.within(grad, expected);
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_update(Items& items, const Update& u) {
    const std::string name = u.text() + " " + type_name<Real>() + (u.measured ? " with amax" : "");
    add_kernel(items, name, [u](Trial& t) { update<Real>(t, u); });
}
template <class Real>
void add_momentum(Items& items, const Momentum& s) {
    add_kernel(items,
               fmt::format("muon_momentum {} of {} n={} applied={}", type_name<Real>(), word_of(s.gradients), s.count,
                           s.applied),
               [s](Trial& t) { muon_average<Real>(t, s); });
}
template <class Real>
void add_matrix(Items& items, const Matrix& s) {
    const std::string suffix = fmt::format(" {} {} x {} of {:g}", type_name<Real>(), s.rows, s.columns, s.size);
    add_kernel(items, "muon_inverse_norm" + suffix, [s](Trial& t) { inverse_norm<Real>(t, s); });
    add_kernel(items, "muon row_inverse_norms" + suffix, [s](Trial& t) { row_factors<Real>(t, s); });
    if (s.size != 1) return;
    add_kernel(items, "muon copy_matrix" + suffix, [s](Trial& t) {
        for (const bool transpose : {false, true})
            for (const FactorOf of : {FactorOf::none, FactorOf::matrix, FactorOf::row, FactorOf::column})
                t.nested([&](Trial& trial) { matrix_copy<Real>(trial, s, transpose, of); });
    });
    for (const bool skip : {false, true})
        for (const bool by_rows : {false, true}) {
            const Matrix lines{s.rows, s.columns, s.size, by_rows, skip};
            add_kernel(items,
                       std::string("muon normuon_factors of ") + (by_rows ? "rows" : "columns") +
                           (skip ? ", skipped step," : "") + suffix,
                       [lines](Trial& t) { line_factors<Real>(t, lines); });
        }
}

template <class Real>
void add_run(Items& items, const KernelUse& use) {
    const bool casts = use.fp8 && use.scaling == Fp8Scaling::tensor;  // but not every tensor is cast
    const bool muon = is_muon(use.optimizer);
    Update u;
    u.rule = use.optimizer == OptimizerKind::lion  ? Rule::lion
             : use.optimizer == OptimizerKind::sgd ? Rule::sgd
                                                   : Rule::adamw;
    u.masters = use.masters, u.gradients = use.gradients;
    if (u.rule == Rule::adamw) {
        u.moments = use.adam_moments;
        u.cautious = use.adamw_cautious;
        u.nesterov = use.adamw_nesterov;
    }
    for (const bool measured : {false, true})
        for (const bool skip : {false, true})
            if (casts || !measured) u.measured = measured, u.skip = skip, add_update<Real>(items, u);
    if (!muon) return;
    u = {Rule::muon};
    u.masters = use.masters;
    u.measured = casts;
    add_update<Real>(items, u);
    add_momentum<Real>(items, {15048, true, false, use.gradients}), add_matrix<Real>(items, {});
}

template <class Real>
void add_tests(Items& items) {
    for (const Rule rule : {Rule::adamw, Rule::lion, Rule::sgd, Rule::muon}) {
        Update u{rule};
        for (const size_t count : {1, 7, 8, 33, 1024, 2048, 4101, 8200, 20001}) {
            u.count = count, u.measured = true;
            for (const size_t decayed : {size_t{0}, count / 2, count})
                u.decay_count = decayed, u.largest = count - 1 - decayed / 2, add_update<Real>(items, u);
        }
        u.count = 4101, u.decay_count = 1500, u.largest = 2077;
        u.skip = true, add_update<Real>(items, u);
        u.skip = false, u.measured = false, add_update<Real>(items, u);
        u.measured = true;
        u.bad = NAN, add_update<Real>(items, u);
        if (rule != Rule::adamw) continue;
        for (const float bad : {INFINITY, -INFINITY}) u.bad = bad, add_update<Real>(items, u);
    }
    for (const SgdConfig& config : {SgdConfig{0.9, false, 0.1}, SgdConfig{0, false, 0.1}}) {
        Update u{Rule::sgd};
        u.sgd = config, add_update<Real>(items, u);
    }
    Update u{Rule::muon};
    u.muon.cautious = true, u.measured = true, add_update<Real>(items, u);
    for (const auto& [nesterov, cautious, measured] :
         {std::tuple{false, true, false}, {true, false, false}, {true, true, true}})
        for (const bool narrow : {false, true}) {
            u = {};
            u.nesterov = nesterov;
            u.cautious = cautious;
            u.measured = measured;
            u.masters = narrow ? StateFormat::bf16 : StateFormat::fp32;
            u.moments = narrow ? StateFormat::fp8 : StateFormat::fp32;
            for (const size_t count : {8, 4101}) u.count = count, u.decay_count = count / 2, add_update<Real>(items, u);
        }
    for (const Rule rule : {Rule::adamw, Rule::lion, Rule::sgd, Rule::muon})
        for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16})
            for (const StateFormat moments : {StateFormat::fp32, StateFormat::bf16, StateFormat::fp8}) {
                u = {rule};
                u.masters = masters, u.moments = moments, u.measured = true;
                u.gradients = masters == moments ? masters : StateFormat::bf16;
                if (rule != Rule::adamw && moments != StateFormat::fp32) continue;
                for (const size_t count : {1, 7, 8, 2048, 20001})
                    u.count = count, u.decay_count = count / 2, add_update<Real>(items, u);
                u.skip = true, add_update<Real>(items, u);
            }

    for (const size_t count : {1, 7, 2048, 4101})
        for (const bool nesterov : {false, true})
            for (const bool skip : {false, true})
                for (const StateFormat gradients : {StateFormat::fp32, StateFormat::bf16})
                    add_momentum<Real>(items, {count, nesterov, skip, gradients});
    // The published schedules, by (it / N) with `it` from 0 on.
    for (const auto& [config, applied, beta] : {std::tuple{MuonMomentum{0.95, 300}, 1, 0.85},
                                                {{0.95, 300}, 151, 0.90},
                                                {{0.95, 300}, 300, 0.85 * 1 / 300 + 0.95 * 299 / 300},
                                                {{0.95, 300}, 301, 0.95},
                                                {{0.95, 300}, 5000, 0.95},
                                                {{0.97, 400}, 101, 0.88},
                                                {{0.95, 0}, 1, 0.95},
                                                {{0.95, 1}, 1, 0.85},
                                                {{0.95, 1}, 2, 0.95}})
        add_momentum<Real>(items, {2051, true, false, StateFormat::fp32, config, applied, beta});
    for (const auto& [rows, columns] : {std::pair{1, 1}, {33, 31}, {64, 96}, {5, 200}, {24, 70}})
        add_matrix<Real>(items, {rows, columns});
    for (const int columns : {1, 700, 40000})
        for (const float size : {1e-6f, 1e4f, 0.0f}) add_matrix<Real>(items, {1, columns, size});
}

template <class Real>
void add_clipped(Items& items, const Clipped& s) {
    add_kernel(items, fmt::format("{} {}", s.text(), type_name<Real>()), [s](Trial& t) { clipped<Real>(t, s); });
}

}  // namespace

void add_optimizer(Items& items, const KernelUse& use) {
    if (use.qk_clip)
        for (const size_t columns : {size_t{1}, size_t{36}}) {
            Clipped s{use.attention_heads(), columns};
            s.masters = use.masters;
            s.measured = use.fp8 && columns > 1;
            use.bf16 ? add_clipped<bf16>(items, s) : add_clipped<float>(items, s);
        }
    if (use.clip_kind == ClipKind::value)
        add_kernel(items, "clip_values", [](Trial& t) { clipped_values(t, 4101, 1024.0f); });
    if (use.clip_kind == ClipKind::tensor)
        add_kernel(items, "clip_tensors", [](Trial& t) {
            for (const double size : {0.4, 3.0})
                t.nested([&](Trial& trial) { clipped_tensor(trial, 4101, 1024.0f, size); });
        });
    use.bf16 ? add_run<bf16>(items, use) : add_run<float>(items, use);
}

void add_optimizer_tests(Items& items) {
    for (const size_t count : {1, 7, 2048, 4101})
        for (const float scale : {1.0f, 1024.0f}) {
            add_kernel(items, "clip_values", [=](Trial& t) { clipped_values(t, count, scale); });
            for (const double size : {0.4, 3.0})
                add_kernel(items, "clip_tensors", [=](Trial& t) { clipped_tensor(t, count, scale, size); });
        }
    add_tests<float>(items), add_tests<bf16>(items);
    // Weights and biases, slices of them, grouped queries, and a head that threads share with the next.
    for (const Clipped& s : {Clipped{},
                             {{3, 3, 80}, 1},
                             {{6, 2, 32}, 36},
                             {{2, 1, 96}, 1, 40, 24},
                             {{3, 3, 32}, 36, 1000, 2000},
                             {{3, 3, 32}, 36, 7000, 3}})
        for (const bool measured : {false, true})
            for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16}) {
                Clipped variant = s;
                variant.measured = measured;
                variant.masters = masters;
                if (masters == StateFormat::fp32) add_clipped<float>(items, variant);
                add_clipped<bf16>(items, variant);
                variant.skip = true;
                add_clipped<bf16>(items, variant);
            }
}

}  // namespace llmc::check
