// The whole model against PyTorch in FP64 (dev/reference/), and against itself: recompute levels, accumulation, chunks.
#include "llmc/model/transformer.h"

#include "llmc/device/math.cuh"
#include "test/model/gpt2_fixture.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// A model of the fixture's shape that has run forward and backward on its first batch.
template <class Real>
std::unique_ptr<TestModel<Real>> run_first_batch(const Gpt2Fixture& fixture, Recompute recompute) {
    const int B = fixture.integer("batch"), T = fixture.integer("seq");
    auto test = std::make_unique<TestModel<Real>>(fixture_config(fixture), B, T, recompute);
    test->load(fixture);
    const Batch batch = fixture_batch(fixture, 0);
    test->model.train_micro_step({batch.tokens.data(), batch.targets.data()}, {1.0f / static_cast<float>(B * T)},
                                 test->stream);
    return test;
}

template <class Real>
void check_gradients(double max_error, double min_cosine) {
    const Gpt2Fixture fixture;
    const auto test = run_first_batch<Real>(fixture, Recompute::gelu);
    const std::vector<std::vector<float>> gradients = test->all_gradients();
    size_t i = 0;
    for (const Unit& unit : test->table.units())
        for (const ParameterTensor& tensor : unit.tensors) {
            CAPTURE(tensor.name);
            std::vector<float> expected = fixture.gradient(tensor.name);
            expected.resize(tensor.count(), 0.0f);  // the padded rows of wte have no gradient
            const std::vector<float>& actual = gradients[i++];
            CHECK(relative_norm_error(actual, to_doubles(expected)) < max_error);
            CHECK(cosine(actual, expected) > min_cosine);
        }
    CHECK(i == 4 + 2 * 12);
}

OptimizerConfig fixture_adamw(const Gpt2Fixture& fixture) {
    return {.weight_decay = fixture.number("weight_decay"),
            .beta1 = fixture.number("beta1"),
            .eps = fixture.number("eps"),
            .beta2 = fixture.number("beta2")};
}

// Losses and gradient norms of the fixture's ten training steps.
template <class Real>
void train_ten_steps(const Gpt2Fixture& fixture, std::vector<double>& losses, std::vector<double>& norms) {
    TrainerConfig config =
        trainer_config(fixture_config(fixture), fixture.integer("batch"), fixture.integer("seq"), Recompute::gelu);
    config.schedule = {ScheduleKind::constant, fixture.number("lr"), 0, 100, 0};
    config.optimizer = fixture_adamw(fixture);
    config.clip = fixture.number("clip");
    TestModel<Real> test(config);
    test.load(fixture);
    for (int step = 0; step < fixture.integer("steps"); step++) {
        const StepRecord result = test.step(fixture_batch(fixture, step));
        losses.push_back(result.loss);
        norms.push_back(result.norm);
    }
}

}  // namespace

TEST_CASE("gpt2: gradients of every parameter against PyTorch FP64, fp32") { check_gradients<float>(1e-4, 0.999999); }
TEST_CASE("gpt2: gradients of every parameter against PyTorch FP64, bf16") { check_gradients<bf16>(3e-2, 0.999); }

TEST_CASE("gpt2: the first ten training losses and gradient norms against PyTorch FP64") {
    const Gpt2Fixture fixture;
    std::vector<double> losses, norms;
    SUBCASE("fp32") {
        train_ten_steps<float>(fixture, losses, norms);
        CHECK(max_relative_error(std::vector<float>(losses.begin(), losses.end()), fixture.losses(), 0) <
              4e-6);  // a wrong eps costs 3e-5
        CHECK(max_relative_error(std::vector<float>(norms.begin(), norms.end()), fixture.grad_norms(), 0) < 1e-3);
    }
    SUBCASE("bf16") {
        train_ten_steps<bf16>(fixture, losses, norms);
        CHECK(max_relative_error(std::vector<float>(losses.begin(), losses.end()), fixture.losses(), 0) < 1e-2);
    }
}

TEST_CASE_TEMPLATE("gpt2: every recompute level gives the same bits", Real, float, bf16) {
    const Gpt2Fixture fixture;
    const auto reference = run_first_batch<Real>(fixture, Recompute::none);
    const std::vector<std::vector<float>> expected = reference->all_gradients();
    size_t bytes = reference->model.activation_bytes();
    for (const Recompute level : {Recompute::gelu, Recompute::norm, Recompute::block}) {
        const auto test = run_first_batch<Real>(fixture, level);
        CHECK(test->all_gradients() == expected);
        CHECK(test->model.activation_bytes() < bytes);  // each level keeps less
        bytes = test->model.activation_bytes();
    }
}

TEST_CASE("gpt2: accumulating micro-steps equals the large batch") {
    const Gpt2Fixture fixture;
    const int B = fixture.integer("batch"), T = fixture.integer("seq");
    const auto whole = run_first_batch<float>(fixture, Recompute::gelu);
    TestModel<float> parts(fixture_config(fixture), 1, T, Recompute::gelu);
    parts.load(fixture);
    const Batch batch = fixture_batch(fixture, 0);
    for (int b = 0; b < B; b++)
        parts.model.train_micro_step({batch.tokens.data() + b * T, batch.targets.data() + b * T},
                                     {.loss_weight = 1.0f / static_cast<float>(B * T), .first = b == 0}, parts.stream);
    const auto expected = whole->all_gradients(), actual = parts.all_gradients();
    for (size_t i = 0; i < expected.size(); i++) CHECK(relative_norm_error(actual[i], to_doubles(expected[i])) < 1e-5);
    CHECK(parts.mean_train_loss() == doctest::Approx(whole->mean_train_loss()).epsilon(1e-6));
}

