// Verified steps: they leave no trace in training, and a flipped bit of every kind is found and named.
// build: per device
#include "llmc/train/verification.h"
#include "llmc/train/state.h"

#include <nlohmann/json.hpp>

#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"
#endif
#include "test/model/gpt2_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// `recipe` is an FP8 recipe, or nullptr for a run without FP8. If `verified`, every second step is verified.
TrainerConfig config_of(const char* recipe, bool verified, int micro_steps = 1, Recompute recompute = Recompute::gelu) {
    const bool block = recipe && recipe == std::string("block");  // needs 128 channels and tokens
    const int tokens = block ? 128 : 32;
    ModelConfig model = small_model(2, tokens);
    if (block) model.channels = 128;
    Fp8Config fp8;
    if (recipe) fp8.recipe = value_of_word<Fp8Recipe>(recipe).value();
    TrainerConfig config = trainer_config(model, 1, tokens, recompute, recipe ? &fp8 : nullptr);
    config.micro_steps = micro_steps;
    config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
    config.clip = 1.0;
    config.loss_scale = loss_scale_config(recipe ? "dynamic" : "off");
    config.verify_every = verified ? 2 : 0;
    return config;
}

constexpr int kMostTokens = 128;  // a micro-batch of fewer takes the first of these

template <class Real>
struct Run : TestModel<Real> {
    using Base = TestModel<Real>;
    std::vector<double> numbers;  // losses and norms

    explicit Run(const TrainerConfig& config) : Base(config) { Base::trainer.initialize(3); }

    StepRecord step() {
        const int index = static_cast<int>(Base::trainer.steps()), n = Base::trainer.config().micro_steps;
        Base::begin_step();
        for (int m = 0; m < n; m++) {
            const Batch batch = small_batch(index * n + m, kMostTokens);
            Base::trainer.micro_step(batch.tokens.data(), batch.targets.data());
        }
        const StepRecord result = Base::finish_step();
        numbers.push_back(result.loss);
        numbers.push_back(result.norm);
        return result;
    }
    // Flips a bit of byte `byte` of the middle element.
    template <class T>
    void flip(const T* memory, size_t count, size_t byte = 0) {
        T* middle = const_cast<T*>(memory) + count / 2;
        T value = read_back(middle, Base::stream);
        reinterpret_cast<uint8_t*>(&value)[byte] ^= 0x40;
        write_through(middle, value, Base::stream);
    }
    std::string difference_in_next_step() {
        const StepRecord result = step();
        REQUIRE(result.verified);
        return result.verified->difference;
    }
};

template <class Real>
void check_no_trace(const char* recipe, int micro_steps, Recompute recompute) {
    CAPTURE(recipe);
    CAPTURE(micro_steps);
    Run<Real> plain(config_of(recipe, false, micro_steps, recompute));
    Run<Real> verified(config_of(recipe, true, micro_steps, recompute));
    for (int i = 1; i <= 4; i++) {
        CAPTURE(i);
        CHECK(!plain.step().verified);
        const StepRecord result = verified.step();
        REQUIRE(bool(result.verified) == (i % 2 == 0));
        if (!result.verified) continue;
        CHECK(result.verified->difference == "");
        CHECK(result.verified->ms > 0);
        const ProductCounts &a = plain.trainer.submitted().products, &b = verified.trainer.submitted().products;
        CHECK((a.fp8 == b.fp8 && a.bf16 == b.bf16 && a.fp32 == b.fp32 && a.emulated == b.emulated));
    }
    CHECK(plain.numbers == verified.numbers);
    CHECK(same_bits(all_weights(plain.weights, plain.stream), all_weights(verified.weights, verified.stream)));
    // Also scales, histories and counts.
    CHECK(state_json(plain.trainer.read_state()) == state_json(verified.trainer.read_state()));
}

}  // namespace

TEST_CASE("verification: leaves no trace" * doctest::test_suite(kNotUnderSanitizers)) {
    check_no_trace<float>(nullptr, 1, Recompute::gelu);
    check_no_trace<bf16>(nullptr, 2, Recompute::none);
    check_no_trace<bf16>("delayed", 1, Recompute::block);
    check_no_trace<bf16>("delayed", 3, Recompute::norm);
    check_no_trace<bf16>("current", 1, Recompute::norm);
    check_no_trace<bf16>("mxfp8", 1, Recompute::block);
    check_no_trace<bf16>("block", 2, Recompute::gelu);
}

