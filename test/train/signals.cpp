// Norms by tensor, against the weights before and after a step and the gradients between.
#include "llmc/train/signals.h"

#include <cmath>

#include "llmc/device/transfer.h"
#include "test/model/gpt2_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

TrainerConfig config_with(OptimizerKind optimizer, StateFormat masters) {
    TrainerConfig config = trainer_config(small_model(2, 32), 2, 32, Recompute::none, nullptr);
    config.schedule = {ScheduleKind::constant, 1e-2, 0, 100, 0};
    config.optimizer.kind = optimizer, config.optimizer.masters = masters;
    config.clip = 1e-2;
    config.loss_scale.dynamic = false, config.loss_scale.initial = 256;
    config.signals_every = 2;
    return config;
}

double norm_of(const std::vector<float>& values, const std::vector<float>& from = {}) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const double x = static_cast<double>(values[i]) - (from.empty() ? 0.0 : from[i]);
        sum += x * x;
    }
    return std::sqrt(sum);
}

}  // namespace

TEST_CASE_TEMPLATE("signals: norms of every tensor's gradient, weights and update", Real, float, bf16) {
    for (const auto& [optimizer, masters] : {std::pair{OptimizerKind::adamw, StateFormat::fp32},
                                             {OptimizerKind::adamw, StateFormat::bf16},
                                             {OptimizerKind::muon, StateFormat::fp32}}) {
        if (std::is_same_v<Real, float> && masters == StateFormat::bf16) continue;
        TestModel<Real> test(config_with(optimizer, masters));
        test.trainer.initialize(3);
        for (int step = 1; step <= 4; step++) {
            std::map<std::string, std::vector<float>> before;
            for (const Unit& unit : test.table.units())
                for (const ParameterTensor& tensor : unit.tensors)
                    before[tensor.name] = test.trainer.get_weight(tensor.name);
            const StepRecord record = test.step(small_batch(step, 64));
            REQUIRE(record.signals.size() == (step % 2 == 0 ? before.size() : 0));
            double squares = 0;
            for (const TensorSignal& signal : record.signals) {
                CAPTURE(signal.tensor);
                const std::vector<float> after = test.trainer.get_weight(signal.tensor);
                CHECK(signal.weight == doctest::Approx(norm_of(after)).epsilon(1e-6));
                CHECK(signal.update == doctest::Approx(norm_of(after, before[signal.tensor])).epsilon(1e-6));
                const ParameterTable::Place place = test.table.find(signal.tensor);
                const ParameterTensor& tensor = test.table.unit(place.unit).tensors[place.tensor];
                const float* const gradient = test.gradients.slice(place.unit).template as<float>() + tensor.offset;
                const double norm = norm_of(read_back(gradient, tensor.count(), test.stream)) / 256;
                CHECK(signal.gradient == doctest::Approx(norm).epsilon(1e-6));
                squares += signal.gradient * signal.gradient;
            }
            if (!record.signals.empty()) CHECK(std::sqrt(squares) == doctest::Approx(record.norm).epsilon(1e-5));
        }
    }
}

TEST_CASE("signals: the estimates of the gradient noise are right in the mean") {
    // Two micro-batches of 4 tokens, whose gradients are 3 plus or minus 2: the variance of a token's is 16.
    double square = 0, noise = 0;
    for (const double first : {1.0, 5.0})
        for (const double second : {1.0, 5.0}) {
            const double both = (first + second) / 2;
            const GradientNoise estimate = gradient_noise(first * first, both * both, 4, 2);
            square += estimate.square / 4;
            noise += estimate.noise / 4;
        }
    CHECK(square == doctest::Approx(9).epsilon(1e-12));
    CHECK(noise == doctest::Approx(16).epsilon(1e-12));
    CHECK(GradientNoise{9, 16}.scale() == doctest::Approx(16.0 / 9).epsilon(1e-12));
}

TEST_CASE("signals: the gradient noise of a step, from the gradients of its micro-batches") {
    constexpr int kParts = 3;
    TrainerConfig config = config_with(OptimizerKind::adamw, StateFormat::fp32);
    config.signals_every = 1;
    TestModel<float> one(config);
    config.micro_steps = kParts;
    TestModel<float> test(config);
    std::vector<double> sum;
    double first = 0;
    test.trainer.initialize(3);
    test.begin_step();
    for (int i = 0; i < kParts; i++) {
        const Batch batch = small_batch(i, 64);
        test.trainer.micro_step(batch.tokens.data(), batch.targets.data());
        one.trainer.initialize(3);
        CHECK_FALSE(one.step(batch).noise);  // a step of one micro-batch has no noise to see
        size_t at = 0;
        for (const std::vector<float>& gradient : one.all_gradients())
            for (const float value : gradient) {
                if (i == 0) sum.push_back(0), first += std::pow(value / 256.0, 2);
                sum[at++] += value / 256.0;
            }
    }
    double whole = 0;
    for (const double value : sum) whole += std::pow(value / kParts, 2);
    const StepRecord record = test.finish_step();
    REQUIRE(record.noise);
    const GradientNoise expected = gradient_noise(first, whole, 64, kParts);
    const double rounding = 1e-5 * (first + whole);
    CHECK(std::abs(record.noise->square - expected.square) <= kParts * rounding);
    CHECK(std::abs(record.noise->noise - expected.noise) <= 64 * kParts * rounding);
    CHECK(std::abs(first - whole) > 1e-3 * whole);  // otherwise the test would not see which of the two is which
}
