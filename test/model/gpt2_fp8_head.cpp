// The head in FP8 (--fp8-layers all,+lm_head): the two products of its gradients, one chunk of rows at a time, each
// with one scale over all chunks, and a weight that is shared with the embedding.
#include "test/model/fp8_training.h"

using namespace llmc;
using namespace llmc::test;

namespace {

ModelConfig head_config() {  // 27 columns of padding
    ModelConfig config;
    config.name = "head";
    config.layers = 1, config.heads = 2, config.channels = 64, config.vocab = 101, config.context = 72;
    return config;
}
constexpr int kB = 4, kT = 72, kN = kB * kT;  // 288 rows: chunks of 128, 128 and 32

Fp8Config with_format(Fp8Config config, Fp8Grad grad) {
    config.grad = grad;
    return config;
}

struct HeadRun {
    const ModelConfig config = head_config();
    Fp8Config fp8;
    TestModel<bf16> test;
    std::vector<int> tokens, targets;

    // `chunk` is the number of rows of logits that exist at once; 0 for all.
    HeadRun(Fp8Recipe kind, const char* layers, Fp8Grad grad = Fp8Grad::e5m2, int chunk = 0)
        : fp8(with_format(recipe(kind), grad)), test(configured(layers, chunk)) {
        test.trainer.initialize(3);
        for (int i = 0; i < kN; i++) tokens.push_back(i * i % 101);
        for (int i = 0; i < kN; i++) targets.push_back(tokens[(i + 1) % kN]);
    }
    TrainerConfig configured(const char* layers, int chunk) const {
        TrainerConfig training = trainer_config(config, kB, kT, Recompute::gelu, &fp8, layers);
        const size_t rows = static_cast<size_t>(chunk), columns = static_cast<size_t>(config.padded_vocab());
        if (chunk > 0) training.logits_bytes = rows * columns * sizeof(bf16);
        return training;
    }
    void micro_step(bool first = true) {
        test.model.train_micro_step({tokens.data(), targets.data()}, {.loss_weight = 1.0f / kN, .first = first},
                                    test.stream);
    }
    // Makes two steps with the same weights; the second uses the scales of the first.
    void two_steps() {
        for (int i = 0; i < 2; i++) {
            micro_step();
            test.fp8->check(test.stream);
            test.fp8->finish_step(nullptr, test.stream);
            test.model.prepare_weights(test.stream);
        }
    }
    Fp8State state(Fp8Role role) {
        return read_back(test.fp8->states() + test.fp8->find(std::string("lm_head.") + word_of(role)), test.stream);
    }
    std::vector<float> wte_gradient() { return test.gradients.get_gradient(0, 0, test.stream); }
};

}  // namespace

// Against the same model with a head in BF16, whose gradients gpt2.cpp compares with PyTorch's.
TEST_CASE("gpt2 fp8 head: gradients are those of a head in BF16, up to the rounding of its operands") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current})
        for (const Fp8Grad grad : {Fp8Grad::e5m2, Fp8Grad::e4m3}) {
            HeadRun plain(kind, "none", grad), head(kind, "none,lm_head", grad);
            plain.two_steps();
            head.two_steps();
            CHECK(head.test.mean_train_loss() == plain.test.mean_train_loss());  // forward is in BF16
            const auto a = head.test.all_gradients(), b = plain.test.all_gradients();
            double worst = 0;
            for (size_t i = 0; i < a.size(); i++) {
                CHECK(cosine(a[i], b[i]) > 0.99);
                CHECK(norm(a[i]) / norm(b[i]) == doctest::Approx(1).epsilon(0.02));
                worst = std::max(worst, 1 - cosine(a[i], b[i]));
            }
            CHECK(worst > 1e-6);
        }
}

