// Layers that leave FP8 because one of their tensors keeps losing values.
#include "test/model/fp8_training.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

Fp8Config falling_back(float saturated, float underflowed, int steps) {
    Fp8Config config = recipe(Fp8Recipe::delayed);
    config.fallback = {saturated, underflowed, steps};
    return config;
}

// One channel of a norm's output becomes a million times larger, and the weights that read it a millionth. The model is
// the same, but an FP8 scale for that channel leaves the other channels at zero.
void put_outlier(Fp8Training& run) {
    enlarge_channel(run, "h.1.ln1.weight", 3, 1e6f);
    enlarge_channel(run, "h.1.ln1.bias", 3, 1e6f);
    enlarge_channel(run, "h.1.qkv.weight", 3, 1e-6f);
    run.test.model.prepare_weights(run.test.stream);
}

// The working copies of all layers in BF16 are their master weights, rounded.
void check_working_copies(Fp8Training& run) {
    for (const Linear<bf16>* layer : run.test.model.linear().all()) {
        if (layer->is_fp8()) continue;
        const auto place = run.test.table.find(layer->name() == kHeadLayer ? "wte" : layer->name() + ".weight");
        const std::vector<float> master = run.test.weights.get_tensor(place.unit, place.tensor, run.test.stream);
        run.test.weights.gather(place.unit, run.test.stream);
        const auto working = read_back(run.test.weights.weight(place), master.size(), run.test.stream);
        run.test.weights.release(place.unit, run.test.stream);
        for (size_t i = 0; i < master.size(); i++) REQUIRE(working[i].bits == to_bf16(master[i]).bits);
    }
}

}  // namespace
TEST_SUITE_BEGIN(kNotUnderSanitizers);

TEST_CASE("gpt2 fp8 fallback: a lasting outlier moves its layer to BF16 after the given number of steps") {
    const int kSteps = 3;
    Fp8Config config = falling_back(1, 0.5f, kSteps);
    config.history = 2;
    Fp8Training run(config, "off", Recompute::gelu, "all", 1e-5);
    config.fallback = {};
    Fp8Training bf16_layer(config, "off", Recompute::gelu, "all,-block1.qkv", 1e-5);
    put_outlier(run);
    put_outlier(bf16_layer);
    double gap_before = 0, gap = 0;
    for (int i = 0; i < kSteps + 8; i++) {
        run.step(i);
        bf16_layer.step(i);
        gap = std::abs(run.test.mean_train_loss() / bf16_layer.test.mean_train_loss() - 1);
        if (i <= kSteps) {
            gap_before = std::max(gap_before, gap);
            CHECK(run.test.matmul.counts().fp8 == 24);
        } else {
            CHECK(run.test.matmul.counts().fp8 == 21);
            CHECK(run.test.matmul.counts().bf16 == 3 + 3);
            if (i > kSteps + 1) CHECK(gap < 0.01);  // the windows of other layers end with the previous step
        }
        REQUIRE(run.test.left_fp8.size() ==
                (i == kSteps ? 1 : 0));  // decided on step kSteps, counted from 1; applied after the next
        if (i != kSteps) continue;
        CHECK(run.test.fp8->layer_name(run.test.left_fp8[0].layer) == "h.1.qkv");
        CHECK(run.test.left_fp8[0].role == Fp8Role::x);
        CHECK(run.test.left_fp8[0].reason == Fp8Reason::underflowed);
        CHECK(run.test.left_fp8[0].fraction > 0.5f);
    }
    CHECK(gap_before > 0.02);
    check_working_copies(run);
}

TEST_CASE("gpt2 fp8 fallback: layers that left FP8 continue from their master weights") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        Fp8Config config = falling_back(1, 1e-6f, 2);
        config.recipe = kind;
        config.margin = 8;  // so that every tensor loses values
        Fp8Training run(config, "dynamic", Recompute::gelu);
        run.test.weights.gather(block_unit(1), run.test.stream);
        const std::vector<ParameterTensor>& tensors = run.test.table.unit(block_unit(1)).tensors;
        for (size_t t = 0; tensors[t].decay; t++)
            set_bytes(const_cast<bf16*>(run.test.weights.weight(block_unit(1), t)), 0xFF,
                      tensors[t].count() * sizeof(bf16), run.test.stream);
        run.test.weights.release(block_unit(1), run.test.stream);
        Fp8Training plain(recipe(kind), "dynamic", Recompute::gelu);
        size_t left = 0;
        for (int i = 0; i < 8; i++) {
            run.step(i);
            plain.step(i);
            left += run.test.left_fp8.size();
        }
        CHECK(left >= 4);
        CHECK(run.test.layers_in_fp8() == 8 - static_cast<int>(left));
        run.step(8);
        plain.step(8);
        CHECK(run.test.matmul.counts().fp8 == 3 * run.test.layers_in_fp8());
        CHECK(run.test.mean_train_loss() == doctest::Approx(plain.test.mean_train_loss()).epsilon(0.02));
        check_working_copies(run);
    }
}

TEST_CASE("gpt2 fp8 fallback: a rule that no layer breaks changes nothing") {
    Fp8Training run(falling_back(1, 1, 1), "dynamic"), plain(recipe(Fp8Recipe::delayed), "dynamic");
    for (int i = 0; i < 4; i++) {
        run.step(i);
        plain.step(i);
        CHECK(run.test.left_fp8.empty());
    }
    CHECK(same_bits(run.weights(), plain.weights()));
}
