// Training with gradients in FP8 between ranks: equal bits in every stage, errors within the bound of the cast, and
// skipped steps. Resuming is tested end to end (test_run_fp8_wire.py).
#include "llmc/comm/reductions.h"

#include <cmath>
#include <map>

#include "llmc/device/transfer.h"
#include "test/comm/ranks/sharded_run.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

TrainerConfig config_of(int stage, Wire wire, int micro_steps = 1, int within = 0) {
    TrainerConfig config = trainer_config({.stage = stage, .micro_steps = micro_steps, .wire = wire, .within = within});
    config.loss_scale = loss_scale_config("dynamic");
    config.loss_scale.growth_interval = 2;
    return config;
}

template <class Real>
struct Run : ShardedRun<Real> {
    using Base = ShardedRun<Real>;
    explicit Run(const TrainerConfig& config) : Base(config, world()) {}

    std::vector<bf16> residuals() {
        Gradients& gradients = Base::trainer.gradients();
        return read_back(gradients.residuals(), gradients.residual_count(), Base::stream);
    }
    void forget_residuals() {
        Gradients& gradients = Base::trainer.gradients();
        set_bytes(gradients.residuals(), 0, gradients.residual_count() * sizeof(bf16), Base::stream);
        synchronize(Base::stream);
    }
};

double norm_of(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    double sum = 0;
    for (size_t t = 0; t < a.size(); t++)
        for (size_t i = 0; i < a[t].size(); i++) sum += std::pow(static_cast<double>(a[t][i]) - b[t][i], 2);
    return std::sqrt(sum);
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("gradients in FP8: equal bits in every stage, residuals included") {
    const bool ordered = world().reduce_order() == ReduceOrder::rank;
    for (const int micro_steps : {1, 2}) {
        std::vector<std::vector<float>> first_weights;
        std::vector<bf16> first_residuals;
        std::vector<double> first_losses;
        for (int stage = 0; stage <= 3; stage++) {
            CAPTURE(stage);
            CAPTURE(micro_steps);
            Run<bf16> run(config_of(stage, Wire::fp8, micro_steps));
            for (int i = 0; i < 5; i++) run.step(i);
            CHECK(run.losses.front() > run.losses.back() * 1.01);  // it learns
            if (world().world() == 1) {
                CHECK(run.trainer.gradients().residuals() == nullptr);
                continue;
            }
            const std::vector<bf16> residuals = run.residuals();
            CHECK(!same_bits(residuals, std::vector<bf16>(residuals.size())));
            // Otherwise stages 0 and 1 add up micro-steps before they send, while 2 and 3 send each micro-step.
            if (stage > 0 && (ordered || micro_steps == 1 || stage % 2 == 1)) {
                CHECK(same_bits(run.weights(), first_weights));
                CHECK(same_bits(residuals, first_residuals));
                CHECK(run.losses == first_losses);
            }
            first_weights = run.weights(), first_residuals = residuals, first_losses = run.losses;
        }
    }
}

TEST_CASE("gradients in FP8: memory of residuals is planned, and is the same in every stage") {
    for (int stage = 0; stage <= 3; stage++) {
        Trainer<bf16> half(config_of(stage, Wire::bf16), world()), eighth(config_of(stage, Wire::fp8), world());
        const size_t residuals = eighth.table().count() * sizeof(bf16);
        if (world().world() == 1) {
            CHECK(eighth.memory().gradients == half.memory().gradients);
            continue;
        }
        CHECK(eighth.gradients().residual_count() == eighth.table().count());
        CHECK(eighth.memory().staging - half.memory().staging == residuals);
        size_t largest = 0;  // largest among the sums
        for (size_t u = 0; u < eighth.layout().units(); u++)
            largest = std::max(largest, eighth.layout().summed(u).count);
        const auto workspace = [&](Wire wire) { return world().reduce_scatter_workspace(largest, wire, stage > 1); };
        const auto planned = [](size_t bytes) { return div_up(bytes, device_alignment()) * device_alignment(); };
        CHECK(eighth.memory().gradients - planned(residuals) - planned(workspace(Wire::fp8)) ==
              half.memory().gradients - planned(workspace(Wire::bf16)));
        CHECK(workspace(Wire::fp8) < 0.6 * static_cast<double>(workspace(Wire::bf16)));
    }
}

// One step of SGD: weights differ by the rate times the loss of the ranks' casts. A code is off by at most 2^-4 of its
// value, or by half of the smallest step, 2^-10 where the block's largest value is above 224: 128 of these are less
// than 5.1e-5 of the block's norm. Updates are rounded to FP32: 2^-24 of a weight, and of its change.
TEST_CASE("gradients in FP8: after one SGD step, weights are within the cast's error of FP32's") {
    if (world().world() == 1) return;
    constexpr double rate = 0.5;
    std::map<Wire, std::vector<std::vector<float>>> weights;
    double norms = 0;  // sum over the ranks' gradients
    for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp8}) {
        TrainerConfig config = config_of(2, wire);
        config.optimizer = {.kind = OptimizerKind::sgd, .weight_decay = 0, .momentum = 0};
        config.schedule.lr = rate, config.clip = 0, config.loss_scale = loss_scale_config("off");
        Run<float> run(config);
        double squares = 0;
        run.trainer.gradients().observe([&](size_t unit, const float* gradient) {
            for (const float g : read_back(gradient, run.trainer.table().unit(unit).count, run.trainer.stream()))
                squares += static_cast<double>(g) * static_cast<double>(g);
        });
        run.step(0);
        weights[wire] = run.weights();
        std::vector<double> all(as_size(world().world()));
        squares = std::sqrt(squares);
        world().host_all_gather(all.data(), &squares, sizeof squares);
        norms = 0;
        for (const double norm : all) norms += norm;
    }
    const std::vector<std::vector<float>>& exact = weights[Wire::fp32];
    const std::vector<std::vector<float>> zeros = [&] {
        std::vector<std::vector<float>> all = exact;
        for (std::vector<float>& tensor : all) std::fill(tensor.begin(), tensor.end(), 0.0f);
        return all;
    }();
    const double rounding = std::ldexp(norm_of(exact, zeros), -22);
    const double eighth = norm_of(weights[Wire::fp8], exact), half = norm_of(weights[Wire::bf16], exact);
    CHECK(eighth <= rate * norms * (std::ldexp(1, -4) + 5.1e-5) + rounding);
    CHECK(half <= rate * norms * std::ldexp(1, -8) + rounding);
    CHECK(eighth > 4 * half);  // shows that FP8 was sent
}

