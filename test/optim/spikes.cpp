// Spikes of loss and norm: the limits against a plain calculation in FP64, the values that enter the windows, and that
// a skipped spike leaves no trace in a run.
#include "llmc/optim/prepare_step.h"

#include <cmath>
#include <cstring>
#include <random>

#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The optimizer's part of a step, with a chosen loss and norm.
struct Detector {
    bool skip;
    DeviceArray<SpikeState> spikes{1};
    DeviceArray<StepState> state{std::vector<StepState>{StepState{}}};
    DeviceArray<double> loss{1}, partials{1};
    DeviceArray<int> bad{std::vector<int>{0}};

    explicit Detector(bool skip_) : skip(skip_) { reset_spikes(spikes, test_stream()); }
    StepState step(float loss_sum, float norm, int bad_tensor = 0) {
        loss.upload({loss_sum});
        partials.upload({static_cast<double>(norm) * norm});
        bad.upload({bad_tensor});
        prepare_step(state, partials, 1, loss, nullptr, bad, {ScheduleKind::constant, 1e-3, 0, 1000, 0}, {}, 0,
                     {spikes, skip}, test_stream());
        update_spikes(spikes, state, test_stream());
        return state.download()[0];
    }
    SpikeState window() { return spikes.download()[0]; }
};

double limit(std::vector<double> values) {
    if (values.size() > kSpikeWindow) values.erase(values.begin(), values.end() - kSpikeWindow);
    if (values.size() < kSpikeMinimum) return kInf;
    double mean = 0, square = 0;
    for (const double v : values) mean += v / static_cast<double>(values.size());
    for (const double v : values) square += (v - mean) * (v - mean) / static_cast<double>(values.size());
    return mean + 6 * std::max(std::sqrt(square), 0.01 * std::fabs(mean));
}

// True if the windows and their limits are equal.
bool same_windows(const SpikeState& a, const SpikeState& b) {
    return std::memcmp(a.loss, b.loss, sizeof a.loss) == 0 && std::memcmp(a.norm, b.norm, sizeof a.norm) == 0 &&
           a.accepted == b.accepted && a.loss_limit == b.loss_limit && a.norm_limit == b.norm_limit;
}

// Values around 4 and 1 in turn, so that mean and deviation are exact: limits 4 + 6 * 0.25 and 1 + 6 * 0.125.
constexpr double kLossLimit = 5.5, kNormLimit = 1.75;
void fill(Detector& detector, int steps) {
    for (int i = 0; i < steps; i++) {
        const float sign = i % 2 ? 1.0f : -1.0f;
        detector.step(4.0f + 0.25f * sign, 1.0f + 0.125f * sign);
    }
}

}  // namespace

TEST_CASE("spikes: limits are mean + 6 sigma of the last 128 values, none below 64") {
    Detector detector(false);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<double> losses, norms;
    for (int i = 0; i < 300; i++) {
        const float loss = 1000.0f * std::exp(-0.01f * static_cast<float>(i)) + normal(random);
        const float norm = std::sqrt(std::fabs(1.0f + 0.1f * normal(random)));
        const StepState state = detector.step(loss, norm);
        REQUIRE(state.spike == 0);
        if (i < kSpikeMinimum)
            CHECK(std::isinf(state.loss_limit));
        else
            CHECK(std::fabs(state.loss_limit / limit(losses) - 1) < 1e-6);  // limit of the previous values
        losses.push_back(loss);
        norms.push_back(state.norm);
        const SpikeState window = detector.window();
        REQUIRE(window.accepted == i + 1);
        if (i + 1 < kSpikeMinimum) {
            REQUIRE(std::isinf(window.loss_limit));
            REQUIRE(std::isinf(window.norm_limit));
        } else {
            CHECK(std::fabs(window.loss_limit / limit(losses) - 1) < 1e-12);
            CHECK(std::fabs(window.norm_limit / limit(norms) - 1) < 1e-12);
        }
    }
}

TEST_CASE("spikes: not detected after 63 values, detected after 64, in loss and norm separately") {
    for (const int count : {63, 64, 127, 128, 129, 200}) {
        CAPTURE(count);
        const int seen = count >= 64;
        Detector loss(false), norm(false), both(false);
        for (Detector* detector : {&loss, &norm, &both}) fill(*detector, count);
        CHECK(loss.step(100, 1).spike == seen * kLossSpike);
        CHECK(norm.step(4, 50).spike == seen * kNormSpike);
        CHECK(both.step(100, 50).spike == seen * (kLossSpike | kNormSpike));
    }
    Detector edge(false);
    fill(edge, 64);
    CHECK(edge.window().loss_limit == kLossLimit);
    CHECK(edge.window().norm_limit == kNormLimit);
    CHECK(edge.step(5.51f, 1).spike == kLossSpike);
    CHECK(edge.step(5.5f, 1.749f).spike == 0);
    CHECK(edge.step(-1000, 1).spike == 0);  // a fall is not a spike
}

