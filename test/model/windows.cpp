// Attention in windows, layer by layer: the tokens that a token's loss depends on, in training and in generation.
#include "llmc/model/sampler.h"
#include "test/model/modern_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kTokens = 32;

ModelConfig with_windows(int window, const std::string& layers) {
    ModelConfig config = modern_config("qwen3");
    config.window = window, config.window_layers = layers;
    config.validate();
    return config;
}

template <class Real>
std::vector<float> losses_of(const ModelConfig& config, const Batch& batch) {
    const auto test = loaded<Real>(config, 1, kTokens, Recompute::norm);
    return test->trainer.token_losses(batch.tokens.data(), batch.targets.data());
}

}  // namespace

TEST_CASE_TEMPLATE("windows: a token's loss depends on the tokens that the layers' windows reach, and on no others",
                   Real, float, bf16) {
    constexpr int changed = 7;
    const Batch batch = small_batch(1, kTokens);
    Batch other = batch;
    other.tokens[changed] = (other.tokens[changed] + 50) % 101;
    // Two layers: each with W keys reaches W - 1 tokens further back than the layer above.
    const struct {
        int window;
        const char* layers;
        int reach;
    } cases[] = {{1, "", 0},         {2, "", 2},         {3, "", 4},        {5, "S", 8},
                 {3, "SL", kTokens}, {3, "LS", kTokens}, {3, "LL", kTokens}};
    for (const auto& [window, layers, reach] : cases) {
        CAPTURE(window);
        CAPTURE(layers);
        const ModelConfig config = with_windows(window, layers);
        const std::vector<float> before = losses_of<Real>(config, batch), after = losses_of<Real>(config, other);
        int last = -1;
        for (int t = 0; t < kTokens; t++)
            if (before[t] != after[t]) last = t;
        for (int t = 0; t < changed; t++) CHECK(before[t] == after[t]);
        CHECK(before[changed] != after[changed]);
        CHECK(last == std::min(changed + reach, kTokens - 1));
    }
}

TEST_CASE("windows: a window as wide as the sequence changes no bit, a narrower one does") {
    const Batch batch = small_batch(2, kTokens);
    const std::vector<float> whole = losses_of<bf16>(modern_config("qwen3"), batch);
    CHECK(losses_of<bf16>(with_windows(kTokens, ""), batch) == whole);
    CHECK(losses_of<bf16>(with_windows(2, "LL"), batch) == whole);
    CHECK(losses_of<bf16>(with_windows(kTokens - 1, ""), batch) != whole);
}

// Like for models without windows (test/model/modern.cpp).
TEST_CASE("windows: generation's logits are those of the ordinary forward") {
    const Batch batch = small_batch(3, kTokens);
    for (const char* layers : {"S", "SL", "LS"}) {
        CAPTURE(layers);
        const auto test = loaded<float>(with_windows(5, layers), 1, kTokens, Recompute::norm);
        const std::vector<float> losses = test->trainer.token_losses(batch.tokens.data(), batch.targets.data());
        const std::vector<double> generated = generation_losses(*test, batch);
        for (size_t t = 0; t < generated.size(); t++) CHECK(std::fabs(generated[t] - losses[t]) < 1e-4);
    }
}
