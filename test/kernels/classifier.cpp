// Softmax cross-entropy: its specifications at many shapes, and bad targets, infinite logits and refusals.
#include "llmc/kernels/classifier.h"

#include <random>

#include "test/kernels/check_specifications.h"
#include "test/kernels/quantized.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct ClassifierShape {
    int rows, V, padded_V;
};
// One call on fresh device arrays.
template <class Real>
struct Classifier {
    int rows, V, padded_V;
    std::vector<Real> logits;  // padding holds NaN: it must not be used
    std::vector<int> targets;
    std::vector<float> losses;
    LogitShaping shaping;

    Classifier(ClassifierShape s, float deviation, uint32_t seed = 1)
        : rows(s.rows),
          V(s.V),
          padded_V(s.padded_V),
          logits(random_normal<Real>(static_cast<size_t>(rows) * padded_V, deviation, seed)),
          targets(rows) {
        std::mt19937 engine(seed + 1);
        for (int row = 0; row < rows; row++) {
            targets[row] = static_cast<int>(engine() % static_cast<uint32_t>(V));
            for (int c = V; c < padded_V; c++) at(row, c) = to<Real>(kNaN);
        }
        targets[0] = V - 1;
    }
    // True if columns [begin, end) of the row are exactly 0.
    bool zeros(int row, int begin, int end) {
        for (int v = begin; v < end; v++) {
            if (!(to_float(at(row, v)) == 0.0f)) return false;
        }
        return true;
    }
    Real& at(int row, int column) { return logits[static_cast<size_t>(row) * padded_V + column]; }

    void run(float dloss, const float* loss_scale, bool write_gradient) {
        DeviceArray<Real> device_logits(logits);
        DeviceArray<float> device_losses(rows);
        const DeviceArray<int> device_targets(targets);
        softmax_cross_entropy<Real>(device_logits, device_losses, device_targets.get(), dloss, loss_scale, rows, V,
                                    padded_V, write_gradient, test_stream(), shaping);
        losses = device_losses.download();
        logits = device_logits.download();
    }
};

}  // namespace

TEST_CASE("softmax_cross_entropy and sum_losses meet their specifications") {
    check_specifications(check::add_classifier_tests);
}

TEST_CASE_TEMPLATE("softmax_cross_entropy ignores target -1 and marks other bad targets", Real, float, bf16) {
    for (const ClassifierShape& shape : {ClassifierShape{6, 257, 384}, {6, 3001, 3072}, {6, 50257, 50304}}) {
        CAPTURE(shape.V);
        Classifier<Real> c(shape, 2.0f);
        c.targets = {-1, 5, -2, shape.V, -1, shape.padded_V + 1000};
        const Classifier<Real> original = c;
        for (bool write_gradient : {true, false}) {
            c = original;
            c.run(1.0f, nullptr, write_gradient);
            for (int row : {0, 4}) {
                CHECK(c.losses[row] == 0.0f);
                if (write_gradient) CHECK(c.zeros(row, 0, c.padded_V));
            }
            CHECK(std::isfinite(c.losses[1]));
            for (int row : {2, 3, 5}) {
                CHECK(std::isnan(c.losses[row]));
                if (write_gradient) CHECK(std::isnan(to_float(c.at(row, 3))));
            }
        }
    }
}

TEST_CASE("softmax_cross_entropy: the gradient is the derivative of capped loss and z-loss") {
    Classifier<float> c({1, 40, 40}, 8.0f);
    c.shaping = {15.0f, 0.02f};
    const auto objective = [&](int column, double step) {
        auto x = to_doubles(c.logits);
        x[column] += step;
        double sum = 0;
        for (double& v : x) sum += std::exp(v = 15 * std::tanh(v / 15));
        const double log_z = std::log(sum);
        return log_z - x[c.targets[0]] + 0.02 * log_z * log_z;
    };
    Classifier<float> run = c;
    run.run(1.0f, nullptr, true);
    for (int column = 0; column < 40; column++) {
        const double slope = (objective(column, 1e-5) - objective(column, -1e-5)) / 2e-5;
        CHECK(std::fabs(static_cast<double>(run.logits[column]) - slope) < 1e-6);
    }
}

TEST_CASE_TEMPLATE("softmax_cross_entropy hides no logit that is not finite", Real, float, bf16) {
    for (const ClassifierShape& shape : {ClassifierShape{1, 257, 384}, {1, 3001, 3072}, {1, 50257, 50304}}) {
        for (float bad : {kNaN, kInfinity, -kInfinity}) {
            for (int column : {0, 9, 100, shape.V - 1}) {
                CAPTURE(shape.V);
                CAPTURE(bad);
                CAPTURE(column);
                for (const float cap : {0.0f, 15.0f}) {
                    Classifier<Real> c(shape, 1.0f);
                    c.shaping.soft_cap = cap;
                    c.targets = {11};
                    c.at(0, column) = to<Real>(bad);
                    c.run(1.0f, nullptr, true);
                    CHECK(!std::isfinite(c.losses[0]));
                    CHECK(all_nan(c.logits, 0, static_cast<size_t>(c.V)));
                    CHECK(c.zeros(0, c.V, c.padded_V));
                }
            }
        }
        Classifier<Real> c(shape, 1.0f);
        for (int v = 0; v < c.V; v++) c.at(0, v) = to<Real>(-kInfinity);
        c.run(1.0f, nullptr, true);
        CHECK(!std::isfinite(c.losses[0]));
    }
}

