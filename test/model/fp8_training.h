// A few steps of training in FP8 on the fixture, for the tests of model/.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "llmc/optim/step.h"
#include "test/model/gpt2_fixture.h"

namespace llmc::test {

inline Fp8Config recipe(Fp8Recipe recipe) {
    Fp8Config config;
    config.recipe = recipe;
    return config;
}

using Fp8Model = TestModel<bf16>;

// Training with everything that a step of the program does. lr_factor 0: the weights stay as they are.
struct Fp8Training {
    Gpt2Fixture fixture;
    int B = fixture.integer("batch"), T = fixture.integer("seq");
    Fp8Model test;
    Optimizer<bf16> optimizer;
    std::vector<Fp8Loss> losses;  // layers that the last step has moved to BF16

    Fp8Training(const Fp8Config& config, const std::string& loss_scale, Recompute recompute = Recompute::gelu,
                const std::string& layers = "all", double lr_factor = 1)
        : test(fixture_config(fixture), B, T, recompute, &config, layers),
          optimizer(test.parameters, {ScheduleKind::constant, lr_factor * fixture.number("lr"), 0, 100, 0},
                    {0.9, 0.95, 1e-8, 0.1}, 1.0, loss_scale_config(loss_scale)) {
        optimizer.allocate(test.stream);
        test.load(fixture);
    }

    void step(int index) {
        micro_step(index, 1.0f);
        finish_step();
    }
    // `weight`: of the loss, times what it is in a step.
    void micro_step(int index, float weight) {
        const Batch batch = fixture_batch(fixture, index % fixture.integer("steps"));
        test.model.train_micro_step(batch.tokens.data(), batch.targets.data(), weight / static_cast<float>(B * T),
                                    optimizer.loss_scale(), true, test.stream);
    }
    void finish_step() {
        test.fp8->check(test.stream);
        optimizer.update(test.model.train_loss_sum(), test.fp8->bad_flag(), test.stream);
        test.fp8->finish_step(optimizer.loss_scale_change(), test.stream);
        losses = test.model.fall_back(test.stream);
        test.model.prepare_weights(test.stream);
    }

    std::vector<std::vector<float>> weights() { return all_weights(test.parameters, test.stream); }

    std::vector<Fp8State> states() {
        return read_back(test.fp8->states(), static_cast<size_t>(test.fp8->count()), test.stream);
    }
};

// Channel `channel` of every row of the tensor times `factor`; what it was.
inline std::vector<float> enlarge_channel(Fp8Training& run, const char* name, size_t channel, float factor) {
    const auto place = run.test.table.find(name);
    const std::vector<float> before = run.test.parameters.get_tensor(place.unit, place.tensor, run.test.stream);
    std::vector<float> values = before;
    for (size_t i = channel; i < values.size(); i += static_cast<size_t>(run.test.config.channels)) values[i] *= factor;
    run.test.parameters.set_tensor(place.unit, place.tensor, values, run.test.stream);
    return before;
}

}  // namespace llmc::test
