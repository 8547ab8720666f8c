// Other blocks than GPT-2's over ranks: every stage computes what one rank computes.
#include "llmc/plan/plan.h"
#include "test/comm/ranks/ranks.h"
#include "test/model/mlp_block.h"
#include "test/model/modern_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Losses of two steps of two micro-steps per rank, and the weights after them.
struct Result {
    std::vector<double> losses;
    std::vector<std::vector<float>> weights;
};

Result train(TrainerConfig config, int stage, const Comm& comm, int micro_steps) {
    config.sharding.stage = stage;
    config.micro_steps = micro_steps;
    Trainer<bf16> trainer(config, comm);
    trainer.allocate();
    trainer.initialize(3);
    Result result;
    const Traffic before = trainer.weights().comm().traffic();
    for (int step = 0; step < 2; step++) {
        trainer.begin_step({.count_losses = true});
        for (int m = 0; m < micro_steps; m++) {
            const int position = (step * micro_steps + m) * comm.world() + comm.rank();
            const Batch batch = small_batch(position, config.batch * config.seq);
            trainer.micro_step(batch.tokens.data(), batch.targets.data());
        }
        trainer.finish_step();
        result.losses.push_back(trainer.take_result(0)->loss);
        // Every stage sends the planned number of bytes: a separate head belongs to its unit.
        if (step > 0 || comm.world() == 1) continue;
        const auto calls = [](const Traffic& t) { return t.all_gather.calls + t.reduce_scatter.calls; };
        CHECK(calls(trainer.weights().comm().traffic()) - calls(before) ==
              static_cast<uint64_t>(sent_in_step(trainer.layout(), micro_steps, sizeof(bf16)).weights.calls));
    }
    result.weights = all_weights(trainer.weights(), trainer.stream());
    return result;
}

void check_stages(const TrainerConfig& config) {
    CAPTURE(config.model.name);
    const bool exact = world().reduce_order() == ReduceOrder::rank;
    const Result alone = train(config, 0, Comm::self(world().reduce_order()), 2 * world().world());
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        const Result all = train(config, stage, world(), 2);
        for (size_t i = 0; i < alone.losses.size(); i++) {
            if (exact)
                CHECK(all.losses[i] == alone.losses[i]);
            else
                CHECK(all.losses[i] == doctest::Approx(alone.losses[i]).epsilon(1e-3));
        }
        if (exact) CHECK(same_bits(all.weights, alone.weights));
    }
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("Llama, Qwen3 and nano: every stage trains as one rank does") {
    const Fp8Config delayed, current{.recipe = Fp8Recipe::current, .fallback = {}};
    TrainerConfig llama = modern_training("llama", &delayed, Recompute::norm);
    llama.fp8_layers = fp8_layers_from_text("all,+lm_head");  // an untied head in FP8
    check_stages(llama);
    check_stages(modern_training("qwen3", nullptr, Recompute::norm));
    check_stages(modern_training("nano", &current, Recompute::norm));  // its head is tied to the embedding
}

TEST_CASE("a block without attention: every stage trains as one rank does") {
    const Fp8Config delayed;
    check_stages(mlp_config(&delayed));
}

TEST_SUITE_END();
