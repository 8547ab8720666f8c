// Attention against a double-precision reference, with error bounds that follow from the arithmetic: see bounds below.
#include "llmc/kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "test/kernel_test.h"

namespace llmc {
namespace {

using test::DeviceArray;
using test::random_normal;
using test::to_doubles;

struct Shape {
    int B, T, NH, HD;
    size_t rows() const { return static_cast<size_t>(B) * T * NH; }
    size_t elements() const { return rows() * HD; }
    std::string text() const {
        return "B=" + std::to_string(B) + " T=" + std::to_string(T) + " NH=" + std::to_string(NH) +
               " HD=" + std::to_string(HD);
    }
};

// Everything in double, from the inputs as stored. Beside each result, how far a correct kernel may be from it.
//
// With u = 2^-8, what rounding to bf16 may lose (0 for the float kernels), and r for FP32 sums and exponentials (1e-5):
//  - the forward rounds each P to bf16 and divides by the sum of the rounded ones:
//      |O error| <= (u + r) (sum P |V| + |O|), of which out alone adds u |O|;
//  - P^T dO rounds P, dV is rounded once: |dV error| <= (u + r) sum P |dO| + u |dV|;
//  - delta inherits O's error: |delta error| <= sum |dO| |O error|, and dS = P (dP - delta) is rounded;
//    |dQ error| <= scale sum (u |dS| + r P (sum |dO V| + |dO O|) + P |delta error|) |K| + u |dQ|, dK likewise.
// These hold for the worst case. Rounding errors are independent, so the norm of all errors together must be much
// smaller: one rounding of values with evenly spread mantissas has a relative root mean square of 0.425 u (uniform in
// +-u / m for a mantissa m in [1, 2), log-uniform).
struct Reference {
    std::vector<double> out, lse, delta, dqkv;
    std::vector<double> out_bound, out_sum_bound, delta_bound, dqkv_bound;
};

struct Layout {
    Shape s;
    size_t qkv(int b, int t, int which, int h) const {
        return (((static_cast<size_t>(b) * s.T + t) * 3 + which) * s.NH + h) * s.HD;
    }
    size_t out(int b, int t, int h) const { return ((static_cast<size_t>(b) * s.T + t) * s.NH + h) * s.HD; }
    size_t row(int b, int t, int h) const { return (static_cast<size_t>(b) * s.NH + h) * s.T + t; }
};

double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
double dot_magnitudes(const double* a, const double* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += std::fabs(a[i] * b[i]);
    return sum;
}

void reference_row(Reference& r, const Shape& s, const std::vector<double>& qkv, const std::vector<double>& dout, int b,
                   int t, int h, double u, double slack) {
    const Layout at{s};
    const int HD = s.HD;
    const double scale = 1 / std::sqrt(static_cast<double>(HD));
    const double *q = &qkv[at.qkv(b, t, 0, h)], *gradient = &dout[at.out(b, t, h)];
    std::vector<double> p(static_cast<size_t>(t) + 1);
    double maximum = -1e300, sum = 0;
    for (int k = 0; k <= t; k++) maximum = std::max(maximum, p[k] = scale * dot(q, &qkv[at.qkv(b, k, 1, h)], HD));
    for (double& x : p) sum += x = std::exp(x - maximum);
    for (double& x : p) x /= sum;
    r.lse[at.row(b, t, h)] = maximum + std::log(sum);

    double* out = &r.out[at.out(b, t, h)];
    std::vector<double> magnitude(HD);
    for (int k = 0; k <= t; k++) {
        const double* v = &qkv[at.qkv(b, k, 2, h)];
        for (int c = 0; c < HD; c++) out[c] += p[k] * v[c], magnitude[c] += p[k] * std::fabs(v[c]);
    }
    double delta_error = 0, delta_magnitude = 0;
    for (int c = 0; c < HD; c++) {
        const double error = (u + slack) * (magnitude[c] + std::fabs(out[c]));
        r.out_sum_bound[at.out(b, t, h) + c] = error + u * u / 2 * std::fabs(out[c]);
        r.out_bound[at.out(b, t, h) + c] = error + u * std::fabs(out[c]);
        delta_error += std::fabs(gradient[c]) * (error + u * u / 2 * std::fabs(out[c]));
        delta_magnitude += std::fabs(gradient[c] * out[c]);
    }
    const double delta = r.delta[at.row(b, t, h)] = dot(gradient, out, HD);
    r.delta_bound[at.row(b, t, h)] = delta_error + slack * delta_magnitude;

    for (int k = 0; k <= t; k++) {
        const double *key = &qkv[at.qkv(b, k, 1, h)], *v = &qkv[at.qkv(b, k, 2, h)];
        const double ds = p[k] * (dot(gradient, v, HD) - delta) * scale;
        const double ds_error =
            u * std::fabs(ds) +
            scale * p[k] * (delta_error + slack * (dot_magnitudes(gradient, v, HD) + delta_magnitude));
        for (int c = 0; c < HD; c++) {
            r.dqkv[at.qkv(b, t, 0, h) + c] += ds * key[c];
            r.dqkv[at.qkv(b, k, 1, h) + c] += ds * q[c];
            r.dqkv[at.qkv(b, k, 2, h) + c] += p[k] * gradient[c];
            r.dqkv_bound[at.qkv(b, t, 0, h) + c] += ds_error * std::fabs(key[c]);
            r.dqkv_bound[at.qkv(b, k, 1, h) + c] += ds_error * std::fabs(q[c]);
            r.dqkv_bound[at.qkv(b, k, 2, h) + c] += (u + slack) * p[k] * std::fabs(gradient[c]);
        }
    }
}

Reference reference_attention(const Shape& s, const std::vector<double>& qkv, const std::vector<double>& dout, double u,
                              double slack) {
    Reference r;
    for (auto* x : {&r.out, &r.out_bound, &r.out_sum_bound}) x->assign(s.elements(), 0.0);
    for (auto* x : {&r.lse, &r.delta, &r.delta_bound}) x->assign(s.rows(), 0.0);
    for (auto* x : {&r.dqkv, &r.dqkv_bound}) x->assign(3 * s.elements(), 0.0);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++) reference_row(r, s, qkv, dout, b, t, h, u, slack);
    for (size_t i = 0; i < r.dqkv.size(); i++) r.dqkv_bound[i] += (u + slack) * std::fabs(r.dqkv[i]);
    return r;
}

// Largest error in units of its bound; infinite if anything is NaN. `floor` is for results that are zero by
// cancellation.
double worst_against_bound(const std::vector<double>& actual, const std::vector<double>& expected,
                           const std::vector<double>& bound, double floor) {
    REQUIRE(actual.size() == expected.size());
    double worst = 0;
    for (size_t i = 0; i < actual.size(); i++) {
        const double ratio = std::fabs(actual[i] - expected[i]) / (bound[i] + floor);
        if (!(ratio <= worst)) worst = ratio == ratio ? ratio : std::numeric_limits<double>::infinity();
    }
    return worst;
}

double norm_error(const std::vector<double>& actual, const std::vector<double>& expected) {
    std::vector<float> rounded(actual.begin(), actual.end());
    return test::relative_norm_error(rounded, expected);
}

// The part of dqkv that is dQ (0), dK (1) or dV (2).
std::vector<double> part(const std::vector<double>& dqkv, const Shape& s, int which) {
    const size_t width = static_cast<size_t>(s.NH) * s.HD;
    std::vector<double> result;
    for (size_t row = static_cast<size_t>(which); row * width < dqkv.size(); row += 3)
        result.insert(result.end(), dqkv.begin() + row * width, dqkv.begin() + (row + 1) * width);
    return result;
}

template <class Real>
struct Run {
    Shape shape;
    DeviceArray<Real> qkv, dout, out, out_low, dqkv;
    DeviceArray<float> lse, delta;
    Run(const Shape& s, const std::vector<Real>& qkv_values, const std::vector<Real>& dout_values)
        : shape(s),
          qkv(qkv_values),
          dout(dout_values),
          out(s.elements()),
          out_low(s.elements()),
          dqkv(3 * s.elements()),
          lse(s.rows()),
          delta(s.rows()) {}

