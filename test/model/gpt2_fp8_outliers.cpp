// The effect of outliers and non-finite values on training in FP8. Outliers saturate for one step, until the window
// contains them, and leave no trace when they have left it. A non-finite value costs exactly one step.
#include <limits>

#include "test/model/fp8_training.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotFinite[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};

// One channel of `name` is 1000 times larger for two steps, which affects `tensor`. Weights do not move and keep their
// scales, the batch is always the same, and no earlier FP8 tensor changes, so its values repeat bit for bit.
void check_outlier(const char* name, const char* tensor) {
    CAPTURE(name);
    constexpr int kWindow = 4;
    Fp8Config config = recipe(Fp8Recipe::delayed);
    config.history = kWindow;
    Fp8Training run(config, "off", Recompute::gelu, "all", 0);
    run.test.fp8->dither_weights(nullptr);
    for (int i = 0; i < kWindow + 2; i++) run.step(0);
    const size_t index = static_cast<size_t>(run.test.fp8->find(tensor));
    const float usual = run.states()[index].scale;
    CHECK(run.states()[index].saturated == 0);

    const std::vector<float> before = enlarge_channel(run, name, 3, 1000);
    run.step(0);
    const Fp8State first = run.states()[index];
    CHECK(first.saturated > 0);
    CHECK(first.scale < 0.5f * usual);
    CHECK(first.scale == kE4M3Max / first.last_amax);
    run.step(0);
    const Fp8State second = run.states()[index];
    CHECK(second.saturated == first.saturated);  // the sum of both steps: none in this one
    CHECK(second.elements > first.elements);
    CHECK(second.scale <= first.scale);  // an input may grow again once its producer no longer saturates

    const auto place = run.test.table.find(name);
    run.test.weights.set_tensor(place.unit, place.tensor, before, run.test.stream);
    for (int i = 0; i + 1 < kWindow; i++) {
        run.step(0);
        CHECK(run.states()[index].scale == second.scale);
    }
    run.step(0);  // the last step with the outlier leaves the window
    const Fp8State after = run.states()[index];
    CHECK(after.scale == usual);
    CHECK(after.nonfinite == 0);
}

// Master weights and both moments, bit by bit.
std::vector<std::vector<float>> training_state(Fp8Training& run) {
    std::vector<std::vector<float>> all = run.weights();
    for (const auto& moment : run.optimizer.moments().all())
        all.push_back(read_back(moment.values.as<float>(), run.test.weights.layout().slice_total(), run.test.stream));
    return all;
}

// Two good steps, one in which `spoil(run)` does everything except the optimizer's part, and one good step. `bad` is
// the tensor in which casts first see it, "" for none, nullptr for any.
template <class F>
void check_skipped(const char* bad, F&& spoil) {
    Fp8Training run(recipe(Fp8Recipe::delayed), "dynamic");
    for (int i = 0; i < 2; i++) run.step(i);
    const auto before = training_state(run);
    run.test.begin_step();
    spoil(run);
    run.finish_step();
    if (bad) CHECK(run.test.read(run.test.fp8->bad_flag()) == (*bad ? run.test.fp8->find(bad) + 1 : 0));
    CHECK(run.test.read(run.optimizer.state()).skip == 1);
    CHECK(run.test.read(run.optimizer.state()).skipped == 1);
    CHECK(std::isfinite(run.test.mean_train_loss()));  // the loss is finite, so something else was noticed
    CHECK(same_bits(training_state(run), before));
    run.step(3);
    CHECK(run.test.read(run.optimizer.state()).skip == 0);
    CHECK(run.test.read(run.optimizer.state()).applied == 3);
    CHECK(run.test.read(run.test.fp8->bad_flag()) == 0);
    CHECK(std::isfinite(run.test.mean_train_loss()));
    for (const Fp8State& state : run.states()) CHECK((state.scale > 0 && std::isfinite(state.scale_inv)));
    const auto after = training_state(run);
    CHECK(!same_bits(after, before));
    for (const std::vector<float>& array : after)
        for (const float value : array) REQUIRE(std::isfinite(value));
}

}  // namespace
TEST_SUITE_BEGIN(kNotUnderSanitizers);

TEST_CASE("gpt2 fp8 outliers: a channel x1000 saturates for one step and is forgotten when the window has passed it") {
    check_outlier("h.1.ln1.weight", "h.1.qkv.x");
    check_outlier("h.0.ln2.weight", "h.0.fc.x");
    check_outlier("wpe", "h.0.qkv.x");
}

// A product with a non-finite scale leaves nothing finite in BF16: GELU's gradient, which is cast to fc's dout.
TEST_CASE("gpt2 fp8 outliers: a BF16 gradient between two FP8 layers that is not finite skips the step") {
    for (const float value : kNotFinite)
        check_skipped("h.1.fc.dout", [&](Fp8Training& run) {
            Fp8State* state = const_cast<Fp8State*>(run.test.fp8->states()) + run.test.fp8->find("h.1.fc_proj.dout");
            write_through(&state->scale_inv, value, run.test.stream);
            run.micro_step(2, 1.0f);
        });
}

TEST_CASE("gpt2 fp8 outliers: dlogits that are not finite skip the step") {
    for (const float value : kNotFinite) check_skipped(nullptr, [&](Fp8Training& run) { run.micro_step(2, value); });
}

TEST_CASE("gpt2 fp8 outliers: one FP32 gradient that is not finite, wherever it is, skips the step") {
    for (const char* name : {"wte", "wpe", "h.0.qkv.weight", "h.1.fc_proj.bias", "lnf.bias"})
        for (const float value : kNotFinite) {
            if (name != std::string("wte") && value == value) continue;  // in other tensors only NaN
            CAPTURE(name);
            check_skipped("", [&](Fp8Training& run) {
                run.micro_step(2, 1.0f);
                const auto place = run.test.table.find(name);
                run.test.gradients.acquire(place.unit, run.test.stream);
                write_through(run.test.gradients.gradient(place) + 7, value, run.test.stream);
                run.test.gradients.reduce(place.unit, run.test.stream);
            });
        }
}