TEST_CASE("gpt2 fp8 head: amaxes and counts are those of whole tensors; each chunk has two products") {
    HeadRun run(Fp8Recipe::delayed, "none,+lm_head");
    HeadRun chunked(Fp8Recipe::delayed, "none,+lm_head", Fp8Grad::e5m2, 128);
    REQUIRE(run.test.model.head_rows() == kN);
    REQUIRE(div_up(kN, chunked.test.model.head_rows()) == 3);
    run.two_steps();
    run.test.fp8->clear_counts(run.test.stream);
    chunked.two_steps();
    chunked.test.fp8->clear_counts(chunked.test.stream);
    // From here on the scales are shared; in the first step every chunk had its own.
    for (const Fp8Role role : {Fp8Role::x, Fp8Role::w, Fp8Role::dout}) {
        CAPTURE(word_of(role));
        CHECK(run.state(role).last_amax == doctest::Approx(chunked.state(role).last_amax).epsilon(0.02));
        CHECK(run.state(role).last_amax > 0);
    }
    run.test.matmul.reset_counts();
    chunked.test.matmul.reset_counts();
    run.micro_step();
    chunked.micro_step();
    CHECK(run.test.matmul.counts().fp8 == 2);
    CHECK(chunked.test.matmul.counts().fp8 == 6);
    CHECK(run.test.matmul.counts().bf16 == 12 + 1);  // the block's, and forward
    CHECK(chunked.test.matmul.counts().bf16 == 12 + 3);
    const Fp8State x = chunked.state(Fp8Role::x), w = chunked.state(Fp8Role::w), d = chunked.state(Fp8Role::dout);
    CHECK(x.elements == kN * 64);
    CHECK(d.elements == kN * 128);  // padding included
    CHECK(w.elements == 0);         // once per step, not per micro-step
    CHECK(x.amax == run.state(Fp8Role::x).amax);
    // The largest dlogit may be in any chunk: one over the batch, minus a probability.
    CHECK(d.amax > 0.9f / kN);
    CHECK(d.amax <= 1.0f / kN);

    float largest = 0;
    for (const float value : run.test.weights.get_tensor(0, 0, run.test.stream))
        largest = std::max(largest, std::abs(to_float(to_bf16(value))));
    CHECK(w.scale == doctest::Approx(448 / largest).epsilon(1e-6));
}

// Forward products of other shapes may sum in another order, so that single logits in BF16 round the other way.
TEST_CASE("gpt2 fp8 head: chunks change the order of sums alone") {
    HeadRun whole(Fp8Recipe::delayed, "none,lm_head");
    HeadRun chunked(Fp8Recipe::delayed, "none,lm_head", Fp8Grad::e5m2, 128);
    whole.two_steps();
    chunked.two_steps();
    // Both runs use one run's scales.
    std::vector<Fp8State> states = read_back(whole.test.fp8->states(), 3, whole.test.stream);
    write_through(const_cast<Fp8State*>(chunked.test.fp8->states()), states.data(), states.size(), whole.test.stream);
    whole.micro_step();
    chunked.micro_step();
    const double loss = whole.test.mean_train_loss(), other = chunked.test.mean_train_loss();
    CHECK(loss == doctest::Approx(other).epsilon(1e-6));
    if (device_info().is_host) CHECK(loss == other);
    // Eight codes that share random bits change with a logit, each by less than a step.
    const double most = loss == other ? 1e-12 : 1e-2;
    const auto a = whole.test.all_gradients(), b = chunked.test.all_gradients();
    for (size_t i = 0; i < a.size(); i++) CHECK(relative_error(a[i], b[i]) < std::max(i == 0 ? 1e-6 : 0, most));
    // Accumulation over micro-steps doubles it.
    chunked.micro_step(false);
    std::vector<float> twice = chunked.wte_gradient();
    for (float& value : twice) value /= 2;
    CHECK(relative_error(twice, b[0]) < 1e-6);
}

TEST_CASE("gpt2 fp8 head: padded rows of the vocabulary get no gradient, and all others do") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        HeadRun run(kind, "all,+lm_head");
        run.two_steps();
        const std::vector<float> gradient = run.wte_gradient();
        for (size_t row = 0; row < 128; row++) {
            double sum = 0;
            for (size_t c = 0; c < 64; c++) sum += std::abs(gradient[row * 64 + c]);
            CHECK((sum == 0) == (row >= 101));
        }
    }
}

TEST_CASE("gpt2 fp8 head: leaves FP8 like any layer, and is refused with scales per block") {
    Fp8Config config = recipe(Fp8Recipe::delayed);
    config.margin = 20;  // x underflows
    config.fallback = {1.0f, 0.5f, 1};
    Fp8Training run(config, "off", Recompute::gelu, "none,+lm_head");
    bool left = false;
    for (int i = 0; i < 5 && !left; i++) {
        run.step(i);
        for (const Fp8Fallback& fallback : run.test.left_fp8)
            left |= run.test.fp8->layer_name(fallback.layer) == kHeadLayer && fallback.role == Fp8Role::x;
    }
    REQUIRE(left);
    CHECK(!run.test.model.linear().find(kHeadLayer).is_fp8());
    run.step(5);
    CHECK(run.test.matmul.counts().fp8 == 0);
    CHECK(std::isfinite(run.test.mean_train_loss()));

    for (const Fp8Recipe kind : {Fp8Recipe::block, Fp8Recipe::mxfp8}) {
        Fp8Config blocks = recipe(kind);
        ModelConfig wide = head_config();
        wide.channels = 128;
        const TrainerConfig refused = trainer_config(wide, 4, 64, Recompute::gelu, &blocks, "all,+lm_head");
        CHECK_THROWS_AS(Trainer<bf16>(refused, Comm::self()), Error);
    }
}