    void forward() {
        attention_forward<Real>(out, out_low, lse, qkv, shape.B, shape.T, shape.NH, shape.HD, test::test_stream());
    }
    void backward() {
        attention_backward<Real>(dqkv, delta, dout, qkv, out, out_low, lse, shape.B, shape.T, shape.NH, shape.HD,
                                 test::test_stream());
    }
    // What the backward takes the output to be.
    std::vector<double> output() const {
        std::vector<double> sum = to_doubles(out.download());
        if (sizeof(Real) == sizeof(float)) return sum;
        const std::vector<double> low = to_doubles(out_low.download());
        for (size_t i = 0; i < sum.size(); i++) sum[i] += low[i];
        return sum;
    }
};

template <class Real>
void check_against_reference(const Shape& shape, float deviation, uint32_t seed) {
    INFO(shape.text(), " deviation ", deviation);
    const double u = sizeof(Real) == 2 ? test::rounding_error<bf16>() : 0.0, slack = sizeof(Real) == 2 ? 1e-5 : 5e-6;
    const std::vector<Real> qkv = random_normal<Real>(3 * shape.elements(), deviation, seed);
    const std::vector<Real> dout = random_normal<Real>(shape.elements(), 1.0f, seed + 1);
    const Reference expected = reference_attention(shape, to_doubles(qkv), to_doubles(dout), u, slack);
    Run<Real> run(shape, qkv, dout);
    run.forward();
    run.backward();

    const std::vector<double> out = to_doubles(run.out.download()), dqkv = to_doubles(run.dqkv.download());
    const double floor = 1e-6;
    CHECK(worst_against_bound(out, expected.out, expected.out_bound, floor) <= 1);
    CHECK(worst_against_bound(run.output(), expected.out, expected.out_sum_bound, floor) <= 1);
    CHECK(test::max_relative_error(run.lse.download(), expected.lse, 1.0) < 1e-5);
    CHECK(worst_against_bound(to_doubles(run.delta.download()), expected.delta, expected.delta_bound, floor) <= 1);
    CHECK(worst_against_bound(dqkv, expected.dqkv, expected.dqkv_bound, floor) <= 1);

    // Root mean squares: out + out_low has one rounding (of P), out and dV two, dQ and dK three and their sums cancel.
    const double rms = 0.5 * u + 1e-6;
    CHECK(norm_error(run.output(), expected.out) < rms);
    CHECK(norm_error(out, expected.out) < 1.42 * rms);
    CHECK(norm_error(part(dqkv, shape, 2), part(expected.dqkv, shape, 2)) < 1.42 * rms);
    if (shape.T > 1) {  // a single key's dS is zero
        CHECK(norm_error(part(dqkv, shape, 0), part(expected.dqkv, shape, 0)) < 1.5 * rms);
        CHECK(norm_error(part(dqkv, shape, 1), part(expected.dqkv, shape, 1)) < 1.5 * rms);
    }
}

// Every byte of a result, to compare runs with.
template <class T>
std::vector<uint8_t> bytes_of(const DeviceArray<T>& array) {
    const std::vector<T> values = array.download();
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return std::vector<uint8_t>(begin, begin + values.size() * sizeof(T));
}

template <class Real>
void check_repeatable(const Shape& shape) {
    INFO(shape.text());
    const std::vector<Real> qkv = random_normal<Real>(3 * shape.elements(), 1.0f, 7);
    const std::vector<Real> dout = random_normal<Real>(shape.elements(), 1.0f, 8);
    Run<Real> first(shape, qkv, dout), second(shape, qkv, dout);
    for (Run<Real>* run : {&first, &second}) run->forward(), run->backward();
    CHECK(bytes_of(first.out) == bytes_of(second.out));
    CHECK(bytes_of(first.lse) == bytes_of(second.lse));
    CHECK(bytes_of(first.dqkv) == bytes_of(second.dqkv));
    const std::vector<uint8_t> out = bytes_of(first.out), dqkv = bytes_of(first.dqkv);
    first.forward(), first.backward();  // over its own earlier results
    CHECK(bytes_of(first.out) == out);
    CHECK(bytes_of(first.dqkv) == dqkv);
}

// A tensor in the middle of an array of NaN: reading beside it shows in the results, writing beside it in the margins.
template <class T>
struct Framed {
    static constexpr size_t margin = 4096;
    DeviceArray<T> array;
    size_t count;
    explicit Framed(size_t n) : array(n + 2 * margin), count(n) {}
    explicit Framed(const std::vector<T>& values) : Framed(values.size()) {
        std::vector<T> all = array.download();
        std::copy(values.begin(), values.end(), all.begin() + margin);
        array.upload(all);
    }
    T* get() { return array.get() + margin; }
    std::vector<T> values() const {
        const std::vector<T> all = array.download();
        return std::vector<T>(all.begin() + margin, all.end() - margin);
    }
    bool margins_untouched() const {
        const std::vector<uint8_t> all = bytes_of(array);
        const auto untouched = [](uint8_t byte) { return byte == 0xFF; };
        return std::all_of(all.begin(), all.begin() + margin * sizeof(T), untouched) &&
               std::all_of(all.end() - margin * sizeof(T), all.end(), untouched);
    }
};

template <class Real>
void check_stays_inside(const Shape& s) {
    INFO(s.text());
    const std::vector<Real> qkv_values = random_normal<Real>(3 * s.elements(), 1.0f, 17);
    const std::vector<Real> dout_values = random_normal<Real>(s.elements(), 1.0f, 18);
    Run<Real> expected(s, qkv_values, dout_values);
    expected.forward();
    expected.backward();

    Framed<Real> qkv(qkv_values), dout(dout_values), out(s.elements()), out_low(s.elements()), dqkv(3 * s.elements());
    Framed<float> lse(s.rows()), delta(s.rows());
    attention_forward<Real>(out.get(), out_low.get(), lse.get(), qkv.get(), s.B, s.T, s.NH, s.HD, test::test_stream());
    attention_backward<Real>(dqkv.get(), delta.get(), dout.get(), qkv.get(), out.get(), out_low.get(), lse.get(), s.B,
                             s.T, s.NH, s.HD, test::test_stream());
    CHECK(to_doubles(out.values()) == to_doubles(expected.out.download()));
    CHECK(lse.values() == expected.lse.download());
    CHECK(delta.values() == expected.delta.download());
    CHECK(to_doubles(dqkv.values()) == to_doubles(expected.dqkv.download()));
    CHECK(out.margins_untouched());
    CHECK(out_low.margins_untouched());
    CHECK(lse.margins_untouched());
    CHECK(delta.margins_untouched());
    CHECK(dqkv.margins_untouched());
}

// Inputs that make a delta from the rounded output biased (arXiv 2510.04212). All values have a large component in
// common and lie on bf16's grid. Every query attends to its own key (score 1.5 * 63 / 8 = 11.8; others' have
// deviation 1.5), but for half a percent, most of which goes to key 0 (score 6 to 6.6), whose value is larger by 0.5.
// The output thus lies above the query's own value by some 0.002 in every element, less than half a unit in the last
// place: it is always rounded down. The incoming gradient has a component in common too, so that the errors add up.
void biased_inputs(const Shape& s, std::vector<bf16>& qkv, std::vector<bf16>& dout) {
    const Layout at{s};
    std::mt19937 engine(33);
    qkv.resize(3 * s.elements());
    dout = random_normal<bf16>(s.elements(), 0.5f, 32, 1.0f);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++) {
            std::vector<float> common(s.HD);
            for (float& c : common) c = 1.0f + static_cast<float>(engine() % 32) / 128;  // a unit is 1/128
            for (int t = 0; t < s.T; t++) {
                const float score = 6.0f + 0.6f * static_cast<float>(engine() % 1000) / 1000;
                for (int c = 0; c < s.HD; c++) {
                    const float sign = engine() % 2 ? 1.0f : -1.0f, unit = static_cast<float>(engine() % 2) / 128;
                    const float key = c == 0 ? (t == 0 ? 8.0f : 0.0f) : t == 0 ? 0.0f : sign;
                    qkv[at.qkv(b, t, 0, h) + c] = to_bf16(c == 0 ? score : 1.5f * key);
                    qkv[at.qkv(b, t, 1, h) + c] = to_bf16(key);
                    qkv[at.qkv(b, t, 2, h) + c] = to_bf16(common[c] + (t == 0 ? 0.5f : unit));
                }
            }
        }
}

