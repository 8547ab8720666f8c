// Verified steps on several ranks: they change nothing in any sharding stage, and every rank reports which rank went
// wrong.
// build: per device
#include "llmc/train/verification.h"
#include "llmc/train/state.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "test/comm/ranks/sharded_run.h"
#include "test/suites.h"
#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"
#endif

using namespace llmc;
using namespace llmc::test;

namespace {

TrainerConfig config_of(int stage, const char* recipe, int micro_steps, bool verified, Wire wire,
                        StateFormat moments = StateFormat::fp32) {
    TrainerConfig config = trainer_config(
        {.stage = stage, .micro_steps = micro_steps, .recipe = recipe, .wire = wire, .moments = moments});
    config.model.heads = 2, config.model.channels = 64;
    // Then AdamW's moments are those of some tensors only, and a rank may have none of a unit's.
    if (moments == StateFormat::fp8) config.optimizer.kind = OptimizerKind::muon;
    config.verify_every = verified ? 1 : 0;
    return config;
}

template <class Real>
struct Run : ShardedRun<Real> {
    using Base = ShardedRun<Real>;
    using Base::trainer, Base::stream;
    std::vector<double> numbers;

    Run(int stage, const char* recipe, int micro_steps, bool verified, Wire wire = Wire::fp32,
        StateFormat moments = StateFormat::fp32)
        : Base(config_of(stage, recipe, micro_steps, verified, wire, moments), world()) {}

