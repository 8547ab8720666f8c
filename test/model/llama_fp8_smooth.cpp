// --fp8-smooth in a model: gradients next to a channel of SwiGLU's output that is so large that FP8 would lose the
// others.
#include "test/model/fp8_training.h"
#include "test/model/modern_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kLoud = 3;  // the channel of SwiGLU's output

// Llama's weights, with a row of up `times` times larger and the column that reads it smaller by the same factor, in
// every block: the same function.
std::unique_ptr<TestModel<bf16>> with_outlier(float times, const Fp8Config* fp8, Recompute recompute) {
    TrainerConfig config = modern_training("llama", fp8, recompute);
    config.fp8_layers = fp8_layers_from_text("none,fc_proj");
    config.micro_steps = 2;
    config.schedule.lr = 0;
    auto test = std::make_unique<TestModel<bf16>>(config);
    auto weights = modern_weights(config.model);
    const size_t F = static_cast<size_t>(config.model.mlp_channels()), C = static_cast<size_t>(config.model.channels);
    for (int l = 0; l < config.model.layers; l++) {
        std::vector<float>& fc = weights.at(block_prefix(l) + "fc.weight");
        std::vector<float>& fc_proj = weights.at(block_prefix(l) + "fc_proj.weight");
        for (size_t c = 0; c < C; c++) fc[(F + kLoud) * C + c] *= times, fc_proj[c * F + kLoud] /= times;
    }
    for (const auto& [name, values] : weights) test->trainer.set_weight(name, values);
    test->trainer.weights_are_set();
    return test;
}

// Makes two steps; the first one finds the factors.
void take_two_steps(TestModel<bf16>& test) {
    for (int step = 0; step < 2; step++) {
        test.begin_step();
        for (int m = 0; m < 2; m++) {
            const Batch batch = small_batch(m, 4 * 32);
            test.trainer.micro_step(batch.tokens.data(), batch.targets.data());
        }
        test.finish_step();
    }
}

// ||a - b|| / ||b|| for a gradient of block 0, without the loud channel's column (for fc: its rows of gate and up).
double apart(TestModel<bf16>& test, TestModel<bf16>& reference, const std::string& layer) {
    const auto place = test.table.find(block_prefix(0) + layer + ".weight");
    const auto a = test.gradients.get_gradient(place.unit, place.tensor, test.stream),
               b = reference.gradients.get_gradient(place.unit, place.tensor, reference.stream);
    const size_t F = static_cast<size_t>(test.config.mlp_channels()),
                 columns = static_cast<size_t>(test.table.tensor(place).shape[1]);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const size_t channel = layer == "fc" ? i / columns % F : i % columns;
        if (channel == kLoud) continue;
        difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
        norm += double{b[i]} * double{b[i]};
    }
    return std::sqrt(difference / norm);
}

}  // namespace

// Roundings to E4M3 and E5M2 are at most 2^-4 and 2^-3 of a number, and mostly cancel in sums: an eighth of the norm is
// allowed. A missing factor would be 2^5 or more.
TEST_CASE("llama fp8 smooth: gradients are close to BF16's; without factors, those of other channels are lost" *
          doctest::test_suite(kNotUnderSanitizers)) {
    test_stream();
    if (!device_info().has_fp8) return;
    for (const Fp8Recipe how : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        CAPTURE(static_cast<int>(how));
        Fp8Config plain = recipe(how), smooth = plain;
        smooth.smooth = true;
        for (const float times : {0x1p10f, 0x1p21f}) {
            CAPTURE(times);
            const auto bf16_model = with_outlier(times, nullptr, Recompute::gelu),
                       with = with_outlier(times, &smooth, Recompute::gelu),
                       without = with_outlier(times, &plain, Recompute::gelu);
            for (TestModel<bf16>* test : {bf16_model.get(), with.get(), without.get()}) take_two_steps(*test);
            const std::string factors = with->fp8->read_state(with->stream).tensors[0].smoothing;
            CHECK(factors.size() == static_cast<size_t>(with->config.mlp_channels()));
            CHECK(factors[kLoud] == 'a');
            CHECK(factors[0] >= 'd');
            for (const char* layer : {"fc_proj", "fc", "qkv"}) {
                CAPTURE(layer);
                CHECK(apart(*with, *bf16_model, layer) < 0.125);
            }
            CHECK(with->mean_train_loss() == doctest::Approx(bf16_model->mean_train_loss()).epsilon(0.01));
            CHECK(without->fp8->read_state(without->stream).tensors[0].smoothing.empty());
            if (times > 0x1p20f) CHECK(apart(*without, *bf16_model, "fc_proj") > 0.9);
            if (times > 0x1p20f || how == Fp8Recipe::current) continue;
            const auto again = with_outlier(times, &smooth, Recompute::block);
            take_two_steps(*again);
            CHECK(same_bits(again->all_gradients(), with->all_gradients()));
        }
    }
}
