// Documents in packed rows: their beginnings, and that a row of two documents trains like two rows with one each.
#include "llmc/model/transformer.h"

#include "llmc/model/sampler.h"
#include "test/model/modern_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kEnd = 100;

// A row of T tokens whose second document begins at `cut`. With 0 it is one document, which begins before the row.
Batch packed_row(int T, int cut) {
    Batch batch;
    for (int t = 0; t <= T; t++) batch.tokens.push_back((t * t + 7 * t + 3) % 97);
    batch.tokens[cut > 0 ? cut : T] = kEnd;
    batch.targets.assign(batch.tokens.begin() + 1, batch.tokens.end());
    batch.tokens.pop_back();
    return batch;
}
Batch part_of(const Batch& batch, int begin, int end) {
    return {{batch.tokens.begin() + begin, batch.tokens.begin() + end},
            {batch.targets.begin() + begin, batch.targets.begin() + end}};
}

// GPT-2's positions continue over documents unless told otherwise. Without position embeddings nothing distinguishes a
// row's end from its beginning.
ModelConfig config_of(const std::string& name) {
    if (name != "gpt2") return modern_config(name);
    ModelConfig config;
    config.name = name;
    config.layers = 2, config.heads = 2, config.channels = 64, config.vocab = 101, config.context = 48;
    return config;
}

template <class Real>
struct Trained {
    std::vector<float> losses;
    std::vector<std::vector<float>> gradients;

    // Runs `batch`, B rows, with the loss weight of `weighed` tokens.
    // Learned positions are 0, and their gradient is ignored, because they do not start again with a document.
    Trained(const std::string& name, const Batch& batch, int B, float weighed, std::optional<int> end_token,
            Recompute recompute = Recompute::gelu) {
        const size_t count = batch.tokens.size();
        TrainerConfig config = trainer_config(config_of(name), B, static_cast<int>(count) / B, recompute);
        config.doc_mask = end_token.has_value(), config.end_token = end_token.value_or(-1);
        TestModel<Real> test(config);
        for (const TensorRow& row : all_tensors(test.config)) {
            std::vector<float> values;
            for (const double x : pattern(row.name, static_cast<size_t>(row.count())))
                values.push_back(static_cast<float>(row.name == "wpe" ? 0 : row.is_matrix() ? x / 8 : 1 + x / 4));
            test.trainer.set_weight(row.name, values);
        }
        test.trainer.weights_are_set();
        test.model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1 / weighed}, test.stream);
        losses = read_back(test.model.losses(), count, test.stream);
        gradients = test.all_gradients();
        if (const auto wpe = test.table.look_up("wpe"))
            gradients.erase(gradients.begin() + static_cast<long>(wpe->tensor));  // for other rows
    }
};

// How far the losses and gradients of `packed` are from those of two rows, relative to their norms.
template <class Real>
struct Distance {
    double losses = 0, gradients = 0;
    Distance(const Trained<Real>& packed, const Trained<Real>& first, const Trained<Real>& second) {
        std::vector<float> apart = first.losses;
        apart.insert(apart.end(), second.losses.begin(), second.losses.end());
        for (size_t i = 0; i < apart.size(); i++)
            losses = std::max(losses, std::fabs(double{apart[i]} - packed.losses[i]) / (1 + apart[i]));
        for (size_t i = 0; i < packed.gradients.size(); i++) {
            std::vector<float> sum = first.gradients[i], difference = sum;
            for (size_t j = 0; j < sum.size(); j++)
                sum[j] += second.gradients[i][j], difference[j] = packed.gradients[i][j] - sum[j];
            gradients = std::max(gradients, norm(difference) / norm(sum));
        }
    }
};

}  // namespace

TEST_CASE("documents: the end token is the first of its document") {
    const std::vector<int> tokens = {5, 9, 9, 1, 2, 9, 9, 1, 2, 3};
    std::vector<int> documents(10);
    mark_documents(documents.data(), tokens.data(), 2, 5, 9);
    CHECK(documents == std::vector<int>{0, 1, 2, 2, 2, 0, 1, 1, 1, 1});
    mark_documents(documents.data(), tokens.data(), 2, 5, -1);
    CHECK(documents == std::vector<int>(10, 0));
}

// The arithmetic differs in the order of sums, because a row's tiles begin elsewhere, and with RoPE in angles, which at
// position p are off by up to 1.2e-7 p. Either way gradients are within 1e-4 of their norm from exact ones in FP32, and
// within 3e-2 in BF16 (see modern.cpp, which has similar weights), so they are within twice that of each other. Seeing
// tokens of another document would change far more.
TEST_CASE_TEMPLATE("documents: a row of two documents has the losses and gradients of two rows", Real, float, bf16) {
    constexpr int T = 32, cut = 13;
    const double bound = 2 * (sizeof(Real) == 4 ? 1e-4 : 3e-2);
    const Batch row = packed_row(T, cut);
    for (const std::string name : {"gpt2", "llama", "qwen3", "nano"}) {
        CAPTURE(name);
        const Trained<Real> first(name, part_of(row, 0, cut), 1, T, {}), second(name, part_of(row, cut, T), 1, T, {});
        const Distance<Real> masked({name, row, 1, T, kEnd}, first, second);
        CHECK(masked.losses < bound);
        CHECK(masked.gradients < bound);
        const Distance<Real> open({name, row, 1, T, {}}, first, second);
        CHECK(open.losses > 2 * masked.losses);
        CHECK(open.gradients > 2 * bound);
    }
}