TEST_CASE("softmax_cross_entropy refuses impossible shapes") {
    DeviceArray<float> x(64);
    const DeviceArray<int> targets(8);
    const auto run = [&](int rows, int V, int padded_V) {
        softmax_cross_entropy<float>(x, x, targets.get(), 1.0f, nullptr, rows, V, padded_V, true, test_stream());
    };
    CHECK_THROWS_AS(run(0, 8, 8), Error);
    CHECK_THROWS_AS(run(1, 7, 12), Error);
    CHECK_THROWS_AS(run(1, 9, 8), Error);
    CHECK_THROWS_AS(run(1, 0, 8), Error);
    for (const LogitShaping& shaping : {LogitShaping{-1.0f}, {0, -1.0f}, {kNaN}, {0, kNaN}})
        CHECK_THROWS_AS(
            softmax_cross_entropy<float>(x, x, targets.get(), 1.0f, nullptr, 1, 8, 8, true, test_stream(), shaping),
            Error);
}

namespace {

// The mean of numbers, in standard errors of that mean.
double mean_in_errors(const std::vector<double>& numbers) {
    const double n = static_cast<double>(numbers.size());
    double sum = 0, squares = 0;
    for (const double x : numbers) sum += x;
    for (const double x : numbers) squares += (x - sum / n) * (x - sum / n);
    return sum / n / std::sqrt(squares / (n - 1) / n);
}

}  // namespace

// Targets have probabilities for which rounding to nearest makes -1 of p - 1.
TEST_CASE_TEMPLATE("softmax_cross_entropy_fp8 rounds without bias", F8, e4m3, e5m2) {
    constexpr int kRows = 8192, kV = 64, kHalf = kRows / 2 * kV;
    const double most_likely = std::is_same_v<F8, e5m2> ? 0.06 : 0.03;
    const float scale = std::is_same_v<F8, e5m2> ? 32768.0f : 256.0f;
    Classifier<bf16> c({kRows, kV, kV}, 1.0f);
    for (int row = 0; row < kRows; row++) {
        const double p = 0.01 + (most_likely - 0.01) * row / kRows;
        double others = 0;
        for (int v = 0; v < kV; v++) others += v == c.targets[row] ? 0 : std::exp(to_float(c.at(row, v)));
        c.at(row, c.targets[row]) = to_bf16(static_cast<float>(std::log(p / (1 - p) * others)));
    }
    const DeviceArray<bf16> logits(c.logits);
    const DeviceArray<int> targets(c.targets);
    DeviceArray<float> losses(kRows);
    const auto codes_of = [&](int first_row, int rows) {
        QuantizedArrays<F8> to(static_cast<size_t>(rows) * kV, used_state(scale));
        softmax_cross_entropy_fp8<F8>(to.both(), logits.get() + first_row * kV, losses, targets.get() + first_row, 1.0f,
                                      nullptr, rows, kV, kV, QuantizePass::train, test_stream());
        return to.row.download();
    };
    const std::vector<F8> codes = codes_of(0, kRows);
    c.run(1.0f, nullptr, true);

    std::vector<double> stochastic, nearest, sums, nearest_sums;  // errors, in units of the gradient
    for (int row = 0; row < kRows; row++) {
        double sum = 0, nearest_sum = 0;
        for (int v = 0; v < kV; v++) {
            const double gradient = to_float(c.at(row, v));
            const double value = reference::value_of<F8>(codes[row * kV + v].bits) / scale;
            const double cast = reference::value_of<F8>(nearest_code<F8>(gradient * scale).bits) / scale;
            sum += value;
            nearest_sum += cast;
            if (v != c.targets[row]) continue;
            stochastic.push_back(value - gradient);
            nearest.push_back(cast - gradient);
        }
        sums.push_back(sum);
        nearest_sums.push_back(nearest_sum);
    }
    CHECK(std::fabs(mean_in_errors(stochastic)) < 5);
    CHECK(std::fabs(mean_in_errors(sums)) < 5);
    CHECK(mean_in_errors(nearest) < -100);
    CHECK(mean_in_errors(nearest_sums) < -100);

    // A row's codes do not depend on the rows that are with it.
    const std::vector<F8> half = codes_of(kRows / 2, kRows / 2);
    CHECK(std::memcmp(half.data(), codes.data() + kHalf, kHalf) == 0);
}

TEST_CASE("sum_losses hides no NaN") {
    const DeviceArray<float> losses(std::vector<float>{1.0f, kNaN, 2.0f});
    const DeviceArray<int> targets(std::vector<int>{3, 4, 5});
    DeviceArray<double> total(1);
    DeviceArray<int> count(1);
    sum_losses(total, count, losses.get(), targets.get(), 3, false, test_stream());
    CHECK(std::isnan(total.download()[0]));
}