TEST_CASE("spikes: reported without --skip-spikes, skipped with it, and never added to the windows") {
    for (const bool skip : {false, true}) {
        Detector detector(skip);
        fill(detector, 100);
        const SpikeState before = detector.window();
        for (int i = 1; i <= 5; i++) {
            const StepState state = detector.step(100, 1);
            CHECK(state.spike == kLossSpike);
            CHECK(state.loss_limit == static_cast<float>(before.loss_limit));
            CHECK(state.skip == skip);
            CHECK(state.skipped == (skip ? i : 0));
            CHECK(state.consecutive_skips == (skip ? i : 0));
            CHECK(state.applied == 100 + (skip ? 0 : i));
        }
        CHECK(same_windows(before, detector.window()));
        const StepState fine = detector.step(4, 1);
        CHECK(fine.spike == 0);
        CHECK(fine.consecutive_skips == 0);
        CHECK(detector.window().accepted == 101);
    }
}

TEST_CASE("spikes: values that hardly differ have limits of 6 % above their mean") {
    Detector detector(true);
    for (int i = 0; i < 100; i++) CHECK(detector.step(1e-4f, 2e-4f).skip == 0);
    CHECK(std::fabs(detector.window().loss_limit / 1.06e-4 - 1) < 1e-6);
    CHECK(std::fabs(detector.window().norm_limit / 2.12e-4 - 1) < 1e-6);
    CHECK(detector.step(1.05e-4f, 2e-4f).skip == 0);
    CHECK(detector.step(1.10e-4f, 2e-4f).spike == kLossSpike);
}

TEST_CASE("spikes: ten in a row are a new level, from which the windows start again") {
    for (const bool skip : {false, true}) {
        Detector detector(skip);
        fill(detector, 100);
        for (int i = 0; i < 9; i++) detector.step(100, 1);
        CHECK(detector.step(kNaN, 1).spike == 0);          // neither counts as one more nor ends the row
        CHECK(detector.step(100, 1).spike == kLossSpike);  // the tenth
        CHECK(detector.window().accepted == 0);
        for (int i = 0; i < 70; i++) {
            const StepState state = detector.step(100 + 0.5f * static_cast<float>(i % 2), 1);
            CHECK(state.spike == 0);
            CHECK(state.skip == 0);
        }
        CHECK(detector.window().loss_limit < 110);
        CHECK(detector.step(150, 1).spike == kLossSpike);
        // Nine spikes, a normal value, and nine more are not a new level.
        Detector other(skip);
        fill(other, 100);
        for (int i = 0; i < 19; i++) CHECK(other.step(i == 9 ? 4 : 100, 1).spike == (i == 9 ? 0 : kLossSpike));
        CHECK(other.window().accepted == 101);
    }
}

TEST_CASE("spikes: a value that is not finite is not a spike; its step is skipped, and it stays out of the windows") {
    for (const int count : {10, 100}) {
        Detector detector(true);
        fill(detector, count);
        const SpikeState before = detector.window();
        for (const float bad : {kNaN, kInf, -kInf}) {
            CHECK(detector.step(bad, 1).spike == 0);
            CHECK(detector.step(4, bad).spike == 0);
            CHECK(detector.step(bad, bad).skip == 1);
        }
        const StepState cast = detector.step(100, 50, 7);  // a bad cast, with values that would otherwise be spikes
        CHECK(cast.spike == 0);
        CHECK(cast.skip == 1);
        CHECK(cast.bad_tensor == 7);
        CHECK(same_windows(before, detector.window()));
        CHECK(detector.step(4, 1).bad_tensor == 0);
    }
}

TEST_CASE("spikes: a skipped one leaves the loss scale alone, an overflow halves it") {
    Detector detector(true);
    DeviceArray<LossScaleState> scale(1);
    const LossScaleConfig config{true, 1024.0f, 1000, 16777216.0f, 1.0f};
    reset_loss_scale(scale, config, test_stream());
    fill(detector, 64);
    auto scale_after = [&](float loss, float norm) {
        CHECK(detector.step(loss, norm).skip == 1);
        update_loss_scale(scale, detector.state, config, test_stream());
        return scale.download()[0].scale;
    };
    CHECK(scale_after(100, 1) == 1024.0f);
    CHECK(scale_after(4, 50) == 1024.0f);
    CHECK(scale.download()[0].clean_steps == 2);  // nothing overflowed
    CHECK(scale_after(kInf, 1) == 512.0f);
    CHECK(scale_after(kNaN, 50) == 256.0f);
}

TEST_CASE("spikes: a check without a state looks for none") {
    Detector detector(true);
    fill(detector, 100);
    detector.loss.upload({100});
    prepare_step(detector.state, detector.partials, 1, detector.loss, nullptr, nullptr,
                 {ScheduleKind::constant, 1e-3, 0, 1000, 0}, {}, 0, {}, test_stream());
    const StepState state = detector.state.download()[0];
    CHECK(state.spike == 0);
    CHECK(state.skip == 0);
    CHECK(std::isinf(state.loss_limit));
}
