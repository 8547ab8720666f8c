// Training of a small model over ranks, for the tests of test/comm/ranks/.
#pragma once
#include <random>

#include "llmc/train/step_results.h"
#include "llmc/train/trainer.h"
#include "test/comm/ranks/ranks.h"
#include "test/model/all_weights.h"

namespace llmc::test {

constexpr int kB = 1, kT = 32, kSteps = 3;

inline ModelConfig small_ranks_model(int blocks = 3) {  // sizes that no number of ranks divides; more blocks than slots
    ModelConfig config;
    config.name = "small";
    config.layers = blocks, config.heads = 3, config.channels = 96, config.vocab = 101, config.context = kT;
    return config;
}

struct RunConfig {
    int stage = 0, micro_steps = 1;
    const char* recipe = nullptr;  // nullptr for no FP8
    const char* layers = "all";
    Wire wire = Wire::fp32;
    Recompute recompute = Recompute::gelu;
    Fp8FallbackRule fallback = {};
    int within = 0;
    int blocks = 3;
    StateFormat masters = StateFormat::fp32, gradients = StateFormat::fp32, moments = StateFormat::fp32;
    ClipKind clip_kind = ClipKind::norm;
    double clip = 1.0;
    int64_t signals_every = 0;
    double qk_clip = 0;
};

inline TrainerConfig trainer_config(const RunConfig& c) {
    TrainerConfig config;
    config.model = small_ranks_model(c.blocks);
    config.batch = kB, config.seq = kT;
    config.micro_steps = c.micro_steps;
    config.recompute = c.recompute;
    if (c.recipe) {
        config.precision = Precision::fp8;
        config.fp8 = {.recipe = value_of_word<Fp8Recipe>(c.recipe).value(),
                      .margin = c.fallback.steps > 0 ? 5 : 0,
                      .fallback = c.fallback};
    }
    config.fp8_layers = fp8_layers_from_text(c.layers);
    config.sharding.stage = c.stage;
    config.sharding.wire = c.wire;
    config.sharding.within = c.within;
    config.sharding.gradients = c.gradients;
    config.schedule = {ScheduleKind::constant, 2e-3, 0, 100, 0};
    config.clip = c.clip;
    config.optimizer.clip_kind = c.clip_kind;
    config.optimizer.masters = c.masters, config.optimizer.adam_moments = c.moments;
    config.loss_scale = loss_scale_config(c.recipe ? "dynamic" : "off");
    config.signals_every = c.signals_every;
    config.qk_clip = c.qk_clip;
    return config;
}

// Trains some steps on batches that depend only on their place in the global order.
template <class Real>
struct ShardedRun {
    Trainer<Real> trainer;
    const Comm& comm = trainer.comm();
    Fp8Registry* const fp8 = trainer.fp8();
    const Optimizer<Real>& optimizer = trainer.optimizer();
    stream_t stream{};
    std::vector<double> losses, norms;
    std::vector<TensorSignal> signals;  // of the last step
    size_t left = 0;                    // layers that have left FP8

    ShardedRun(const RunConfig& c, const Comm& comm) : ShardedRun(trainer_config(c), comm) {}
    ShardedRun(const TrainerConfig& config, const Comm& comm) : trainer(config, comm) {
        trainer.allocate();
        stream = trainer.stream();
        trainer.initialize(7);
    }
    ~ShardedRun() { synchronize(stream); }

    // `position` counts micro-batches in the global order.
    void micro_step(int position) {
        std::mt19937 engine(static_cast<uint32_t>(position) + 1);
        std::vector<int> tokens, targets;
        int token = static_cast<int>(engine() % 101);
        for (int i = 0; i < trainer.config().batch * trainer.config().seq; i++) {
            tokens.push_back(token);
            token = engine() % 4 ? (3 * token + 7) % 101 : static_cast<int>(engine() % 101);
            targets.push_back(token);
        }
        trainer.micro_step(tokens.data(), targets.data());
    }
    StepRecord finish_step() {
        left += trainer.finish_step().size();
        return *trainer.take_result(0);
    }
    // A step in which only the last rank's loss scale is infinite for a moment, and with it the rank's gradients.
    StepRecord overflow_on_the_last_rank() {
        float* scale = const_cast<float*>(optimizer.loss_scale());
        const float good = read(scale);
        if (comm.rank() + 1 == comm.world()) write_through(scale, INFINITY, stream);
        trainer.begin_step({.count_losses = true});
        micro_step(100 + comm.rank());
        write_through(scale, good, stream);
        return finish_step();
    }
    void step(int index) {
        trainer.begin_step({.count_losses = true});
        const int micro_steps = trainer.config().micro_steps;
        for (int m = 0; m < micro_steps; m++) micro_step((index * micro_steps + m) * comm.world() + comm.rank());
        const StepRecord result = finish_step();
        losses.push_back(result.loss);
        norms.push_back(result.norm);
        signals = result.signals;
    }
    void train() {
        for (int i = 0; i < kSteps; i++) step(i);
    }
    template <class T>
    T read(const T* device) {
        return read_back(device, stream);
    }
    std::vector<std::vector<float>> weights() { return all_weights(trainer.weights(), stream); }
    // A number that tells weights apart, the same on every rank if its weights are.
    double sum_of_weights() {
        double sum = 0;
        for (const std::vector<float>& tensor : weights())
            for (const float value : tensor) sum = 1.000001 * sum + value;
        return sum;
    }
};

// Checks that all ranks have the same weights.
template <class Run>
void check_same_weights(Run& run) {
    const double sum = run.sum_of_weights();
    std::vector<double> sums(as_size(world().world()));
    world().host_all_gather(sums.data(), &sum, sizeof sum);
    for (const double other : sums) CHECK(other == sum);
}

}  // namespace llmc::test
