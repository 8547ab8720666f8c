// Generation token by token: with and without the cache every logit has the same bits, in every precision. The logits
// are those of the ordinary forward, and the cache saves work.
#include "llmc/model/sampler.h"

#include <cstring>

#include "test/model/gpt2_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

ModelConfig small_model(int context) {
    ModelConfig config;
    config.name = "generate";
    config.layers = 2, config.heads = 1, config.channels = 128, config.vocab = 101, config.context = context;
    return config;
}

// Large weights, so that logits differ by far more than rounding, and depend on every previous token.
template <class Real>
void set_weights(TestModel<Real>& test) {
    for (const TensorRow& row : all_tensors(test.config)) {
        std::vector<float> values = first_values(test.config, row, 7);
        if (row.columns > 0)
            for (float& x : values) x *= 6;
        test.trainer.set_weight(row.name, values);
    }
    test.trainer.weights_are_set();
}

struct Sample {
    std::vector<int> tokens;
    std::vector<uint32_t> logits;  // the bits of every call's logits
    bool operator==(const Sample&) const = default;
};

template <class Real>
Sample sample(TestModel<Real>& test, const SamplerSettings& settings, int count, bool cached) {
    Sample result{{3, 50, 7}, {}};
    for (int i = 0; i < count; i++) {
        if (!cached) test.model.forget_rows();
        const int length = static_cast<int>(result.tokens.size());
        const int begin = window_begin(length, test.model.most_tokens());
        const std::vector<float> logits =
            test.model.next_token_logits(result.tokens.data() + begin, length - begin, test.stream);
        for (const float x : logits) {
            uint32_t bits;
            std::memcpy(&bits, &x, sizeof bits);
            result.logits.push_back(bits);
        }
        result.tokens.push_back(sample_token(logits, settings, static_cast<uint64_t>(i)));
    }
    return result;
}

// A context that the samples outgrow, whose last piece has 8 rows (T = 40, not in FP8) or extends past it.
template <class Real>
void check_same_tokens(const Fp8Config* fp8, bool calibrated) {
    const int B = fp8 ? 16 : 1, T = fp8 ? 24 : 40;
    TestModel<Real> with(small_model(T), B, T, Recompute::norm, fp8),
        without(small_model(T), B, T, Recompute::norm, fp8);
    // Its blocks share their rows, so nothing can be cached.
    TestModel<Real> shared(small_model(T), B, T, Recompute::block, fp8);
    const Batch batch = small_batch(0, B * T);
    for (TestModel<Real>* test : {&with, &without, &shared}) {
        set_weights(*test);
        if (!calibrated) continue;
        test->model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1.0f / static_cast<float>(B * T)},
                                     test->stream);
        test->fp8->finish_step(nullptr, test->stream);
    }
    const int count = T + 8;
    const Sample greedy = sample(with, {.temperature = 0}, count, true);
    CHECK(greedy == sample(without, {.temperature = 0}, count, false));
    CHECK(greedy == sample(shared, {.temperature = 0}, count, true));
    std::vector<int> last = greedy.tokens;
    for (const uint64_t seed : {1, 2}) {
        const SamplerSettings settings{.temperature = 0.8, .top_k = 40, .top_p = 0.95, .seed = seed};
        const Sample cached = sample(with, settings, count, true);
        CHECK(cached == sample(without, settings, count, false));
        CHECK(cached.tokens != last);
        last = cached.tokens;
    }
    std::vector<int> tokens(last.begin(), last.end() - 1);
    const SamplerSettings settings{.temperature = 0.8, .top_k = 40, .top_p = 0.95, .seed = 2};
    CHECK(generate_token(with.model, tokens, settings, static_cast<uint64_t>(count - 1), with.stream) == last.back());
}

}  // namespace

TEST_CASE_TEMPLATE("generate: the cache changes no bit of a logit", Real, float, bf16) {
    check_same_tokens<Real>(nullptr, false);
}

TEST_CASE("generate: the cache changes no bit of a logit in FP8, with any recipe" * doctest::test_suite(kOnce)) {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current, Fp8Recipe::mxfp8, Fp8Recipe::block}) {
        CAPTURE(static_cast<int>(kind));
        const Fp8Config config = recipe(kind);
        check_same_tokens<bf16>(&config, true);
        if (kind == Fp8Recipe::delayed) check_same_tokens<bf16>(&config, false);
    }
}

// -log p of every next token, from generation's logits and from evaluation's loss. In FP32 the two sum in different
// orders, because the products' shapes differ. In BF16 both round to 2^-9 at the same places, and a few of the rounded
// values differ: the mean stays within 1 %, like the model's loss compared with PyTorch's FP64 one.
TEST_CASE_TEMPLATE("generate: logits are those of the ordinary forward", Real, float, bf16) {
    const int T = 40;
    TestModel<Real> test(small_model(T), 1, T, Recompute::norm);
    set_weights(test);
    const Batch batch = small_batch(0, T);
    const std::vector<float> losses = test.trainer.token_losses(batch.tokens.data(), batch.targets.data());
    double mean = 0, expected = 0, worst = 0;
    const std::vector<double> generated = generation_losses(test, batch);
    for (size_t t = 0; t < generated.size(); t++) {
        mean += generated[t] / T, expected += losses[t] / T;
        worst = std::max(worst, std::fabs(generated[t] - losses[t]));
    }
    CHECK(expected > 1);
    CHECK(mean == doctest::Approx(expected).epsilon(0.01));
    if (std::is_same_v<Real, float>) CHECK(worst < 1e-4);
}

TEST_CASE("generate: a token costs one piece, and rows that are no longer valid are computed again") {
    const int T = 64, layers = 2;
    TestModel<float> test(small_model(T), 1, T, Recompute::norm);
    set_weights(test);
    std::vector<int> tokens = small_batch(0, T).tokens;
    const auto pieces = [&](int length) {  // the number of pieces of 16 rows that the call computes
        test.matmul.reset_counts();
        test.model.next_token_logits(tokens.data(), length, test.stream);
        return (test.matmul.counts().fp32 - 1) / (4 * layers);
    };
    CHECK(pieces(40) == 3);
    CHECK(pieces(41) == 1);
    CHECK(pieces(41) == 1);
    CHECK(pieces(48) == 1);
    CHECK(pieces(49) == 1);
    CHECK(pieces(64) == 1);
    CHECK(pieces(20) == 1);  // for the known tokens
    CHECK(pieces(64) == 3);  // 20 were left of them
    tokens[20] = 1;
    CHECK(pieces(64) == 3);
    tokens[15] = 1;
    CHECK(pieces(64) == 4);
    test.model.forget_rows();
    CHECK(pieces(64) == 4);
    const Batch batch = small_batch(0, T);
    test.trainer.evaluate(batch.tokens.data(), batch.targets.data());
    CHECK(pieces(64) == 4);
    test.trainer.weights_are_set();
    CHECK(pieces(64) == 4);
    CHECK(pieces(64) == 1);
    test.model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1.0f / T}, test.stream);
    CHECK(pieces(64) == 4);
}
