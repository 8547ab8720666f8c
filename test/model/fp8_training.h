// A few training steps in FP8 on the fixture, for the tests of model/.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "test/model/gpt2_fixture.h"

namespace llmc::test {

using Fp8Model = TestModel<bf16>;

// Runs a layer of the blocks forward and backward by itself, in a micro-step of two sequences. `in` and `dinp` are
// (N, C), `out` and `dout` (N, OC). The step has begun; the layer's gradients are complete afterwards.
inline void run_layer(Fp8Model& test, Linear<bf16>& layer, bf16* out, bf16* dinp, bf16* in, bf16* dout) {
    DeviceArray<float> scratch(size_t{1} << 20);
    const size_t unit = layer.weight_place().unit;
    const LayerPass pass{PassKind::training, layer.shape().N, false, scratch, nullptr, test.stream};
    test.gradients.begin_micro_step(true, true);
    test.weights.gather(unit, test.stream);
    test.gradients.acquire(unit, test.stream);
    const Operand<bf16> x = layer.input(in, nullptr, pass);
    layer.forward(out, x, pass);
    layer.backward(dinp, {dout}, x, pass);
    test.weights.release(unit, test.stream);
    test.gradients.reduce(unit, test.stream);
    synchronize(test.stream);
}

inline TrainerConfig training_config(const Gpt2Fixture& fixture, const Fp8Config& config, const std::string& loss_scale,
                                     Recompute recompute, const std::string& layers, double lr_factor) {
    TrainerConfig training = trainer_config(fixture_config(fixture), fixture.integer("batch"), fixture.integer("seq"),
                                            recompute, &config, layers);
    training.schedule = {ScheduleKind::constant, lr_factor * fixture.number("lr"), 0, 100, 0};
    training.clip = 1.0;
    training.loss_scale = loss_scale_config(loss_scale);
    return training;
}

// Training on the fixture's batches. With lr_factor 0 the weights do not change.
struct Fp8Training {
    Gpt2Fixture fixture;
    int B = fixture.integer("batch"), T = fixture.integer("seq");
    Fp8Model test;
    const Optimizer<bf16>& optimizer = test.optimizer;

    Fp8Training(const Fp8Config& config, const std::string& loss_scale, Recompute recompute = Recompute::gelu,
                const std::string& layers = "all", double lr_factor = 1)
        : test(training_config(fixture, config, loss_scale, recompute, layers, lr_factor)) {
        test.load(fixture);
    }

    void step(int index, bool count_losses = true) {
        test.begin_step(count_losses);
        micro_step(index, 1.0f);
        finish_step();
    }
    // `weight` as in Trainer::micro_step().
    void micro_step(int index, float weight) {
        const Batch batch = fixture_batch(fixture, index % fixture.integer("steps"));
        test.trainer.micro_step(batch.tokens.data(), batch.targets.data(), weight);
    }
    void finish_step() { test.finish_step(); }

    std::vector<std::vector<float>> weights() { return all_weights(test.weights, test.stream); }

    std::vector<Fp8State> states() { return test.fp8_states(); }
};

inline bool same_states(Fp8Training& a, Fp8Training& b) {
    const std::vector<Fp8State> x = a.states(), y = b.states();
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(Fp8State)) == 0;
}

// Multiplies channel `channel` of every row of the tensor by `factor`. Returns the old values.
inline std::vector<float> enlarge_channel(Fp8Training& run, const char* name, size_t channel, float factor) {
    const auto place = run.test.table.find(name);
    const std::vector<float> before = run.test.weights.get_tensor(place.unit, place.tensor, run.test.stream);
    std::vector<float> values = before;
    for (size_t i = channel; i < values.size(); i += static_cast<size_t>(run.test.config.channels)) values[i] *= factor;
    run.test.weights.set_tensor(place.unit, place.tensor, values, run.test.stream);
    return before;
}

}  // namespace llmc::test
