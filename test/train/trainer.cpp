// A trainer as a whole: its steps come in one order, it uses the memory that it has planned, and work between two steps
// leaves no trace in them.
#include "llmc/train/trainer.h"
#include "llmc/train/staging.h"

#include "llmc/shard/state_values.h"
#include "llmc/train/state.h"

#include "test/model/gpt2_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

TrainerConfig small_config(bool fp8, int micro_steps) {
    const Fp8Config delayed;
    TrainerConfig config = trainer_config(small_model(2, 32), 2, 32, Recompute::gelu, fp8 ? &delayed : nullptr);
    config.micro_steps = micro_steps;
    config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
    config.clip = 1.0;
    return config;
}

template <class Real>
void step(TestModel<Real>& test, int index) {
    test.begin_step();
    for (int m = 0; m < test.trainer.config().micro_steps; m++) {
        const Batch batch = small_batch(index * 8 + m, 64);
        test.trainer.micro_step(batch.tokens.data(), batch.targets.data());
    }
    test.finish_step();
}

}  // namespace

TEST_CASE("trainer: a step has as many micro-steps as were asked for") {
    TestModel<float> test(small_config(false, 2));
    test.trainer.initialize(1);
    const Batch batch = small_batch(0, 64);
    for (const int given : {0, 1, 3}) {
        CAPTURE(given);
        test.begin_step();
        for (int m = 0; m < given; m++) test.trainer.micro_step(batch.tokens.data(), batch.targets.data());
        CHECK_THROWS_AS(test.trainer.finish_step(), Error);
    }
    step(test, 0);
    CHECK(test.trainer.steps() == 1);
    // Per micro-step; GELU is recomputed without a product.
    CHECK(test.trainer.submitted().products.fp32 == 3 * (4 * 2 + 1));
}

TEST_CASE_TEMPLATE("trainer: takes the memory that it has planned", Real, float, bf16) {
    constexpr StateFormat fp32 = StateFormat::fp32, bf16 = StateFormat::bf16;
    for (const auto& [fp8, optimizer, narrow, offload] : {std::tuple{false, OptimizerKind::adamw, fp32, false},
                                                          {true, OptimizerKind::adamw, fp32, false},
                                                          {true, OptimizerKind::adamw, fp32, true},
                                                          {false, OptimizerKind::adamw, bf16, false},
                                                          {true, OptimizerKind::adamw, bf16, false},
                                                          {true, OptimizerKind::adamw, bf16, true},
                                                          {false, OptimizerKind::lion, fp32, false},
                                                          {false, OptimizerKind::normuon, bf16, false},
                                                          {true, OptimizerKind::normuon, fp32, true}}) {
        if (fp8 && std::is_same_v<Real, float>) continue;
        TrainerConfig config = small_config(fp8, 1);
        config.optimizer.kind = optimizer, config.optimizer.masters = config.sharding.gradients = narrow;
        if (fp8 && narrow == bf16) config.optimizer.adam_moments = StateFormat::fp8;
        config.sharding.offload_state = config.offload_residuals = offload;
        config.signals_every = narrow == bf16 ? 1 : 0;
        const MemoryByKind planned = Trainer<Real>(config, Comm::self()).memory();
        size_t before[kMemoryKinds];
        for (size_t kind = 0; kind < kMemoryKinds; kind++) before[kind] = device_memory_use(MemoryKind(kind)).bytes;
        TestModel<Real> test(config);
        for (size_t kind = 0; kind < kMemoryKinds; kind++) {
            CAPTURE(kMemoryKindNames[kind]);
            CHECK(device_memory_use(MemoryKind(kind)).bytes - before[kind] == planned[MemoryKind(kind)]);
        }
    }
}

TEST_CASE("trainer: the planned memory for a checkpoint's copy is what it takes") {
    for (const auto& [masters, moments] : {std::pair{StateFormat::fp32, StateFormat::fp32},
                                           {StateFormat::fp32, StateFormat::bf16},
                                           {StateFormat::bf16, StateFormat::bf16},
                                           {StateFormat::fp32, StateFormat::fp8}}) {
        TrainerConfig config = small_config(false, 1);
        config.optimizer.masters = masters, config.optimizer.adam_moments = moments;
        Trainer<bf16> trainer(config, Comm::self());
        const size_t planned = trainer.memory().staging;
        trainer.allocate();
        size_t saved = 0;
        for (const DeviceSlice& part : trainer.state_slices()) saved += staged_bytes(part);
        CHECK(planned == saved);
        if (moments == StateFormat::fp8) continue;
        // Master and two moments of every parameter.
        const size_t bytes = bytes_of(masters) + 2 * bytes_of(moments);
        CHECK(planned == bytes * static_cast<size_t>(trainer.config().model.padded_parameters()));
    }
}

// Also verified steps and the state that checkpoints save, which read masters and moments in host memory.
TEST_CASE("trainer: offloaded state has the same bits") {
    for (const auto& [fp8, optimizer, masters, moments] :
         {std::tuple{true, OptimizerKind::adamw, StateFormat::fp32, StateFormat::fp32},
          {true, OptimizerKind::adamw, StateFormat::bf16, StateFormat::fp8},
          {false, OptimizerKind::adamw, StateFormat::fp32, StateFormat::bf16},
          {true, OptimizerKind::normuon, StateFormat::bf16, StateFormat::fp32},
          {false, OptimizerKind::lion, StateFormat::fp32, StateFormat::fp32}}) {
        CAPTURE(fp8);
        std::vector<std::vector<float>> results[2];
        for (const bool offload : {false, true}) {
            TrainerConfig config = small_config(fp8, 2);
            config.optimizer.kind = optimizer;
            config.optimizer.masters = masters, config.optimizer.adam_moments = moments;
            config.sharding.offload_state = config.offload_residuals = offload;
            config.verify_every = 2;
            config.model.layers = 4;
            TestModel<bf16> test(config);
            test.trainer.initialize(1);
            for (int i = 0; i < 4; i++) step(test, i);
            results[offload] = all_weights(test.weights, test.stream);
            for (const DeviceSlice& part : test.trainer.state_slices())
                results[offload].push_back(read_state(part.values, part.slice.count, test.stream));
        }
        CHECK(same_bits(results[0], results[1]));
    }
}

TEST_CASE("trainer: evaluation, sampling and reading weights change nothing") {
    for (const bool fp8 : {false, true}) {
        TestModel<bf16> plain(small_config(fp8, 2)), watched(small_config(fp8, 2));
        plain.trainer.initialize(1);
        watched.trainer.initialize(1);
        const Batch other = small_batch(100, 64);
        for (int i = 0; i < 3; i++) {
            step(plain, i);
            watched.trainer.evaluate(other.tokens.data(), other.targets.data());
            watched.model.next_token_logits(other.tokens.data(), 20, watched.stream);
            watched.trainer.get_weight("h.1.fc.weight");
            step(watched, i);
        }
        CHECK(same_bits(all_weights(plain.weights, plain.stream), all_weights(watched.weights, watched.stream)));
        // A control: another batch does change it.
        step(plain, 3);
        step(watched, 4);
        CHECK(!same_bits(all_weights(plain.weights, plain.stream), all_weights(watched.weights, watched.stream)));
    }
}