TEST_CASE("gradients in FP8: a non-finite step is skipped everywhere and leaves no residuals" *
          doctest::test_suite(kTrainingLong)) {
    if (world().world() == 1) return;
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        Run<bf16> skipped(config_of(stage, Wire::fp8)), fresh(config_of(stage, Wire::fp8)),
            other(config_of(stage, Wire::fp8));
        for (Run<bf16>* run : {&skipped, &fresh, &other}) run->step(0);
        const auto before = skipped.weights();
        for (Run<bf16>* run : {&skipped, &fresh}) CHECK(run->overflow_on_the_last_rank().is_skipped());
        CHECK(same_bits(skipped.weights(), before));
        for (const bf16 owed : skipped.residuals())
            if (!is_finite(to_float(owed))) FAIL_CHECK("a residual is not finite");
        fresh.forget_residuals();
        skipped.step(1), fresh.step(1);
        CHECK(same_bits(skipped.weights(), fresh.weights()));
        CHECK(same_bits(skipped.residuals(), fresh.residuals()));
        // A control: after a step that was not skipped, the residuals do count.
        Run<bf16> forgetful(config_of(stage, Wire::fp8));
        forgetful.step(0);
        forgetful.forget_residuals();
        forgetful.step(1), other.step(1);
        CHECK(!same_bits(forgetful.weights(), other.weights()));
    }
}

TEST_CASE("gradients in FP8: groups of ranks have the same weights") {
    for (int within = 1; within < world().world(); within++) {
        if (world().world() % within != 0) continue;
        CAPTURE(within);
        Run<bf16> run(config_of(3, Wire::fp8, 2, within));
        for (int i = 0; i < 4; i++) run.step(i);
        CHECK(run.losses.front() > run.losses.back() * 1.01);
        CHECK((run.trainer.gradients().residuals() == nullptr) == (within == 1));
        check_same_weights(run);
    }
}

TEST_SUITE_END();