TEST_CASE_TEMPLATE("documents: rows without an end token inside have the bits of a model without documents", Real,
                   float, bf16) {
    const Batch row = packed_row(32, 0);
    for (const char* name : {"gpt2", "qwen3"}) {
        const Trained<Real> without(name, row, 2, 32, {}), with(name, row, 2, 32, kEnd);
        CHECK(same_bits(with.losses, without.losses));
        CHECK(same_bits(with.gradients, without.gradients));
    }
}

TEST_CASE_TEMPLATE("documents: every recompute level gives the same bits", Real, float, bf16) {
    const Batch row = packed_row(32, 9);
    for (const char* name : {"gpt2", "llama"}) {
        const Trained<Real> reference(name, row, 1, 32, kEnd, Recompute::none);
        for (const Recompute level : {Recompute::norm, Recompute::block})
            CHECK(same_bits(Trained<Real>(name, row, 1, 32, kEnd, level).gradients, reference.gradients));
    }
}

TEST_CASE_TEMPLATE("documents: in evaluation, no bit depends on another document's tokens", Real, float, bf16) {
    constexpr int T = 32, cut = 20;
    TrainerConfig config = trainer_config(config_of("llama"), 1, T, Recompute::block);
    for (const bool masked : {true, false}) {
        config.doc_mask = masked, config.end_token = kEnd;
        TestModel<Real> test(config);
        test.trainer.initialize(5);
        Batch row = packed_row(T, cut);
        const std::vector<float> before = test.trainer.token_losses(row.tokens.data(), row.targets.data());
        for (int t = 0; t < cut; t++) row.tokens[t] = 96 - t;
        const std::vector<float> after = test.trainer.token_losses(row.tokens.data(), row.targets.data());
        CHECK(std::equal(before.begin() + cut, before.end(), after.begin() + cut) == masked);
        CHECK(!std::equal(before.begin(), before.begin() + cut, after.begin()));
    }
}

// Attention kernels that also cast to FP8 (used from the second step on) treat documents like those of BF16.
TEST_CASE("documents: gradients in FP8 are near those in BF16 with the same documents") {
    const Fp8Config delayed;
    ModelConfig model = config_of("gpt2");
    model.context = 64, model.channels = 128;
    const Batch row = packed_row(64, 21);
    const auto second_step = [&](const Fp8Config* fp8, std::optional<int> end_token) {
        TrainerConfig config = trainer_config(model, 1, 64, Recompute::gelu, fp8);
        config.doc_mask = end_token.has_value(), config.end_token = end_token.value_or(-1);
        TestModel<bf16> test(config);
        test.trainer.initialize(5);
        test.step(row), test.step(row);
        std::vector<std::vector<float>> results;
        for (const std::string name : {"h.0.qkv.weight", "h.1.qkv.weight", "h.1.attn_proj.weight"}) {
            const auto place = test.table.find(name);
            results.push_back(test.gradients.get_gradient(place.unit, place.tensor, test.stream));
        }
        return results;
    };
    const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
        double sum = 0;
        for (size_t i = 0; i < a.size(); i++) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
        return std::sqrt(sum);
    };
    const auto fp8 = second_step(&delayed, kEnd), bf16 = second_step(nullptr, kEnd), whole = second_step(nullptr, {});
    for (size_t i = 0; i < fp8.size(); i++) CHECK(distance(fp8[i], bf16[i]) < 0.3 * distance(fp8[i], whole[i]));
}

TEST_CASE("documents: a sample depends only on tokens from the last end token on") {
    TrainerConfig config = trainer_config(config_of("nano"), 1, 32, Recompute::none);
    for (const bool masked : {true, false}) {
        config.doc_mask = masked, config.end_token = kEnd;
        TestModel<float> test(config);
        for (const auto& [name, values] : modern_weights(test.config)) test.trainer.set_weight(name, values);
        test.trainer.weights_are_set();
        const auto sample = [&](std::vector<int> tokens) {
            std::vector<int> sampled;
            for (uint64_t i = 0; i < 8; i++) {
                sampled.push_back(generate_token(test.model, tokens, {1.0, 0, 1.0, 3}, i, test.stream));
                tokens.push_back(sampled.back());
            }
            return sampled;
        };
        CHECK((sample({1, 2, 3, kEnd, 4, 5}) == sample({kEnd, 4, 5})) == masked);
    }
}

TEST_CASE("documents: they take one int of memory per token") {
    TrainerConfig config = trainer_config(config_of("llama"), 3, 32, Recompute::gelu);
    const Trainer<float> without(config, Comm::self());
    config.doc_mask = true, config.end_token = kEnd;
    const Trainer<float> with(config, Comm::self());
    CHECK(with.memory().workspace - without.memory().workspace >= 3 * 32 * sizeof(int));
    CHECK(with.memory().workspace - without.memory().workspace < 3 * 32 * sizeof(int) + device_alignment());
    CHECK(with.memory().activations == without.memory().activations);
}
