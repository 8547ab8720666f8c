// Softmax cross-entropy against FP64, and what it must do with targets and logits that are not ordinary.
#include "llmc/kernels/classifier.h"

#include <random>

#include "test/kernels/row_shapes.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct ClassifierShape {
    int rows, V, padded_V;
};
const ClassifierShape kShapes[] = {{1, 1, 8},       {7, 8, 8},       {33, 257, 384},  {250, 257, 384},
                                   {5, 1000, 1000}, {7, 3001, 3072}, {3, 8200, 8320}, {3, 50257, 50304}};

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
    // Whether columns [begin, end) of the row are exactly 0.
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

template <class Real>
reference::CrossEntropy reference_of(const Classifier<Real>& c, double dloss) {
    return reference::cross_entropy(to_doubles(c.logits), c.targets, c.V, c.padded_V, dloss, c.shaping);
}

}  // namespace

TEST_CASE_TEMPLATE("softmax_cross_entropy: losses and gradients, in place", Real, float, bf16) {
    for (const ClassifierShape& shape : kShapes) {
        CAPTURE(shape.V);
        const float dloss = 1.0f / static_cast<float>(shape.rows);
        Classifier<Real> c(shape, 3.0f);
        const auto expected = reference_of(c, dloss);
        const Classifier<Real> original = c;

        c.run(dloss, nullptr, true);
        CHECK(max_relative_error(c.losses, expected.losses, 1.0) < reference::kLossError);
        // The padding's expected 0 gets no allowance below.
        CHECK(max_relative_error(c.logits, expected.gradient, reference::kLogitGradientFloor * dloss) <
              rounding_error<Real>() + reference::kLogitGradientError);
        for (int row = 0; row < c.rows; row++) CHECK(c.zeros(row, c.V, c.padded_V));

        Classifier<Real> evaluation = original;
        evaluation.run(dloss, nullptr, false);
        CHECK(same_bits(evaluation.losses, c.losses));
        CHECK(same_bits(evaluation.logits, original.logits));

        Classifier<Real> again = original;  // a power-of-two scale moves the gradient exactly
        const DeviceArray<float> loss_scale(std::vector<float>{65536.0f});
        again.run(dloss, loss_scale.get(), true);
        for (Real& g : again.logits) g = to<Real>(to_float(g) / 65536.0f);
        CHECK(same_bits(again.logits, c.logits));
        CHECK(same_bits(again.losses, c.losses));
    }
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

TEST_CASE_TEMPLATE("softmax_cross_entropy of extreme logits", Real, float, bf16) {
    for (const ClassifierShape& shape : {ClassifierShape{4, 257, 384}, {4, 50257, 50304}}) {
        CAPTURE(shape.V);
        Classifier<Real> c(shape, 1.0f);
        for (int v = 0; v < c.V; v++) {
            c.at(0, v) = to<Real>(v % 2 ? 1e4f : -1e4f);
            c.at(1, v) = to<Real>(-1e4f);
            c.at(2, v) = to<Real>(v == 100 ? 1e4f : -1e4f + static_cast<float>(v % 7));
            c.at(3, v) = to<Real>(-1e4f + 100.0f * static_cast<float>(v % 200));  // the maximum grows and grows
        }
        c.targets = {8, 9, 100, 250};
        const auto expected = reference_of(c, 1.0);
        c.run(1.0f, nullptr, true);
        CHECK(max_relative_error(c.losses, expected.losses, 1.0) < reference::kLossError);
        CHECK(max_relative_error(c.logits, expected.gradient, reference::kLogitGradientFloor) <
              rounding_error<Real>() + reference::kLogitGradientError);
    }
}

TEST_CASE_TEMPLATE("softmax_cross_entropy with a soft cap, z-loss and label smoothing", Real, float, bf16) {
    for (const ClassifierShape& shape : {ClassifierShape{7, 257, 384}, {5, 3001, 3072}, {3, 50257, 50304}})
        for (const LogitShaping& shaping :
             {LogitShaping{15.0f, {}}, {0, {0.01f}}, {30.0f, {1e-4f}}, {0, {0, 0.2f}}, {15.0f, {1e-4f, 0.1f}}}) {
            CAPTURE(shape.V);
            CAPTURE(shaping.soft_cap);
            CAPTURE(shaping.trained.z_loss);
            CAPTURE(shaping.trained.label_smoothing);
            const float dloss = 1.0f / static_cast<float>(shape.rows);
            Classifier<Real> c(shape, 10.0f);
            c.shaping = shaping;
            c.targets[1] = -1;
            for (int v = 0; v < c.V; v++)  // far beyond any cap
                c.at(2, v) = to<Real>(v % 3 == 0 ? 1e4f : v % 3 == 1 ? -1e4f : 0.5f);
            const auto expected = reference_of(c, dloss);
            const Classifier<Real> original = c;
            c.run(dloss, nullptr, true);
            const double of_cap = reference::soft_cap_error(static_cast<double>(shaping.soft_cap));
            CHECK(max_relative_error(c.losses, expected.losses, 1.0) < reference::kLossError + of_cap);
            // What cancels at the target has an error of its terms, not of itself.
            double largest = 0;
            for (const double g : expected.gradient) largest = std::max(largest, std::fabs(g));
            CHECK(max_relative_error(c.logits, expected.gradient, 1e-2 * largest) <
                  rounding_error<Real>() + reference::kLogitGradientError + 2 * of_cap);
            CHECK(c.losses[1] == 0.0f);
            CHECK(c.zeros(1, 0, c.padded_V));
            for (int row = 0; row < c.rows; row++) CHECK(c.zeros(row, c.V, c.padded_V));

            Classifier<Real> again = original, evaluation = original, unscored = original;
            again.run(dloss, nullptr, true);
            CHECK(same_bits(again.logits, c.logits));
            evaluation.run(dloss, nullptr, false);
            CHECK(same_bits(evaluation.losses, c.losses));
            unscored.shaping.trained = {};  // is not reported
            unscored.run(dloss, nullptr, true);
            CHECK(same_bits(unscored.losses, c.losses));
            CHECK(same_bits(unscored.logits, c.logits) ==
                  (shaping.trained.z_loss == 0 && shaping.trained.label_smoothing == 0));
        }
}

TEST_CASE("softmax_cross_entropy: the gradient is the derivative of capped, smoothed loss and z-loss") {
    Classifier<float> c({1, 40, 40}, 8.0f);
    c.shaping = {15.0f, {0.02f, 0.25f}};
    const auto objective = [&](int column, double step) {
        auto x = to_doubles(c.logits);
        x[static_cast<size_t>(column)] += step;
        double sum = 0, mean = 0;
        for (double& v : x) sum += std::exp(v = 15 * std::tanh(v / 15)), mean += v / 40;
        const double log_z = std::log(sum);
        return log_z - 0.75 * x[static_cast<size_t>(c.targets[0])] - 0.25 * mean + 0.02 * log_z * log_z;
    };
    Classifier<float> run = c;
    run.run(1.0f, nullptr, true);
    for (int column = 0; column < 40; column++) {
        const double slope = (objective(column, 1e-5) - objective(column, -1e-5)) / 2e-5;
        CHECK(std::fabs(static_cast<double>(run.logits[static_cast<size_t>(column)]) - slope) < 1e-6);
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
    for (const LogitShaping& shaping :
         {LogitShaping{-1.0f, {}}, {0, {-1.0f}}, {kNaN, {}}, {0, {0, -0.1f}}, {0, {0, 1.0f}}})
        CHECK_THROWS_AS(
            softmax_cross_entropy<float>(x, x, targets.get(), 1.0f, nullptr, 1, 8, 8, true, test_stream(), shaping),
            Error);
}

TEST_CASE("sum_losses counts targets and sums in double") {
    for (int n : {0, 1, 255, 256, 10007}) {
        CAPTURE(n);
        auto losses = random_normal<float>(n, 1.0f, 1, 5.0f);
        std::vector<int> targets(n);
        double sum = 0;
        int counted = 0;
        for (int i = 0; i < n; i++) {
            targets[i] = i % 5 == 3 ? -1 : i;
            if (targets[i] < 0) losses[i] = 0.0f;
            sum += losses[i];
            counted += targets[i] >= 0;
        }
        DeviceArray<double> total(1);
        DeviceArray<int> count(1);
        const DeviceArray<float> device_losses(losses);
        const DeviceArray<int> device_targets(targets);
        for (int times : {1, 2}) {
            sum_losses(total, count, device_losses.get(), device_targets.get(), n, times > 1, test_stream());
            CHECK(std::fabs(total.download()[0] - times * sum) <= 1e-14 * n * sum);
            CHECK(count.download() == std::vector<int>{times * counted});
        }
    }
    const DeviceArray<float> losses(std::vector<float>{1.0f, kNaN, 2.0f});
    const DeviceArray<int> targets(std::vector<int>{3, 4, 5});
    DeviceArray<double> total(1);
    DeviceArray<int> count(1);
    sum_losses(total, count, losses.get(), targets.get(), 3, false, test_stream());
    CHECK(std::isnan(total.download()[0]));
}
