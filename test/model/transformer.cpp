// The transformer over a block that is not GPT-2's: everything that depends on a model's table works with this one's.
#include "llmc/model/transformer.h"

#include <doctest/doctest.h>

#include "llmc/checkpoint/hf_weights.h"
#include "llmc/plan/plan.h"
#include "test/model/gpt2_fixture.h"
#include "test/model/mlp_block.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("transformer: the rows of a chunk of logits follow from the vocabulary") {
    const auto rows = [](int N, int padded_vocab) { return logits_chunk(N, padded_vocab, sizeof(bf16), kLogitsBytes); };
    CHECK(rows(1 << 16, 50304) == 8192);
    CHECK(rows(1 << 16, 128256) == 4096);
    CHECK(rows(1 << 16, 1 << 23) == 128);
    CHECK(rows(4000, 50304) == 4000);
    CHECK(rows(1 << 16, 512) == 1 << 16);
}

// Computes d loss / d weight of every tensor by differences in FP32, which needs nothing but the forward pass.
TEST_CASE("transformer: gradients of another block are those of its loss") {
    const TrainerConfig config = mlp_config(nullptr);
    Trainer<float> trainer(config, Comm::self());
    trainer.allocate();
    trainer.initialize(3);
    const Batch batch = small_batch(0, 64);
    trainer.begin_step({});
    trainer.micro_step(batch.tokens.data(), batch.targets.data());
    const auto loss = [&] {
        trainer.weights_are_set();
        const auto sum = trainer.evaluate(batch.tokens.data(), batch.targets.data());
        return sum.sum / sum.count;
    };
    for (const TensorRow& row : all_tensors(config.model)) {
        CAPTURE(row.name);
        const auto place = trainer.table().find(row.name);
        const std::vector<float> gradient =
            trainer.gradients().get_gradient(place.unit, place.tensor, trainer.stream());
        const std::vector<float> weight = trainer.get_weight(row.name);
        // Along the gradient the loss rises by its norm.
        double squares = 0;
        for (const float g : gradient) squares += static_cast<double>(g) * g;
        const double norm = std::sqrt(squares);
        REQUIRE(norm > 0);
        const double distance = 1e-2;
        double sides[2];
        for (const int side : {0, 1}) {
            std::vector<float> moved = weight;
            for (size_t i = 0; i < moved.size(); i++)
                moved[i] += static_cast<float>((side ? distance : -distance) * gradient[i] / norm);
            trainer.set_weight(row.name, moved);
            sides[side] = loss();
        }
        trainer.set_weight(row.name, weight);
        CHECK((sides[1] - sides[0]) / (2 * distance) == doctest::Approx(norm).epsilon(0.02));
    }
}

TEST_CASE("transformer: another block trains in every precision" * doctest::test_suite(kNotUnderSanitizers)) {
    const int steps = 40;
    const std::vector<double> fp32 = training_losses<float>(mlp_config(nullptr), steps);
    CHECK(fp32.back() < 0.8 * fp32.front());
    CHECK(training_losses<bf16>(mlp_config(nullptr), steps).back() == doctest::Approx(fp32.back()).epsilon(0.02));
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::mxfp8}) {
        const Fp8Config fp8 = recipe(kind);
        CHECK(training_losses<bf16>(mlp_config(&fp8), steps).back() == doctest::Approx(fp32.back()).epsilon(0.05));
    }
}

TEST_CASE("transformer: layers, units, exports and the planner follow another block's table") {
    ModelConfig model = mlp_config(nullptr).model;
    const int64_t C = 64, block = 4 * C * C + 2 * C + 2 * C;
    CHECK(model.parameters() == (101 + 32) * C + 3 * block + 2 * C);
    CHECK(model.matrix_parameters() == 3 * 4 * C * C + 101 * C);
    CHECK(model.flops_per_token(32) == 6.0 * static_cast<double>(model.matrix_parameters()));  // no attention
    CHECK(linear_names(model) == std::vector<std::string>{"up", "down"});
    CHECK(parameter_units(model)[1].tensors[1].name == "h.0.down.weight");  // tensors with weight decay come first
    CHECK(fp8_layers(fp8_layers_from_text("all,-first,-block1.up"), 3, linear_names(model), Fp8Scaling::tensor)
              .names.size() == 3);
    for (const HfTensor& tensor : hf_tensors(model)) CHECK(!tensor.transposed);
    CHECK(hf_tensors(model)[4].spec.name == "transformer.h.0.mlp.up.weight");
    CHECK(hf_tensors(model)[4].spec.shape == std::vector<int64_t>{128, 64});

    PlannedRun run;
    run.config.model = model;
    run.config.batch = 2, run.config.seq = 32;
    run.gpu = *find_gpu_by_short_name("h100");
    const StepTime time = step_time(run, Precision::bf16, 1);
    CHECK(time.attention == 0);
    PlannedRun gpt2 = run;
    gpt2.config.model.architecture = &kGpt2;
    const StepTime other = step_time(gpt2, Precision::bf16, 1);
    CHECK(other.attention > 0);
    CHECK(time.optimizer < other.optimizer);
    CHECK(describe_plan(run, {}).find("58,560") != std::string::npos);
}

// Reading another layer's codes would spoil a gradient without a visible error.
TEST_CASE("transformer: a layer that would read overwritten codes throws an error") {
    const Fp8Config fp8;
    Trainer<bf16> trainer(mlp_config(&fp8), Comm::self());
    trainer.allocate();
    trainer.initialize(3);
    LinearLayers<bf16>& layers = trainer.model().linear();
    Linear<bf16>&first = layers.find("h.0.up"), &second = layers.find("h.1.up");
    const LayerPass pass{PassKind::training, 64, false, nullptr, nullptr, trainer.stream()};
    DeviceArray<bf16> value(64 * 64), out(64 * 128);
    value.upload(std::vector<bf16>(64 * 64, to_bf16(0.5f)));
    synchronize(test_stream());
    trainer.weights().gather(block_unit(0), trainer.stream());
    const Operand<bf16> x = first.input(value.get(), nullptr, pass);
    first.forward(out.get(), x, pass);
    second.input(value.get(), nullptr, pass);
    CHECK_THROWS_WITH_AS(first.forward(out.get(), x, pass),
                         "h.0.up: the memory for its FP8 codes of x holds those of h.1.up", Error);
    synchronize(trainer.stream());
}
