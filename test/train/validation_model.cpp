// Validation of FP8 runs in BF16: its losses are those of a BF16 run with the same weights, and the run that lends its
// memory does not notice.
#include "test/model/gpt2_fixture.h"
#include "test/model/modern_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kTokens = 32;  // of the one sequence of a micro-batch

// A model whose blocks have padding, some of it in memory that validation uses.
ModelConfig padded_model() {
    ModelConfig model = small_model(3, kTokens);
    model.heads = 3, model.channels = 96;
    return model;
}

TrainerConfig fp8_config(const ModelConfig& model) {
    const Fp8Config delayed;
    TrainerConfig config = trainer_config(model, 1, kTokens, Recompute::gelu, &delayed);
    config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
    config.clip = 1.0;
    return config;
}

Batch batch_of(int index) { return small_batch(index, kTokens); }

std::vector<float> losses_of(Trainer<bf16>& trainer) {
    const Batch batch = batch_of(100);
    return trainer.token_losses(batch.tokens.data(), batch.targets.data());
}

std::vector<float> validated(Trainer<bf16>& trainer) {
    const auto validation = trainer.validation();
    return losses_of(trainer);
}

// The losses of a BF16 run with the trainer's weights.
std::vector<float> losses_in_bf16(Trainer<bf16>& trainer) {
    TrainerConfig config = trainer_config(trainer.config().model, 1, kTokens, Recompute::none);
    Trainer<bf16> other(config, Comm::self());
    other.allocate();
    for (const TensorRow& row : all_tensors(config.model)) other.set_weight(row.name, trainer.get_weight(row.name));
    other.weights_are_set();
    return losses_of(other);
}

void check_losses(const TrainerConfig& config) {
    TestModel<bf16> test(config);
    test.trainer.initialize(1);
    for (int i = 0; i < 2; i++) {
        test.step(batch_of(i));
        const std::vector<float> in_fp8 = losses_of(test.trainer), in_bf16 = validated(test.trainer);
        CHECK(same_bits(in_bf16, losses_in_bf16(test.trainer)));
        CHECK(!same_bits(in_bf16, in_fp8));
        CHECK(same_bits(losses_of(test.trainer), in_fp8));
    }
}

}  // namespace

TEST_CASE("validation of FP8 runs has the losses of a BF16 run with the same weights") {
    TrainerConfig config = fp8_config(padded_model());
    SUBCASE("recompute none") { config.recompute = Recompute::none; }
    SUBCASE("recompute block") { config.recompute = Recompute::block; }
    SUBCASE("offloaded") { config.sharding.offload_state = config.offload_residuals = true; }
    SUBCASE("narrow masters and gradients") {
        config.optimizer.masters = config.sharding.gradients = StateFormat::bf16;
    }
    SUBCASE("the head in FP8") { config.fp8_layers = fp8_layers_from_text("all,+lm_head"); }
    SUBCASE("codes of working copies") { config.fp8.recipe = Fp8Recipe::mxfp8; }
    SUBCASE("layers that may leave FP8") { config.fp8.until = 10; }
    check_losses(config);
}

TEST_CASE("validation of FP8 runs: models with rotary positions") {
    for (const char* name : {"llama", "qwen3", "nano"}) {
        CAPTURE(name);
        ModelConfig model = modern_config(name);
        model.context = kTokens;
        check_losses(fp8_config(model));
    }
}

TEST_CASE("validation of FP8 runs changes nothing in them") {
    for (const StateFormat gradients : {StateFormat::fp32, StateFormat::bf16}) {
        CAPTURE(word_of(gradients));
        TrainerConfig config = fp8_config(padded_model());
        config.sharding.gradients = gradients;
        config.qk_clip = 0.01;
        config.signals_every = config.verify_every = 2;
        TestModel<bf16> plain(config), watched(config);
        for (TestModel<bf16>* test : {&plain, &watched}) test->trainer.initialize(1);
        std::vector<int> prompt = {1, 2, 3};
        for (int i = 0; i < 3; i++) {
            watched.model.next_token_logits(prompt.data(), 3, watched.stream);
            validated(watched.trainer);
            const StepRecord a = plain.step(batch_of(i)), b = watched.step(batch_of(i));
            CHECK(a.loss == b.loss);
            CHECK(a.norm == b.norm);
            CHECK((!b.verified || b.verified->difference.empty()));
            CHECK(same_bits(plain.model.next_token_logits(prompt.data(), 3, plain.stream),
                            watched.model.next_token_logits(prompt.data(), 3, watched.stream)));
        }
        CHECK(same_bits(all_weights(plain.weights, plain.stream), all_weights(watched.weights, watched.stream)));
    }
}

TEST_CASE("validation of FP8 runs: with real models, lent memory suffices") {
    for (const char* name : {"d12", "llama3.2-1b"}) {
        CAPTURE(name);
        const Fp8Config delayed;
        TrainerConfig config = trainer_config(find_model(name), 4, 1024, Recompute::block, &delayed);
        config.offload_residuals = true;
        const MemoryByKind with = Trainer<bf16>(config, Comm::self()).memory();
        config.val_precision = ValPrecision::run;
        const MemoryByKind without = Trainer<bf16>(config, Comm::self()).memory();
        CHECK(with.total() == without.total());
        CHECK(with.offloaded == without.offloaded);
    }
}
