// Llama, Mistral, Qwen 2.5, Qwen3 and nano: against Hugging Face's own classes, and against themselves.
#include <set>

#include "llmc/model/sampler.h"
#include "test/model/modern_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Loss and gradients of the fixture's sequence.
template <class Real>
std::unique_ptr<TestModel<Real>> ran(const std::string& name, Recompute recompute) {
    const Batch batch = modern_batch(name);
    const int T = static_cast<int>(batch.tokens.size());
    auto test = loaded<Real>(modern_config(name), 1, T, recompute);
    test->model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1.0f / static_cast<float>(T)},
                                 test->stream);
    return test;
}

// Compares each gradient's norm, and its product with a pattern, for Hugging Face's tensors. Sums of products of a few
// hundred terms in FP32 stay within 1e-4 of a gradient's norm. In BF16, whose values are off by 2^-9 each and are
// rounded about twenty times, they stay within 3e-2, like GPT-2's gradients. A product with the pattern is at most the
// norm times the pattern's, 0.58 per element.
template <class Real>
void check_gradients(const std::string& name, double bound) {
    CAPTURE(name);
    const auto test = ran<Real>(name, Recompute::gelu);
    const nlohmann::json& expected = modern_fixture().at(name);
    CHECK(test->mean_train_loss() == doctest::Approx(expected.at("loss").get<double>()).epsilon(bound));
    for (const HfTensor& tensor : hf_tensors(test->config)) {
        CAPTURE(tensor.spec.name);
        const auto place = test->table.find(tensor.row.name);
        const std::vector<float> gradient =
            tensor.to_file(test->gradients.get_gradient(place.unit, place.tensor, test->stream));
        const std::vector<double> other = pattern("gradient " + tensor.spec.name, gradient.size());
        double squares = 0, product = 0, squares_of_other = 0;
        for (size_t i = 0; i < gradient.size(); i++) {
            squares += double{gradient[i]} * gradient[i];
            product += gradient[i] * other[i];
            squares_of_other += other[i] * other[i];
        }
        const double norm = expected.at("gradients").at(tensor.spec.name)[0];
        CHECK(std::fabs(std::sqrt(squares) - norm) <= bound * norm);
        CHECK(std::fabs(product - expected.at("gradients").at(tensor.spec.name)[1].get<double>()) <=
              bound * norm * std::sqrt(squares_of_other));
    }
}

}  // namespace

TEST_CASE("modern blocks: Hugging Face's names and shapes") {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        std::set<std::string> ours;
        const nlohmann::json& theirs = modern_fixture().at(name).at("tensors");
        for (const HfTensor& tensor : hf_tensors(modern_config(name))) {
            CAPTURE(tensor.spec.name);
            REQUIRE(theirs.contains(tensor.spec.name));
            CHECK(tensor.spec.shape == theirs.at(tensor.spec.name).get<std::vector<int64_t>>());
            ours.insert(tensor.spec.name);
        }
        CHECK(ours.size() == theirs.size());
    }
}

TEST_CASE("modern blocks: loss and gradients against Hugging Face's classes, fp32") {
    for (const char* name : kModernModels) check_gradients<float>(name, 1e-4);
}
TEST_CASE("modern blocks: loss and gradients against Hugging Face's classes, bf16") {
    for (const char* name : kModernModels) check_gradients<bf16>(name, 3e-2);
}

// The fixture is computed in FP64. If the biases of qwen2 decayed too, its losses would be off by 1e-5 to 4e-4.
TEST_CASE("modern blocks: 20 steps of AdamW against Hugging Face's classes") {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        const nlohmann::json& expected = modern_fixture().at(name).at("steps");
        const int T = static_cast<int>(modern_batch(name).tokens.size());
        TrainerConfig config = trainer_config(modern_config(name), 1, T, Recompute::gelu);
        config.schedule = {ScheduleKind::constant, expected.at("rate"), 0, 100, 0};
        config.optimizer.weight_decay = expected.at("decay");
        config.clip = expected.at("clip");
        const auto test = loaded<float>(config);
        for (int step = 0; step < std::ssize(expected.at("losses")); step++) {
            CAPTURE(step);
            const StepRecord record = test->step(small_batch(step, T));
            CHECK(record.loss == doctest::Approx(expected.at("losses")[step].get<double>()).epsilon(2e-6));
            CHECK(record.norm == doctest::Approx(expected.at("norms")[step].get<double>()).epsilon(1e-4));
        }
    }
}

TEST_CASE_TEMPLATE("modern blocks: every recompute level gives the same bits", Real, float, bf16) {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        const auto reference = ran<Real>(name, Recompute::none);
        const std::vector<std::vector<float>> expected = reference->all_gradients();
        size_t bytes = reference->model.activation_bytes();
        for (const Recompute level : {Recompute::gelu, Recompute::norm, Recompute::block}) {
            const auto test = ran<Real>(name, level);
            CHECK(test->all_gradients() == expected);
            CHECK(test->model.activation_bytes() < bytes);  // each level keeps less
            bytes = test->model.activation_bytes();
        }
    }
}

