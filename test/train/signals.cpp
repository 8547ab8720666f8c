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