// Mean over the rows of sum_j P (dP - delta), which is zero for the true delta, relative to the mean magnitude of dP.
double mean_of_score_gradients(const Reference& exact, const std::vector<float>& delta) {
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < delta.size(); i++) {
        sum += exact.delta[i] - static_cast<double>(delta[i]);  // sum_j P dP = exact delta
        magnitude += std::fabs(exact.delta[i]);
    }
    return sum / magnitude;
}

}  // namespace

TEST_CASE("attention bf16: forward and backward against double precision") {
    uint32_t seed = 100;
    for (int HD : {32, 64, 128}) {
        for (const auto& [B, T, NH] :
             {std::array{1, 1, 1}, std::array{2, 17, 3}, std::array{1, 63, 2}, std::array{2, 64, 1},
              std::array{1, 65, 2}, std::array{1, 128, 3}, std::array{2, 200, 1}})
            check_against_reference<bf16>({B, T, NH, HD}, 1.0f, seed += 2);
        check_against_reference<bf16>({1, 200, 2, HD}, 2.5f, seed += 2);  // peaked probabilities, moving maxima
    }
}

TEST_CASE("attention fp32: forward and backward against double precision") {
    uint32_t seed = 500;
    for (int HD : {32, 64, 128})
        for (const auto& [B, T, NH] :
             {std::array{1, 1, 1}, std::array{2, 17, 3}, std::array{1, 65, 2}, std::array{1, 100, 1}})
            check_against_reference<float>({B, T, NH, HD}, 1.5f, seed += 2);
}

