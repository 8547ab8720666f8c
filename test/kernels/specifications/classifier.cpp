// Softmax cross-entropy over the run's vocabulary, in place and as FP8 codes, and the sum of losses.
#include "llmc/kernels/classifier.h"

#include "llmc/kernels/classifier_random.cuh"
#include "llmc/kernels/quantize_values.cuh"
#include "test/kernels/specifications/specifications.h"

namespace llmc::check {
namespace {

constexpr float kLossScale = 4096.0f;

struct Shape {
    int rows, V, padded_V;
    LogitShaping shaping;
    float deviation = 3.0f;
    enum Rows { usual, with_bad, extreme, beyond_cap } special = usual;

    size_t width() const { return static_cast<size_t>(padded_V); }
    double cap() const { return shaping.soft_cap; }
    std::string text() const {
        std::string text = fmt::format(" N={} V={}/{}", rows, V, padded_V);
        if (cap() > 0) text += fmt::format(" capped at {:g}", cap());
        if (shaping.z_loss > 0) text += fmt::format(" with z-loss {:g}", shaping.z_loss);
        return text;
    }
};

// ---- reference -----------------------------------------------------------------------------------------------------

// Caps logits in place. Returns the derivative of each capped logit by the original one.
std::vector<double> cap_logits(std::vector<double>& logits, double cap) {
    std::vector<double> slope(logits.size(), 1.0);
    for (size_t i = 0; i < logits.size() && cap > 0; i++) {
        const double tanh = std::tanh(logits[i] / cap), cosh = std::cosh(logits[i] / cap);
        logits[i] = cap * tanh;
        slope[i] = 1 / (cosh * cosh);
    }
    return slope;
}

// Losses leave out z-loss; the gradient has it.
struct Exact {
    std::vector<double> losses, gradient;
};
Exact exact_values(const Shape& s, std::vector<double> logits, const std::vector<int>& targets, double dloss) {
    const std::vector<double> slope = cap_logits(logits, s.cap());
    Exact e{{}, std::vector<double>(logits.size())};
    const double z_loss = s.shaping.z_loss;
    for (size_t row = 0; row < targets.size(); row++) {
        double* const x = &logits[row * s.width()];
        double max = -1e300, sum = 0;
        for (int v = 0; v < s.V; v++) max = std::max(max, x[v]);
        for (int v = 0; v < s.V; v++) sum += std::exp(x[v] - max);
        const int target = targets[row];
        const double log_z = max + std::log(sum), z_gradient = 2 * z_loss * log_z;
        e.losses.push_back(target < 0 ? 0.0 : log_z - x[target]);
        for (int v = 0; v < s.V && target >= 0; v++) {
            const size_t at = row * s.width() + static_cast<size_t>(v);
            e.gradient[at] = (std::exp(x[v] - max) / sum * (1 + z_gradient) - (v == target)) * dloss * slope[at];
        }
    }
    return e;
}

// Errors of losses, relative to |loss| + 1. Errors of gradients, relative to each value, down to a floor of 1e-6 of the
// largest, before the rounding to Real, in units of u = 2^-24: 3u |x - max| from the exponent, at most 14 above that
// floor; 5u for ex2.approx.f32 (2 ulp from correctly rounded, PTX ISA), as much for the sum's terms; some 50u for its
// additions: 6e-6.
constexpr double kLossError = 2e-6, kGradientError = 1e-5, kGradientFloor = 1e-6;
// On top of both where logits are capped: a capped one errs by 10u of the cap (the tanh by 8u, then two roundings), and
// so does the largest. A gradient has that error twice, of its own exponential and of the sum.
double soft_cap_error(double cap) { return 2 * 10 * reference::kUnit * cap; }

// ---- specifications ------------------------------------------------------------------------------------------------

// Padding holds NaN: it must not be used.
template <class Real>
std::vector<Real> example_logits(Trial& t, const Shape& s) {
    auto logits = t.random<Real>(static_cast<size_t>(s.rows) * s.width(), s.deviation);
    for (int row = 0; row < s.rows; row++) {
        Real* const x = &logits[static_cast<size_t>(row) * s.width()];
        for (int v = 0; v < s.V; v++) {
            const float large[] = {v % 2 ? 1e4f : -1e4f, -1e4f, 0, -1e4f + 100.0f * static_cast<float>(v % 200),
                                   v == s.V / 3 ? 1e4f : -1e4f + static_cast<float>(v % 7)};
            if (s.special == Shape::extreme && row < 5 && row != 2) x[v] = to<Real>(large[row]);
            if (s.special == Shape::beyond_cap && row == 1)
                x[v] = to<Real>(v % 3 == 0 ? 1e4f : v % 3 == 1 ? -1e4f : 0.5f);
        }
        for (int v = s.V; v < s.padded_V; v++) x[v] = to<Real>(std::nanf(""));
        if (s.special == Shape::with_bad && row == 3) x[s.V / 3] = to<Real>(std::nanf(""));
    }
    return logits;
}

// Inputs, and the losses and the gradient that follow from them. Target -1 in row 2, NaN in row 3 of `with_bad`.
template <class Real>
struct Example {
    std::vector<Real> logits;
    std::vector<int> targets;
    const float loss_gradient;
    Bounded losses, gradient;