// A step's first micro-step overwrites the gradients, the next adds to them.
TEST_CASE("modern blocks: gradients of the first micro-step and of later ones") {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        const Batch batch = modern_batch(name);
        const auto test = ran<float>(name, Recompute::gelu);
        const auto again = [&](bool first) {
            test->model.train_micro_step(
                {batch.tokens.data(), batch.targets.data()},
                {.loss_weight = 1.0f / static_cast<float>(batch.tokens.size()), .first = first}, test->stream);
            return test->all_gradients();
        };
        const std::vector<std::vector<float>> once = test->all_gradients();
        CHECK(same_bits(again(true), once));
        const std::vector<std::vector<float>> twice = again(false);
        for (size_t i = 0; i < once.size(); i++) {
            std::vector<double> doubled(once[i].begin(), once[i].end());
            for (double& x : doubled) x *= 2;
            CHECK(relative_norm_error(twice[i], doubled) < 1e-5);
        }
    }
}

// The bounds are those of another block's training (transformer.cpp). Llama trains in every recipe, with its MLP
// widened as `block` requires.
TEST_CASE("modern blocks: train in every precision" * doctest::test_suite(kOnce)) {
    const int steps = 20;
    for (const char* name : {"llama", "qwen2", "qwen3", "nano"}) {
        CAPTURE(name);
        const bool is_wide = std::string(name) == "llama";
        const auto config = [&](const Fp8Config* fp8) {
            TrainerConfig config = modern_training(name, fp8, Recompute::gelu);
            if (is_wide) config.model.hidden = 256;
            return config;
        };
        const std::vector<double> fp32 = training_losses<float>(config(nullptr), steps);
        CHECK(fp32.back() < 0.8 * fp32.front());
        CHECK(training_losses<bf16>(config(nullptr), steps).back() == doctest::Approx(fp32.back()).epsilon(0.02));
        for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::mxfp8, Fp8Recipe::block}) {
            if (!is_wide && kind != Fp8Recipe::delayed) continue;
            CAPTURE(static_cast<int>(kind));
            const Fp8Config fp8 = recipe(kind);
            CHECK(training_losses<bf16>(config(&fp8), steps).back() == doctest::Approx(fp32.back()).epsilon(0.05));
        }
    }
}

TEST_CASE("modern blocks: recomputation in FP8 gives the same bits" * doctest::test_suite(kOnce)) {
    const Fp8Config fp8;
    for (const char* name : {"llama", "nano"}) {
        const std::vector<double> losses = training_losses<bf16>(modern_training(name, &fp8, Recompute::none), 3);
        for (const Recompute level : {Recompute::norm, Recompute::block}) {
            TrainerConfig config = modern_training(name, &fp8, level);
            TestModel<bf16> test(config);
            test.trainer.initialize(3);
            for (int step = 0; step < 3; step++) CHECK(test.step(small_batch(step, 128)).loss == losses[step]);
        }
    }
}

TEST_CASE("modern blocks: take the memory that is planned") {
    Fp8Config fp8;
    for (const char* name : kModernModels)
        for (const Recompute level : {Recompute::none, Recompute::block}) {
            CAPTURE(name);
            const TrainerConfig config = modern_training(name, &fp8, level);
            const MemoryByKind planned = Trainer<bf16>(config, Comm::self()).memory();
            size_t before[kMemoryKinds];
            for (size_t kind = 0; kind < kMemoryKinds; kind++) before[kind] = device_memory_use(MemoryKind(kind)).bytes;
            TestModel<bf16> test(config);
            for (size_t kind = 0; kind < kMemoryKinds; kind++) {
                CAPTURE(kMemoryKindNames[kind]);
                CHECK(device_memory_use(MemoryKind(kind)).bytes - before[kind] == planned[MemoryKind(kind)]);
            }
        }
}

// Like test/model/generate.cpp for GPT-2: past the first piece, and past the context.
TEST_CASE_TEMPLATE("modern blocks: the cache changes no bit of a logit" * doctest::test_suite(kNotUnderSanitizers),
                   Real, float, bf16) {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        const auto with = loaded<Real>(modern_config(name), 1, 40, Recompute::norm),
                   without = loaded<Real>(modern_config(name), 1, 40, Recompute::norm);
        std::vector<int> tokens = {3, 50, 7};
        while (tokens.size() < 36) {
            const int length = static_cast<int>(tokens.size()), begin = window_begin(length, with->model.most_tokens());
            const auto logits = [&](TestModel<Real>& test) {
                return test.model.next_token_logits(tokens.data() + begin, length - begin, test.stream);
            };
            without->model.forget_rows();
            const std::vector<float> cached = logits(*with);
            REQUIRE(cached == logits(*without));
            tokens.push_back(static_cast<int>(std::max_element(cached.begin(), cached.end()) - cached.begin()) + 1);
            tokens.back() %= 101;
        }
    }
}

// Generation's logits give the losses of training.
TEST_CASE("modern blocks: generation's logits are those of the ordinary forward") {
    for (const char* name : kModernModels) {
        CAPTURE(name);
        const Batch batch = modern_batch(name);
        const int T = static_cast<int>(batch.tokens.size());
        const auto test = loaded<float>(modern_config(name), 1, T, Recompute::norm);
        const std::vector<float> losses = test->trainer.token_losses(batch.tokens.data(), batch.targets.data());
        const std::vector<double> generated = generation_losses(*test, batch);
        for (size_t t = 0; t < generated.size(); t++) CHECK(std::fabs(generated[t] - losses[t]) < 1e-4);
    }
}