TEST_CASE("attention: two runs give the same bits") {
    for (int HD : {32, 64, 128}) check_repeatable<bf16>({2, 150, 2, HD});
    check_repeatable<float>({2, 70, 2, 64});
}

TEST_CASE("attention: nothing outside the tensors is read or written") {
    for (int HD : {32, 64, 128}) {
        for (int T : {1, 65, 130}) check_stays_inside<bf16>({2, T, 2, HD});
        check_stays_inside<float>({2, 37, 2, HD});
    }
}

TEST_CASE("attention: without out_low the output is the same") {
    const Shape s{1, 70, 2, 64};
    Run<bf16> run(s, random_normal<bf16>(3 * s.elements(), 1.0f, 27), random_normal<bf16>(s.elements(), 1.0f, 28));
    run.forward();
    const std::vector<uint8_t> out = bytes_of(run.out);
    attention_forward<bf16>(run.out, nullptr, run.lse, run.qkv, s.B, s.T, s.NH, s.HD, test::test_stream());
    CHECK(bytes_of(run.out) == out);
}

TEST_CASE("attention: delta is unbiased where the output's rounding is one-sided, and biased from the rounded output") {
    const Shape s{2, 128, 2, 64};
    std::vector<bf16> qkv, dout;
    biased_inputs(s, qkv, dout);
    const Reference exact = reference_attention(s, to_doubles(qkv), to_doubles(dout), 0, 0);
    Run<bf16> run(s, qkv, dout);
    run.forward();
    run.backward();
    // What is left: P's rounding errors, times the spread of the values (half a percent of 0.5), of either sign.
    CHECK(std::fabs(mean_of_score_gradients(exact, run.delta.download())) < 2e-6);

    run.out_low.upload(std::vector<bf16>(s.elements()));  // zeros: delta = rowsum(dout * bf16(O))
    run.backward();
    CHECK(mean_of_score_gradients(exact, run.delta.download()) > 1e-3);
}

