// Validation of FP8 runs in BF16, whose weights are gathered in the memory of gradients.
#include "test/comm/ranks/sharded_run.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::vector<float> losses_of(Trainer<bf16>& trainer, const std::vector<int>& tokens) {
    return trainer.token_losses(tokens.data(), tokens.data());
}

// The losses of one rank in BF16 with the weights of `trainer`.
std::vector<float> losses_in_bf16(Trainer<bf16>& trainer, const std::vector<int>& tokens) {
    Trainer<bf16> alone(trainer_config(RunConfig{.blocks = trainer.config().model.layers}), Comm::self());
    alone.allocate();
    for (const TensorRow& row : all_tensors(trainer.config().model))
        alone.set_weight(row.name, trainer.get_weight(row.name));
    alone.weights_are_set();
    return losses_of(alone, tokens);
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("validation of FP8 runs in BF16 is that of one rank in every stage, fits the plan and changes nothing") {
    const std::vector<int> tokens(kB * kT, 3 + world().rank());
    for (const StateFormat gradients : {StateFormat::fp32, StateFormat::bf16})
        for (int stage = 0; stage <= 3; stage++) {
            CAPTURE(word_of(gradients));
            CAPTURE(stage);
            TrainerConfig config =
                trainer_config({.stage = stage, .micro_steps = 2, .recipe = "delayed", .gradients = gradients});
            config.loss_scale = loss_scale_config("off");  // so that the norm has the bits of padding that is not 0
            ShardedRun<bf16> plain(config, world());
            const size_t before = device_memory_use(MemoryKind::gradients).bytes;
            ShardedRun<bf16> watched(config, world());
            CHECK(device_memory_use(MemoryKind::gradients).bytes - before == watched.trainer.memory().gradients);
            for (int i = 0; i < 3; i++) {
                plain.step(i);
                watched.step(i);
                std::vector<float> in_bf16;
                {
                    const auto validation = watched.trainer.validation();
                    if (i == 1) continue;  // stopped before the first batch
                    for (int batch = 0; batch < 2; batch++) in_bf16 = losses_of(watched.trainer, tokens);
                }
                CHECK(same_bits(in_bf16, losses_in_bf16(watched.trainer, tokens)));
                CHECK(!same_bits(in_bf16, losses_of(watched.trainer, tokens)));
            }
            CHECK(watched.losses == plain.losses);
            CHECK(watched.norms == plain.norms);
            CHECK(same_bits(watched.weights(), plain.weights()));
        }
}

TEST_SUITE_END();