TEST_CASE("verification: Muon's momentum and NorMuon's second moments") {
    TrainerConfig config = config_of(nullptr, true);
    config.optimizer.kind = OptimizerKind::normuon;
    const auto difference_after = [&](auto&& flip) {
        Run<bf16> run(config);
        run.step();
        flip(run);
        return run.difference_in_next_step();
    };
    CHECK(difference_after([](Run<bf16>&) {}).empty());
    const std::string momentum = difference_after([](Run<bf16>& run) {
        const ParameterTable::Place place = run.table.find("h.1.fc.weight");
        const ParameterTensor& tensor = run.table.tensor(place);
        const auto momentum = run.optimizer.moments().of(place.unit, tensor, tensor.offset)[0];
        run.flip(momentum.values.as<float>(), tensor.count(), 2);
    });
    CHECK(momentum.find("m of h.1.fc.weight had checksum ") != std::string::npos);
    const std::string second = difference_after([](Run<bf16>& run) {
        const auto lines = run.optimizer.muon()->second_moments()[2];  // V of the first block
        run.flip(lines.values, lines.lines, 2);
    });
    CHECK(second.find("second of h.0.qkv.weight.lines.2 had checksum ") != std::string::npos);
}

TEST_CASE("verification: a bit of the masters or moments that flips between two steps") {
    for (const char* moment : {"master", "m", "v"}) {
        CAPTURE(moment);
        Run<bf16> run(config_of(nullptr, true)), blind(config_of(nullptr, false)), clean(config_of(nullptr, false));
        const bool master = moment == std::string("master");
        const auto flip = [&](Run<bf16>& r) {  // a bit of a master that is too low to show in the working copy
            const ParameterTable::Place place = r.table.find("h.1.fc.weight");
            const ParameterTensor& tensor = r.table.tensor(place);
            const size_t at = r.trainer.layout().slice_index(place.unit) + tensor.offset;
            const float* memory = r.weights.master(place.unit, place.tensor).as<float>();
            for (const auto& m : r.optimizer.moments().all())
                if (m.name == std::string(moment)) memory = m.values.as<float>() + at;
            r.flip(memory, tensor.count(), master ? 0 : 2);
        };
        for (Run<bf16>* r : {&run, &blind, &clean}) r->step();
        flip(run), flip(blind);
        const std::string found = run.difference_in_next_step();
        CHECK(found.find("rank 0 on ") == 0);
        CHECK(found.find(device_info().name) != std::string::npos);
        CHECK(found.find(moment + std::string(" of h.1.fc.weight had checksum ")) != std::string::npos);
        CHECK(found.find(" after the optimizer of the step before, and ") != std::string::npos);
        // Without verification the flip goes unnoticed and changes the training.
        CHECK(!blind.step().verified);
        clean.step();
        CHECK(!same_bits(all_weights(blind.weights, blind.stream), all_weights(clean.weights, clean.stream)));
    }
}

TEST_CASE("verification: moments in BF16 are seen to their last element") {
    TrainerConfig config = config_of(nullptr, true);
    config.optimizer.adam_moments = StateFormat::bf16;
    Run<bf16> run(config);
    run.step();
    CHECK(run.difference_in_next_step().empty());
    run.step();
    const ParameterTable::Place place = run.table.find("h.1.fc.weight");
    const ParameterTensor& tensor = run.table.tensor(place);
    const auto v = run.optimizer.moments().of(place.unit, tensor, tensor.offset)[1];
    run.flip(v.values.as<bf16>() + tensor.count() - 1, 1);
    CHECK(run.difference_in_next_step().find("v of h.1.fc.weight had checksum ") != std::string::npos);
}