TEST_CASE("gpt2: evaluation gives the training loss, touches no gradient and ignores targets of -1") {
    const Gpt2Fixture fixture;
    const auto test = run_first_batch<float>(fixture, Recompute::gelu);
    const auto gradients = test->all_gradients();
    Batch batch = fixture_batch(fixture, 0);
    test->model.evaluate(batch.tokens.data(), batch.targets.data(), test->stream);
    const double both = test->mean_eval_loss();
    CHECK(both == doctest::Approx(test->mean_train_loss()).epsilon(1e-6));
    const size_t half = batch.targets.size() / 2;
    std::vector<int> first = batch.targets, second = batch.targets;
    std::fill(first.begin() + half, first.end(), -1);
    std::fill(second.begin(), second.begin() + half, -1);
    test->model.evaluate(batch.tokens.data(), first.data(), test->stream);
    const double first_half = test->mean_eval_loss();
    CHECK(test->read(test->model.eval_loss_count()) == static_cast<int>(half));
    test->model.evaluate(batch.tokens.data(), second.data(), test->stream);
    CHECK(test->read(test->model.eval_loss_count()) == static_cast<int>(half));
    CHECK((first_half + test->mean_eval_loss()) / 2 == doctest::Approx(both).epsilon(1e-6));
    CHECK(std::fabs(first_half - both) > 1e-4);
    CHECK(test->all_gradients() == gradients);
}

TEST_CASE("gpt2: initial values depend on the seed and the name alone, and have the published deviations") {
    ModelConfig config;
    config.layers = 4, config.heads = 4, config.channels = 128, config.vocab = 257, config.context = 64;
    const auto values_of = [&](const char* name, uint64_t seed) {
        for (const TensorRow& row : all_tensors(config))
            if (row.name == name) return first_values(config, row, seed);
        return std::vector<float>();
    };
    auto deviation = [](const std::vector<float>& values) {
        double sum = 0, squares = 0;
        for (float v : values) sum += v, squares += static_cast<double>(v) * v;
        const double mean = sum / values.size();
        return std::sqrt(squares / values.size() - mean * mean);
    };
    const std::vector<float> values = values_of("h.0.qkv.weight", 1337);
    CHECK(deviation(values) == doctest::Approx(0.02).epsilon(0.02));
    CHECK(deviation(values_of("h.0.fc_proj.weight", 1337)) == doctest::Approx(0.02 / std::sqrt(8.0)).epsilon(0.02));
    CHECK(values == values_of("h.0.qkv.weight", 1337));
    CHECK(values != values_of("h.0.qkv.weight", 1338));
    CHECK(values != values_of("h.1.qkv.weight", 1337));
    CHECK(values_of("h.1.ln2.weight", 1) == std::vector<float>(128, 1.0f));
    CHECK(values_of("h.1.fc.bias", 1) == std::vector<float>(512, 0.0f));
    const std::vector<float> wte = values_of("wte", 1337);
    REQUIRE(wte.size() == 384 * 128);
    for (size_t i = 257 * 128; i < wte.size(); i++) REQUIRE(wte[i] == 0.0f);
    CHECK(wte[257 * 128 - 1] != 0.0f);
}

TEST_CASE("gpt2: a new model has its initial values, in the masters and in the working copy") {
    TestModel<bf16> test(small_model(2, 16), 1, 16, Recompute::none);
    test.trainer.initialize(1337);
    for (const TensorRow& row : all_tensors(test.config)) {
        CAPTURE(row.name);
        const ParameterTable::Place place = test.table.find(row.name);
        const std::vector<float> expected = first_values(test.config, row, 1337);
        CHECK(test.weights.get_tensor(place.unit, place.tensor, test.stream) == expected);
        const UnitInUse unit(test.weights, place.unit, test.stream);
        const std::vector<bf16> working = read_back(test.weights.weight(place), expected.size(), test.stream);
        for (size_t i = 0; i < working.size(); i++) REQUIRE(working[i].bits == to_bf16(expected[i]).bits);
    }
}

TEST_CASE(
    "gpt2: initial values are Box-Muller's with the C library's logarithm and cosine, to a unit in the last place") {
    ModelConfig config;
    config.layers = 1, config.heads = 2, config.channels = 256, config.vocab = 1024, config.context = 64;
    const TensorRow row = all_tensors(config).front();
    const std::vector<float> values = first_values(config, row, 1337);
    const auto mix = [](uint64_t z) { return mix64(z + kGolden64); };
    uint64_t name = 0xCBF29CE484222325ull;
    for (const char c : row.name) name = (name ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    const uint64_t key = mix(1337 ^ name);
    size_t other_bits = 0;
    for (size_t i = 0; i < static_cast<size_t>(row.count()); i++) {
        const uint64_t bits = mix(key ^ mix(i));
        const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
        const double angle = static_cast<double>(bits & 0xffffffffu) * (0x1p-32 * 6.283185307179586);
        const float expected = 0.02f * static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
        other_bits += values[i] != expected ? 1 : 0;
        REQUIRE(std::fabs(values[i] - expected) <= std::fabs(expected) * 0x1p-23f);
    }
    CHECK(other_bits < 4);  // out of 262144
}
