// Llama, Qwen3 and nano over ranks: every stage computes what one rank computes.
#include <optional>

#include "llmc/plan/plan.h"
#include "test/comm/ranks/ranks.h"
#include "test/model/modern_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

struct Case {
    const char* model;
    std::optional<Fp8Recipe> recipe;
    const char* fp8_layers = "all";
};
// Heads: untied, also in FP8, and tied to the embedding.
const Case kCases[] = {
    {"llama", Fp8Recipe::delayed, "all,+lm_head"}, {"qwen3", std::nullopt}, {"nano", Fp8Recipe::current}};

// Losses of two steps of two micro-steps per rank, and the weights after them.
struct Result {
    std::vector<double> losses;
    std::vector<std::vector<float>> weights;
};

Result train(const Case& c, int stage, const Comm& comm, int micro_steps) {
    Fp8Config fp8;
    if (c.recipe) fp8.recipe = *c.recipe;
    TrainerConfig config = modern_training(c.model, c.recipe ? &fp8 : nullptr, Recompute::norm);
    config.fp8_layers = fp8_layers_from_text(c.fp8_layers);
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
            const Batch batch = some_modern_batch((step * micro_steps + m) * comm.world() + comm.rank(), 128);
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

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("modern blocks: every stage trains as one rank does") {
    const bool exact = world().reduce_order() == ReduceOrder::rank;
    for (const Case& c : kCases) {
        CAPTURE(c.model);
        const Result alone = train(c, 0, Comm::self(world().reduce_order()), 2 * world().world());
        for (int stage = 0; stage <= 3; stage++) {
            CAPTURE(stage);
            const Result all = train(c, stage, world(), 2);
            for (size_t i = 0; i < alone.losses.size(); i++) {
                if (exact)
                    CHECK(all.losses[i] == alone.losses[i]);
                else
                    CHECK(all.losses[i] == doctest::Approx(alone.losses[i]).epsilon(1e-3));
            }
            if (exact) CHECK(same_bits(all.weights, alone.weights));
        }
    }
}

TEST_SUITE_END();