TEST_CASE("attention: a component common to all values causes no score gradients") {
    // All values equal: any weights that sum to 1 give that value, dP is the same for all keys, and dS = 0. So the
    // rounding of P must cancel in the output: only FP32's errors are left.
    for (int HD : {32, 64, 128}) {
        const Shape s{1, 200, 2, HD};
        INFO(s.text());
        const Layout at{s};
        std::vector<bf16> qkv = random_normal<bf16>(3 * s.elements(), 1.0f, 41);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 42);
        std::vector<double> value(s.elements());
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++)
                for (int c = 0; c < HD; c++) {
                    qkv[at.qkv(0, t, 2, h) + c] = qkv[at.qkv(0, 0, 2, h) + c];
                    value[at.out(0, t, h) + c] = to_float(qkv[at.qkv(0, t, 2, h) + c]);
                }
        Run<bf16> run(s, qkv, dout);
        run.forward();
        run.backward();
        CHECK(to_doubles(run.out.download()) == value);
        CHECK(test::max_relative_error(run.out_low.download(), std::vector<double>(s.elements()), 1.0) < 2e-6);
        const std::vector<double> dqkv = to_doubles(run.dqkv.download());
        for (int which : {0, 1})
            for (double x : part(dqkv, s, which)) REQUIRE(std::fabs(x) < 2e-5);
    }
}