    // Runs a step; `late` runs before the optimizer. Returns the findings, which are the same on every rank.
    std::string step(const std::function<void()>& late = [] {}) {
        trainer.begin_step({.count_losses = true});
        const int n = trainer.config().micro_steps, steps = static_cast<int>(trainer.steps());
        for (int m = 0; m < n; m++) Base::micro_step((steps * n + m) * world().world() + world().rank());
        late();
        const StepRecord result = Base::finish_step();
        numbers.push_back(result.loss);
        numbers.push_back(result.norm);
        if (trainer.config().verify_every == 0) return "";
        REQUIRE(result.verified);
        world().require_equal("difference", result.verified->difference);
        return result.verified->difference;
    }
    // Flips a bit of the last element, on rank 1 only.
    void flip(const void* memory, size_t bytes) {
        if (world().rank() != 1) return;
        uint8_t* at = static_cast<uint8_t*>(const_cast<void*>(memory)) + bytes - 2;
        write_through(at, static_cast<uint8_t>(Base::read(at) ^ 0x40), stream);
    }
};

template <class Real>
void check_no_trace(int stage, const char* recipe, int micro_steps, Wire wire = Wire::fp32,
                    StateFormat moments = StateFormat::fp32) {
    CAPTURE(stage);
    CAPTURE(micro_steps);
    Run<Real> plain(stage, recipe, micro_steps, false, wire, moments);
    Run<Real> verified(stage, recipe, micro_steps, true, wire, moments);
    for (int i = 0; i < 2; i++) {  // the calibrating step, and one with histories and residuals
        plain.step();
        CHECK(verified.step() == "");
    }
    CHECK(plain.numbers == verified.numbers);
    CHECK(same_bits(plain.weights(), verified.weights()));
    CHECK(state_json(plain.trainer.read_state()) == state_json(verified.trainer.read_state()));
}

void check_says(const std::string& found, const std::string& what) {
    CAPTURE(found);
    CHECK(found.find("rank 1 on " + world().host(1)) == 0);
    CHECK(found.find("): " + what + " had checksum ") != std::string::npos);
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("verified steps leave no trace in any stage" * doctest::test_suite(kTrainingLong)) {
    for (int stage = 0; stage <= 3; stage++) check_no_trace<bf16>(stage, "delayed", 1 + stage % 2);
    check_no_trace<float>(0, nullptr, 2);
    check_no_trace<bf16>(1, nullptr, 1);
    check_no_trace<bf16>(1, "current", 2);
    check_no_trace<bf16>(2, nullptr, 2);
    check_no_trace<bf16>(2, "mxfp8", 2);
    check_no_trace<float>(3, nullptr, 2);
    check_no_trace<bf16>(3, "current", 1);
}

TEST_CASE("verified steps leave no trace in residuals of FP8 gradients") {
    for (int stage = 0; stage <= 3; stage++) check_no_trace<bf16>(stage, nullptr, 1 + stage / 2 % 2, Wire::fp8);
}

TEST_CASE("verified steps leave no trace in first moments in FP8 beside Muon's") {
    for (int stage = 0; stage <= 3; stage++) check_no_trace<bf16>(stage, nullptr, 1, Wire::fp32, StateFormat::fp8);
}

TEST_CASE("verified steps name the rank whose memory went wrong" * doctest::test_suite(kTrainingLong)) {
    if (world().world() == 1) return;
    for (int stage = 0; stage <= 3; stage++)
        for (const char* recipe : {static_cast<const char*>(nullptr), "delayed"}) {
            CAPTURE(stage);
            CAPTURE(recipe);
            Run<bf16> run(stage, recipe, 2, true);
            CHECK(run.step() == "");
            const auto copies = run.trainer.weights().working_copies();
            size_t i = 0;  // a part that every rank has
            while (copies[i].name.find("h.1.fc.weight") != 0 && i + 1 < copies.size()) i++;
            REQUIRE((stage == 0 || copies[i].name == std::string("h.1.fc.weight") + (recipe ? " in FP8" : "")));
            run.flip(copies[i].address, copies[i].bytes);
            check_says(run.step(), "weights " + copies[i].name);
            CHECK(run.step() == "");  // the copy has been made again meanwhile
        }
}

TEST_CASE("verified steps name a rank whose masters or gradient sums differ") {
    if (world().world() == 1) return;
    const std::string others = world().world() == 2 ? "where 1 of 2 ranks, 0 among them, had "
                                                    : fmt::format("where {} of {} ranks, 0 among them, had ",
                                                                  world().world() - 1, world().world());
    Run<float> run(0, nullptr, 2, true);
    CHECK(run.step() == "");
    const ParameterTable::Place place = run.trainer.table().find("h.1.fc.weight");
    const ParameterTensor& tensor = run.trainer.table().tensor(place);
    const float* const sums = run.trainer.gradients().slice(place.unit).from(tensor.offset).as<float>();
    const std::string found = run.step([&] { run.flip(sums, tensor.count() * sizeof(float)); });
    check_says(found, "sum of gradient of h.1.fc.weight");
    CHECK(found.find(others) != std::string::npos);
    CHECK((found.find("it is unknown which of them is wrong") != std::string::npos) == (world().world() == 2));
    // The optimizer computed other masters from it, only here, and they stay as they are.
    const std::string later = run.step();
    check_says(later, "master of h.1.fc.weight");
    CHECK(later.find(others) != std::string::npos);
}

#if !LLMC_CUDA
TEST_CASE("verified steps name the rank that went wrong in a micro-step, and the first wrong tensor" *
          doctest::test_suite(kTrainingLong)) {
    if (world().world() == 1) return;
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        Run<bf16> two(stage, nullptr, 2, true), one(stage, nullptr, 1, true);
        const auto found_after_flip = [](Run<bf16>& run, const char* work, uint64_t n) {
            CHECK(run.step() == "");
            if (world().rank() == 1) host::settings().flip = {work, n};
            const std::string found = run.step();
            host::settings().flip = {};
            return found;
        };
        // Seven norms per pass.
        check_says(found_after_flip(two, "layernorm_forward", 3), "output of block 1");
        check_says(found_after_flip(one, "layernorm_forward", 7 + 3), "output of block 1");
        check_says(found_after_flip(one, "embedding_backward_positions", 1), "gradient of wpe");
        check_says(found_after_flip(two, "embedding_backward_positions", 2), "gradient of wpe");
        // Rank 1 receives wrong data: its sum of the last norm's gradient, which travels first.
        const std::string arrived = found_after_flip(one, "reduce_scatter", 1);
        CAPTURE(arrived);
        CHECK(arrived.find("sum of gradient of lnf.") != std::string::npos);
        if (stage > 0) CHECK(arrived.find("rank 1 on ") == 0);
    }
}
#endif