    Example(Trial& t, const Shape& s)
        : logits(example_logits<Real>(t, s)), loss_gradient(1.0f / static_cast<float>(s.rows)) {
        for (int row = 0; row < s.rows; row++) {
            const int first[] = {s.V - 1, s.V / 2, -1, 0, s.V / 3};
            targets.push_back(row < 5 ? first[row] : row * 7919 % s.V);
        }
        const double dloss = double{loss_gradient} * kLossScale;
        const Exact expected = exact_values(s, reference::to_doubles(logits), targets, dloss);
        const double of_cap = soft_cap_error(s.cap());
        losses = Bounded(expected.losses, kLossError + of_cap, 1.0);
        // Beyond the cap, terms cancel that have the error of the largest.
        double floor = kGradientFloor * dloss;
        for (const double g : expected.gradient)
            if (s.special == Shape::beyond_cap) floor = std::max(floor, 1e-2 * std::fabs(g));
        gradient = Bounded(expected.gradient, reference::rounding_error<Real>() + kGradientError + 2 * of_cap, floor);
        for (size_t row = 0; row < targets.size(); row++) {
            const bool bad = s.special == Shape::with_bad && row == 3;
            if (targets[row] < 0) losses.bounds[row] = 0;
            if (bad) losses.values[row] = std::nan("");
            for (size_t v = 0, at = row * s.width(); v < s.width(); v++, at++) {
                if (v >= static_cast<size_t>(s.V) || targets[row] < 0) gradient.bounds[at] = 0;
                if (bad && v < static_cast<size_t>(s.V)) gradient.values[at] = std::nan("");
            }
        }
    }
};

template <class Real>
void cross_entropy(Trial& t, const Shape& s) {
    const Example<Real> example(t, s);
    const auto& [before, targets, loss_gradient, losses, gradient] = example;
    const auto device_targets = t.input(targets);
    const auto scale = t.input_of(kLossScale);
    const std::vector<Axis> axes = {{"row", s.rows}, {"", s.width()}};
    Real *dlogits = t.result<Real>("dlogits", axes, before),
         *logits = t.result<Real>("logits without gradient", axes, before),
         *unscaled = t.result<Real>("dlogits without loss scale", axes, before);
    float *loss = t.result<float>("loss", {{"row", s.rows}}), *again = t.result<float>("loss again", {{"row", s.rows}}),
          *evaluated = t.result<float>("evaluated loss", {{"row", s.rows}});
    const auto run = [&](Real* to, float* losses_to, float of_each, const float* by, bool write,
                         const LogitShaping& how) {
        softmax_cross_entropy<Real>(to, losses_to, device_targets, of_each, by, s.rows, s.V, s.padded_V, write,
                                    t.stream(), how);
    };
    t.run_twice([&] {
        run(dlogits, loss, loss_gradient, scale, true, s.shaping);
        run(unscaled, again, loss_gradient, nullptr, true, s.shaping);
        run(logits, evaluated, 1.0f, nullptr, false, {s.shaping.soft_cap});  // z-loss is not reported
    });
    t.within(loss, losses);
    t.equal(evaluated, t.read(loss));
    t.equal(again, t.read(loss));
    t.within(dlogits, gradient);
    t.equal(logits, before);
    std::vector<Real> scaled;  // a power of two moves the gradient exactly, but for subnormal numbers
    for (const Real g : t.read(unscaled)) scaled.push_back(to<Real>(to_float(g) * kLossScale));
    t.within(dlogits, Bounded::exactly(scaled).widened(0, 0x1p-110));
}

// The documented code of a scaled gradient: its magnitude in units of the last bit that the format keeps, plus the
// random fraction, rounded down. The cast only changes what saturates and what the format holds as a subnormal.
template <class F8>
F8 stochastic_code(float scaled, uint32_t random) {
    if (!std::isfinite(scaled)) return reference::nearest_code<F8>(scaled);
    const int kept = std::is_same_v<F8, e5m2> ? 2 : 3, dropped = 23 - kept;
    int exponent = 0;
    std::frexp(scaled, &exponent);  // |scaled| is in [2^(exponent - 1), 2^exponent)
    const double unit = std::ldexp(1.0, std::max(exponent - 1, -126) - kept);
    const double fraction = std::ldexp(random % (1u << dropped), -dropped);
    const double rounded = std::floor(std::fabs(double{scaled}) / unit + fraction) * unit;
    return reference::nearest_code<F8>(std::copysign(rounded, double{scaled}));
}

// Codes of gradients (rows, padded_V). The helper provides random words only.
template <class F8>
std::vector<F8> stochastic_codes(const Shape& s, const std::vector<bf16>& gradient, const std::vector<int>& targets,
                                 float scale) {
    std::vector<F8> codes;
    for (size_t at = 0; at < gradient.size(); at += 8) {
        float scaled[8];
        uint32_t random[8];
        for (size_t i = 0; i < 8; i++) scaled[i] = to_float(gradient[at + i]) * scale;
        random_of_gradients(random, scaled, targets[at / s.width()], static_cast<int>(at % s.width()));
        for (size_t i = 0; i < 8; i++) codes.push_back(stochastic_code<F8>(scaled[i], random[i]));
    }
    return codes;
}

// The codes are those of the gradient in place, which is right within its bounds, and its random bits. Some values
// saturate and some become 0.
template <class F8>
void cross_entropy_fp8(Trial& t, const Shape& s) {
    const Example<bf16> example(t, s);
    const auto logits = t.input(example.logits);
    const auto targets = t.input(example.targets);
    const auto loss_scale = t.input_of(kLossScale);
    const float largest_gradient = example.loss_gradient * kLossScale;
    const float scale = 1.5f * Fp8Limits<F8>::largest / largest_gradient;
    bf16* dlogits = t.result<bf16>("dlogits", matrix(s.rows, s.width()), example.logits);
    float* plain_loss = t.result<float>("loss in place", {{"row", s.rows}});
    t.run_twice([&] {
        softmax_cross_entropy<bf16>(dlogits, plain_loss, targets, example.loss_gradient, loss_scale, s.rows, s.V,
                                    s.padded_V, true, t.stream(), s.shaping);
    });
    t.within(plain_loss, example.losses);
    t.within(dlogits, example.gradient);
    const std::vector<bf16> gradient = t.read(dlogits);
    const std::vector<F8> codes = stochastic_codes<F8>(s, gradient, example.targets, scale);
    const CodeRanges<F8> counted(Bounded::exactly(gradient), scale);
    for (const QuantizePass pass : kAllPasses)
        t.nested([&](Trial& trial) {
            const QuantizedResults<F8> to(trial, s.rows, s.padded_V, scale);
            float* loss = trial.result<float>("loss", {{"row", s.rows}});
            trial.run_twice([&] {
                softmax_cross_entropy_fp8<F8>(to.target(), logits, loss, targets, example.loss_gradient, loss_scale,
                                              s.rows, s.V, s.padded_V, pass, t.stream(), s.shaping);
            });
            trial.equal(loss, t.read(plain_loss));
            trial.within(to.state, counted.after(to.before, {pass}));
            trial.equal_or_untouched(writes_fp8(pass), to.row, codes);
            trial.equal_or_untouched(writes_fp8(pass), to.transposed, reference::turned(codes, s.rows, s.padded_V));
        });
}

void losses_of(Trial& t, size_t n) {
    auto losses = t.random<float>(n, 1.0f, 5.0f);
    std::vector<int> targets;
    double sum = 0;
    int counted = 0;
    for (size_t i = 0; i < n; i++) {
        targets.push_back(i % 5 == 3 ? -1 : static_cast<int>(i));
        if (targets.back() < 0) losses[i] = 0.0f;
        sum += losses[i];
        counted += targets.back() >= 0;
    }
    const auto device_losses = t.input(losses);
    const auto device_targets = t.input(targets);
    double* total = t.result<double>("total", 1);
    int* count = t.result<int>("count", 1);
    t.run_twice([&] {
        for (const bool accumulate : {false, true})
            sum_losses(total, count, device_losses, device_targets, static_cast<int>(n), accumulate, t.stream());
    });
    const Bounded expected({2 * sum}, 1e-14 * static_cast<double>(n) / 2, 0);  // FP64 sums of positive numbers
    t.within(total, expected);
    t.equal(count, {2 * counted});
}

// ---- items ---------------------------------------------------------------------------------------------------------

template <class Real>
void add_cross_entropy(Items& items, const Shape& s) {
    add_kernel<Real>(items, "softmax_cross_entropy", cross_entropy<Real>, s);
}
template <class F8>
void add_cross_entropy_fp8(Items& items, const Shape& s) {
    add_kernel<F8>(items, "softmax_cross_entropy_fp8", cross_entropy_fp8<F8>, s);
}

template <class Real>
void add_tests(Items& items) {
    for (const auto& [rows, V, padded_V] : {std::tuple{1, 1, 8},
                                            {7, 8, 8},
                                            {33, 257, 384},
                                            {250, 257, 384},
                                            {5, 1000, 1000},
                                            {7, 3001, 3072},
                                            {3, 8200, 8320},
                                            {3, 50257, 50304}})
        add_cross_entropy<Real>(items, {rows, V, padded_V, {}});
    for (const auto& [V, padded_V] : {std::pair{257, 384}, {3001, 3072}, {50257, 50304}}) {
        add_cross_entropy<Real>(items, {5, V, padded_V, {}, 1.0f, Shape::extreme});
        for (const LogitShaping& shaping : {LogitShaping{15.0f}, {0, 0.01f}, {30.0f, 1e-4f}}) {
            add_cross_entropy<Real>(items, {5, V, padded_V, shaping, 10.0f, Shape::beyond_cap});
            add_cross_entropy<Real>(
                items, {5, V, padded_V, shaping, shaping.soft_cap > 0 ? shaping.soft_cap / 2 : 3.0f, Shape::with_bad});
        }
    }
}

template <class F8>
void add_fp8_tests(Items& items) {
    for (const auto& [rows, V, padded_V] :
         {std::tuple{16, 257, 384}, {48, 16, 16}, {144, 1000, 1008}, {16, 3001, 3072}, {16, 50257, 50304}})
        add_cross_entropy_fp8<F8>(items, {rows, V, padded_V, {}});
    for (const auto& [V, padded_V] : {std::pair{257, 384}, {3001, 3072}, {8200, 8320}}) {
        add_cross_entropy_fp8<F8>(items, {16, V, padded_V, {}, 1.0f, Shape::extreme});
        add_cross_entropy_fp8<F8>(items, {16, V, padded_V, {15.0f, 1e-4f}, 7.5f, Shape::with_bad});
    }
}

}  // namespace

void add_classifier(Items& items, const KernelUse& use) {
    const float deviation = use.logit_cap > 0 ? use.logit_cap / 2 : 3.0f;  // many near the cap
    const Shape s{5, use.vocab, use.padded_vocab, {use.logit_cap, use.z_loss}, deviation, Shape::with_bad};
    with_type<bf16, float>(use.bf16, [&]<class Real>(Real) { add_cross_entropy<Real>(items, s); });
    Shape in_fp8 = s;
    in_fp8.rows = 16;
    if (use.fp8_head)
        with_type<e4m3, e5m2>(use.e4m3_gradients, [&]<class F8>(F8) { add_cross_entropy_fp8<F8>(items, in_fp8); });
    add_kernel(items, "sum_losses", losses_of, 1031);
}

void add_classifier_tests(Items& items) {
    each_type<float, bf16>([&]<class Real>(Real) { add_tests<Real>(items); });
    each_type<e4m3, e5m2>([&]<class F8>(F8) { add_fp8_tests<F8>(items); });
    for (const size_t n : {0, 1, 255, 256, 10007}) add_kernel(items, "sum_losses", losses_of, n);
}

}  // namespace llmc::check