TEST_CASE("attention: scores of several thousand stay finite") {
    for (int HD : {32, 64, 128}) {
        const Shape s{1, 130, 1, HD};
        INFO(s.text());
        const std::vector<bf16> qkv = random_normal<bf16>(3 * s.elements(), 30.0f, 51);
        const std::vector<bf16> dout = random_normal<bf16>(s.elements(), 1.0f, 52);
        const Reference exact = reference_attention(s, to_doubles(qkv), to_doubles(dout), 0, 0);
        Run<bf16> run(s, qkv, dout);
        run.forward();
        run.backward();
        CHECK(test::max_relative_error(run.lse.download(), exact.lse, 1.0) < 1e-5);
        // An exponent's FP32 error is now 1e-7 of thousands; what is nearly one-hot stays so.
        CHECK(norm_error(run.output(), exact.out) < 0.01);
        CHECK(norm_error(part(to_doubles(run.dqkv.download()), s, 2), part(exact.dqkv, s, 2)) < 0.01);
        for (double x : to_doubles(run.dqkv.download())) REQUIRE(std::isfinite(x));
    }
}

TEST_CASE("attention: unsupported shapes are refused, naming what is supported") {
    const Shape s{1, 4, 1, 64};
    Run<bf16> run(s, random_normal<bf16>(3 * s.elements(), 1.0f, 61), random_normal<bf16>(s.elements(), 1.0f, 62));
    const auto forward = [&](int B, int T, int NH, int HD) {
        attention_forward<bf16>(run.out, run.out_low, run.lse, run.qkv, B, T, NH, HD, test::test_stream());
    };
    CHECK_THROWS_WITH_AS(forward(1, 4, 1, 48),
                         "attention: head dimension 48 is not supported; choose the number of heads so that channels / "
                         "heads is 32, 64 or 128",
                         Error);
    CHECK_THROWS_AS(forward(1, 4, 65536, 64), Error);
    CHECK_THROWS_AS(forward(65536, 4, 1, 64), Error);
    CHECK_THROWS_AS(forward(1, 0, 1, 64), Error);
    CHECK_THROWS_AS(attention_forward<float>(nullptr, nullptr, nullptr, nullptr, 1, 4, 1, 40, test::test_stream()),
                    Error);
    CHECK_THROWS_AS(attention_backward<float>(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 4, 1,
                                              40, test::test_stream()),
                    Error);
    CHECK_THROWS_AS(attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, run.out_low, run.lse, 1,
                                             4, 1, 256, test::test_stream()),
                    Error);
    CHECK_THROWS_WITH_AS(attention_backward<bf16>(run.dqkv, run.delta, run.dout, run.qkv, run.out, nullptr, run.lse, 1,
                                                  4, 1, 64, test::test_stream()),
                         doctest::Contains("out_low is missing"), Error);
}

}  // namespace llmc