TEST_CASE("verification: a bit of a working copy that flips between two steps" *
          doctest::test_suite(kNotUnderSanitizers)) {
    const auto found_in = [](const char* recipe, const char* layers, const char* name) {
        TrainerConfig config = config_of(recipe, true);
        config.fp8_layers = fp8_layers_from_text(layers);
        Run<bf16> run(config);
        run.step();
        std::vector<NamedMemory> copies = run.weights.working_copies();
        for (const NamedMemory& codes : run.model.linear().weight_codes()) copies.push_back(codes);
        for (const NamedMemory& memory : copies)
            if (memory.name == name) run.flip(static_cast<const uint8_t*>(memory.address), memory.bytes);
        return run.difference_in_next_step();
    };
    const auto says = [](const std::string& found, const std::string& name) {
        CAPTURE(found);
        return found.find("): weights " + name + " had checksum ") != std::string::npos;
    };
    CHECK(says(found_in(nullptr, "all", "h.0.fc.weight"), "h.0.fc.weight"));
    CHECK(says(found_in(nullptr, "all", "wte"), "wte"));
    for (const char* recipe : {"delayed", "block", "mxfp8"})
        for (const char* name : {"h.1.qkv.weight in FP8", "h.1.qkv.weight in FP8, transposed", "h.0.ln1.bias"}) {
            CAPTURE(recipe);
            CAPTURE(name);
            CHECK(says(found_in(recipe, "all", name), name));
        }
    CHECK(says(found_in("delayed", "all,+lm_head", "wte in FP8, transposed"), "wte in FP8, transposed"));
    CHECK(found_in("delayed", "all,+lm_head", "wte in FP8") == "");  // forward reads the working copy
    CHECK(found_in("delayed", "all,+lm_head", "no such tensor") == "");
}

TEST_CASE("verification: new weights, or other work between two steps, are no difference") {
    Run<float> run(config_of(nullptr, true));
    run.step();
    run.trainer.set_weight("h.0.fc.bias", std::vector<float>(4 * 64, 0.25f));
    run.trainer.weights_are_set();
    CHECK(run.difference_in_next_step() == "");
    run.step();
    const Batch other = small_batch(99, kMostTokens);
    run.trainer.evaluate(other.tokens.data(), other.targets.data());
    run.model.next_token_logits(other.tokens.data(), 20, run.stream);
    CHECK(run.difference_in_next_step() == "");
}

#if !LLMC_CUDA
namespace {

// In step 2, flips a bit in the output of the n-th such operation.
template <class Real>
std::string found_after_flip(const char* recipe, const char* work, uint64_t n, int micro_steps = 1) {
    Run<Real> run(config_of(recipe, true, micro_steps)), blind(config_of(recipe, false, micro_steps));
    run.step(), blind.step();
    host::settings().flip = {work, n};
    const std::string found = run.difference_in_next_step();
    host::settings().flip = {work, n};
    CHECK(!blind.step().verified);
    host::settings().flip = {};
    return found;
}

}  // namespace

TEST_CASE("verification: a bit of an activation or a gradient that flips in one of two micro-steps" *
          doctest::test_suite(kNotUnderSanitizers)) {
    const auto says = [](const std::string& found, const std::string& what) {
        CAPTURE(found);
        CHECK(found.find("): " + what + " had checksum ") != std::string::npos);
        CHECK(found.find(" in the first micro-step, and ") != std::string::npos);
    };
    // Two norms per block and the last one: the third of a pass is ln1 of block 1, whose error shows at the end of
    // block 1.
    for (const uint64_t first : {0, 5}) {
        CAPTURE(first);
        says(found_after_flip<float>(nullptr, "embedding_forward", first / 5 + 1), "output of embedding");
        says(found_after_flip<float>(nullptr, "layernorm_forward", first + 1), "output of block 0");
        says(found_after_flip<bf16>(nullptr, "layernorm_forward", first + 3), "output of block 1");
        says(found_after_flip<bf16>("delayed", "layernorm_forward", first + 3, 2), "output of block 1");
        says(found_after_flip<bf16>("mxfp8", "layernorm_forward", first + 5), "output of final norm");
        says(found_after_flip<bf16>(nullptr, "softmax_cross_entropy", first / 5 + 1), "gradient of lnf.weight");
        says(found_after_flip<float>(nullptr, "embedding_backward_tokens", first / 5 + 1, 2), "gradient of wte");
    }
}
#endif
