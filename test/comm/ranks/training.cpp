// Training spread over ranks: every sharding stage makes the steps that one rank makes with the same global batch, and
// all stages give equal bits if sums are in rank order.
// build: per device
#include <cstring>
#include <map>

#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif
#include "llmc/device/trace.h"
#include "llmc/log/provenance.h"
#include "llmc/plan/plan.h"
#include "test/comm/ranks/sharded_run.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

double largest_gap(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); i++) {
        const double gap = std::abs(a[i] / b[i] - 1);
        if (!(gap <= largest)) largest = gap == gap ? gap : INFINITY;
    }
    return largest;
}

// The results of training, on the host.
struct Outcome {
    std::vector<double> losses, norms;
    size_t left = 0;
    std::vector<std::vector<float>> weights;
};

template <class T>
void share(std::vector<T>& values) {  // sends rank 0's values
    world().host_broadcast(values.data(), values.size() * sizeof(T), 0);
}

// The result of one rank that processes all the micro-batches. Rank 0 trains it for all ranks.
template <class Real>
Outcome trained_alone(const RunConfig& config) {
    ShardedRun<Real> run(config, Comm::self(world().reduce_order()));
    if (world().rank() == 0) run.train();
    run.losses.resize(kSteps), run.norms.resize(kSteps);
    std::vector<size_t> left = {run.left};
    Outcome outcome{run.losses, run.norms, 0, run.weights()};
    share(outcome.losses), share(outcome.norms), share(left);
    outcome.left = left[0];
    for (std::vector<float>& tensor : outcome.weights) share(tensor);
    return outcome;
}

// Compares all stages with one rank that processes all the micro-batches: to the bit if gradients are summed in rank
// order and groups do not sum first, and within the bounds in NCCL's order.
template <class Real>
void check_stages(RunConfig config, double loss_bound, double norm_bound,
                  const std::vector<int>& micro_step_counts = {2}) {
    const int ranks = world().world();
    const bool exact = world().reduce_order() == ReduceOrder::rank && config.within == 0;
    for (const int micro_steps : micro_step_counts) {
        RunConfig alone = config;
        alone.stage = alone.within = 0;
        alone.micro_steps = micro_steps * ranks;
        const Outcome reference = trained_alone<Real>(alone);
        REQUIRE(reference.losses.front() > reference.losses.back() * 1.01);  // it learns
        std::vector<std::vector<float>> first_weights = reference.weights;
        const int first_stage = config.within > 0 ? 1 : 0;
        for (int stage = first_stage; stage <= 3; stage++) {
            CAPTURE(stage);
            CAPTURE(micro_steps);
            config.stage = stage;
            config.micro_steps = micro_steps;
            ShardedRun<Real> run(config, world());
            run.train();
            CHECK(largest_gap(run.losses, reference.losses) < (exact ? 1e-30 : loss_bound));
            if (config.fallback.steps > 0) CHECK((run.left > 0 && run.left == reference.left));
            CHECK(largest_gap(run.norms, reference.norms) < (exact ? 1e-30 : norm_bound));
            const auto weights = run.weights();
            if (!exact && stage == first_stage) first_weights = weights;
            // Otherwise stages 0 and 1 add up micro-steps before ranks, while 2 and 3 do the reverse.
            if (exact || micro_steps == 1 || stage == 1) CHECK(same_bits(weights, first_weights));
        }
    }
}

}  // namespace

TEST_SUITE_BEGIN("training");

TEST_CASE("sharded training in FP32 equals one rank's") { check_stages<float>({}, 1e-5, 1e-4, {1, 2}); }

TEST_CASE("sharded training in BF16 equals one rank's") { check_stages<bf16>({}, 1e-3, 2e-2, {1, 2}); }

TEST_CASE("sharded training with moments in BF16 or FP8 equals one rank's: random bits and scales belong to elements") {
    RunConfig config;
    for (const StateFormat moments : {StateFormat::bf16, StateFormat::fp8}) {
        config.moments = moments;
        check_stages<bf16>(config, 1e-3, 2e-2);
    }
}

TEST_CASE("sharded training with masters in BF16 equals one rank's: random bits belong to elements") {
    RunConfig config;
    config.masters = StateFormat::bf16;
    for (const char* recipe : {static_cast<const char*>(nullptr), "delayed", "current"}) {
        CAPTURE(recipe);
        config.recipe = recipe;
        check_stages<bf16>(config, 1e-3, 5e-2);
    }
}

TEST_CASE("sharded training with gradients in BF16 equals one rank's: every micro-batch is rounded by itself") {
    RunConfig config;
    config.gradients = StateFormat::bf16;
    for (const char* recipe : {static_cast<const char*>(nullptr), "delayed"}) {
        CAPTURE(recipe);
        config.recipe = recipe;
        check_stages<bf16>(config, 1e-3, 5e-2);
    }
    config.wire = Wire::bf16;  // a micro-step's sum is rounded, and stages agree with each other
    config.micro_steps = 2;
    std::vector<std::vector<float>> first;
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        config.stage = stage;
        ShardedRun<bf16> run(config, world());
        run.train();
        if (stage == 0) first = run.weights();
        CHECK(same_bits(run.weights(), first));
    }
    config.within = 1;
    if (world().world() > 1) CHECK_THROWS_AS(Trainer<bf16>(trainer_config(config), world()), Error);
}

TEST_CASE("norms by tensor are those of one rank in every stage") {
    RunConfig config;
    config.signals_every = 1;
    RunConfig alone = config;
    alone.micro_steps = world().world();
    ShardedRun<bf16> reference(alone, Comm::self(world().reduce_order()));
    reference.step(0);
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        config.stage = stage;
        ShardedRun<bf16> run(config, world());
        run.step(0);
        REQUIRE(run.signals.size() == reference.signals.size());
        for (size_t t = 0; t < run.signals.size(); t++) {
            CAPTURE(run.signals[t].tensor);
            CHECK(run.signals[t].gradient == doctest::Approx(reference.signals[t].gradient).epsilon(1e-3));
            CHECK(run.signals[t].weight == doctest::Approx(reference.signals[t].weight).epsilon(1e-3));
            CHECK(run.signals[t].update == doctest::Approx(reference.signals[t].update).epsilon(1e-3));
            REQUIRE(run.signals[t].max_logit.has_value() == reference.signals[t].max_logit.has_value());
            if (!run.signals[t].max_logit) continue;
            CHECK(run.signals[t].max_logit->logit == reference.signals[t].max_logit->logit);
            CHECK(run.signals[t].max_logit->head == reference.signals[t].max_logit->head);
        }
    }
}

TEST_CASE("sharded training with QK-clip equals one rank's: ranks share the largest logits, and clip their slices") {
    const std::pair<const char*, StateFormat> kinds[] = {{nullptr, StateFormat::fp32},
                                                         {nullptr, StateFormat::bf16},
                                                         {"delayed", StateFormat::fp32},
                                                         {"current", StateFormat::bf16}};
    for (const auto& [recipe, masters] : kinds) {
        CAPTURE(recipe);
        RunConfig config;
        config.recipe = recipe, config.masters = masters;
        ShardedRun<bf16> other(config, world());
        other.train();
        config.qk_clip = 0.03;
        check_stages<bf16>(config, 1e-3, 5e-2, {1});
        ShardedRun<bf16> clipped(config, world());
        clipped.train();
        CHECK(clipped.losses.front() == other.losses.front());
        CHECK(!same_bits(clipped.weights(), other.weights()));
    }
}

TEST_CASE("sharded training with clipping by tensor norm or value equals one rank's") {
    for (const auto& [kind, clip] : {std::pair{ClipKind::tensor, 0.02}, {ClipKind::value, 1e-3}}) {
        RunConfig config;
        config.clip_kind = kind, config.clip = clip;
        check_stages<float>(config, 1e-5, 1e-4, {1});
        ShardedRun<float> clipped(config, world()), other(RunConfig{}, world());
        clipped.train(), other.train();
        CHECK(clipped.norms.front() == other.norms.front());
        CHECK(!same_bits(clipped.weights(), other.weights()));
    }
}

TEST_CASE("sharded training in FP8 equals one rank's, with the same scales on every rank") {
    for (const char* recipe : {"delayed", "current"}) {
        CAPTURE(recipe);
        RunConfig config;
        config.recipe = recipe;
        check_stages<bf16>(config, 1e-3, 5e-2);
    }
    RunConfig config;
    config.recipe = "delayed";
    RunConfig alone = config;
    alone.micro_steps = world().world();
    ShardedRun<bf16> reference(alone, Comm::self(world().reduce_order()));
    reference.train();
    for (int stage = 0; stage <= 3; stage++) {
        CAPTURE(stage);
        config.stage = stage;
        ShardedRun<bf16> run(config, world());
        run.train();
        for (int i = 0; i < run.fp8->count(); i++) {
            CAPTURE(run.fp8->name(i));
            const float scale = run.read(run.fp8->states() + i).scale;
            std::vector<float> all(as_size(world().world()));
            world().host_all_gather(all.data(), &scale, sizeof scale);
            for (const float other : all) CHECK(other == scale);
            const float alone = reference.read(reference.fp8->states() + i).scale;
            CHECK(std::abs(scale / alone - 1) < (world().reduce_order() == ReduceOrder::rank ? 1e-30 : 0.01));
        }
    }
}

TEST_CASE("sharded FP8: some layers in BF16, the head, whole-block recomputation, BF16 wire, mxfp8" *
          doctest::test_suite(kTrainingLong)) {
    RunConfig config;
    config.recipe = "delayed";
    config.layers = "all,-first,-block1.fc";
    config.recompute = Recompute::block;
    check_stages<bf16>(config, 1e-3, 5e-2);
    RunConfig head;
    head.recipe = "delayed";
    head.layers = "all,+lm_head";
    check_stages<bf16>(head, 1e-3, 5e-2);
    RunConfig wire;
    wire.wire = Wire::bf16;
    ShardedRun<bf16> whole(RunConfig{}, world());
    whole.train();
    for (int stage = 0; stage <= 3; stage++) {
        wire.stage = stage;
        ShardedRun<bf16> run(wire, world());
        run.train();
        CHECK(largest_gap(run.losses, whole.losses) < 1e-3);
        CHECK((world().world() == 1 || !same_bits(run.weights(), whole.weights())));
    }
    RunConfig mx;
    mx.recipe = "mxfp8";
    mx.masters = StateFormat::bf16;
    const bool ordered = world().reduce_order() == ReduceOrder::rank;
    RunConfig expected_config = mx;
    if (ordered) expected_config.micro_steps = world().world();
    ShardedRun<bf16> expected(expected_config, ordered ? Comm::self(ReduceOrder::rank) : world());
    expected.train();
    for (const int stage : {0, 1, 2}) {
        mx.stage = stage;
        ShardedRun<bf16> run(mx, world());
        run.train();
        CHECK(same_bits(run.weights(), expected.weights()));
    }
}

// Sizes of groups that divide the world, except the world itself.
std::vector<int> group_sizes() {
    std::vector<int> sizes;
    for (int n = 1; n < world().world(); n++)
        if (world().world() % n == 0) sizes.push_back(n);
    return sizes;
}

// The bytes that a step of this run sends, counted and by the planner's formula.
template <class Real>
void check_traffic(const RunConfig& config) {
    ShardedRun<Real> run(config, world());
    const Traffic* const traffic[3] = {&run.trainer.weights().comm().traffic(),
                                       &run.trainer.gradients().comm().traffic(),
                                       &run.trainer.gradients().groups_comm().traffic()};
    const Traffic before[3] = {*traffic[0], *traffic[1], *traffic[2]};
    run.step(0);
    const Sent sent = sent_in_step(run.trainer.layout(), config.micro_steps, sizeof(Real));
    const Sent::Kind planned[3] = {sent.weights, sent.gradients, sent.between_groups};
    for (int i = 0; i < 3; i++) {
        CAPTURE(i);
        const auto calls = [](const Traffic& t) { return t.all_gather.calls + t.reduce_scatter.calls; };
        CHECK(calls(*traffic[i]) - calls(before[i]) == static_cast<uint64_t>(planned[i].calls));
        // Biases and norms of FP8 layers, and padding, are sent by the ranks that have them.
        const uint64_t bytes = traffic[i]->bytes() - before[i].bytes();
        std::vector<uint64_t> of_rank(as_size(world().world()));
        world().host_all_gather(of_rank.data(), &bytes, sizeof bytes);
        double total = 0;
        for (const uint64_t of : of_rank) total += static_cast<double>(of);
        CHECK(total == doctest::Approx(planned[i].bytes * world().world()).epsilon(1e-12));
    }
    const uint64_t pieces = traffic[0]->broadcast.bytes - before[0].broadcast.bytes;
    CHECK((world().host_max(static_cast<int64_t>(pieces)) > 0) ==
          (config.recipe && config.stage > 0 && config.within != 1));
}

TEST_CASE("bytes between ranks match the planner's formula, and FP8 halves the weights'" *
          doctest::test_suite(kTrainingLong)) {
    if (world().world() == 1) return;
    for (int stage = 0; stage <= 3; stage++)
        for (const int micro_steps : {1, 2}) {
            CAPTURE(stage);
            CAPTURE(micro_steps);
            RunConfig config;
            config.stage = stage, config.micro_steps = micro_steps;
            check_traffic<bf16>(config);
            check_traffic<float>(config);
            config.wire = Wire::bf16;
            check_traffic<bf16>(config);
            config.wire = Wire::fp8;
            check_traffic<bf16>(config);
            config.recipe = "delayed";
            check_traffic<bf16>(config);
            config.layers = "all,-first,-block1.fc";
            check_traffic<bf16>(config);
        }
    for (const int blocks : {1, 2, 4, 5})  // fewer blocks than slots, and more
        for (const int micro_steps : {1, 2}) {
            CAPTURE(blocks);
            CAPTURE(micro_steps);
            RunConfig config;
            config.stage = 3, config.micro_steps = micro_steps, config.blocks = blocks;
            check_traffic<bf16>(config);
        }
    for (const int within : group_sizes())
        for (const int stage : {1, 2, 3})
            for (const int micro_steps : {1, 2}) {
                CAPTURE(within);
                CAPTURE(stage);
                CAPTURE(micro_steps);
                RunConfig config;
                config.stage = stage, config.micro_steps = micro_steps, config.within = within;
                check_traffic<float>(config);
                config.recipe = "delayed", config.wire = Wire::bf16;
                check_traffic<bf16>(config);
                config.wire = Wire::fp8;
                check_traffic<bf16>(config);
            }
    // In bytes by hand: every matrix of a block once as FP8, everything else as BF16.
    const uint64_t others = static_cast<uint64_t>(world().world() - 1), ranks = others + 1;
    RunConfig config;
    config.stage = 1, config.recipe = "delayed";
    const Trainer<bf16> planned(trainer_config(config), world());
    const ParameterTable& table = planned.table();
    const uint64_t block = table.unit(1).count / ranks, rest = table.count() / ranks - 3 * block;
    const uint64_t vectors = block - 12 * 96 * 96 / ranks;  // a slice's vectors and padding
    CHECK(sent_in_step(planned.layout(), 1, sizeof(bf16)).weights.bytes ==
          doctest::Approx(others * (rest * sizeof(bf16) + 3 * (block + vectors * sizeof(bf16)))));
}

TEST_CASE("hybrid sharding equals one rank's training, and every group has the same weights") {
    for (const int within : group_sizes()) {
        CAPTURE(within);
        RunConfig config;
        config.within = within;
        check_stages<float>(config, 1e-5, 1e-4);
        config.recipe = "delayed";
        check_stages<bf16>(config, 1e-3, 5e-2);
        for (const int stage : {1, 2, 3}) {
            CAPTURE(stage);
            config.stage = stage;
            ShardedRun<bf16> run(config, world());
            run.train();
            check_same_weights(run);
        }
    }
    for (const int within : {world().world() + 1, -1})
        CHECK_THROWS_AS(ShardedRun<float>(RunConfig{.stage = 1, .within = within}, world()), Error);
}

TEST_CASE("the weights' fingerprint is that of one rank in every stage, in groups of any size") {
    for (const StateFormat masters : {StateFormat::fp32, StateFormat::bf16}) {
        RunConfig config;
        config.masters = masters;
        ShardedRun<bf16> alone(config, Comm::self());
        const uint64_t expected =
            weights_fingerprint(alone.trainer.weights(), alone.trainer.model().spare_memory(), alone.stream);
        for (const int stage : {0, 1, 2, 3})
            for (const int within : stage > 0 ? group_sizes() : std::vector<int>{0}) {
                CAPTURE(stage);
                CAPTURE(within);
                config.stage = stage, config.within = within;
                ShardedRun<bf16> run(config, world());
                CHECK(weights_fingerprint(run.trainer.weights(), run.trainer.model().spare_memory(), run.stream) ==
                      expected);
            }
    }
}

TEST_CASE("layers leave FP8 on every rank at the same step, whatever the sharding") {
    RunConfig config;
    config.recipe = "delayed";
    config.fallback = {1, 1e-6f, 1};  // with a margin of 5, many tensors underflow
    check_stages<bf16>(config, 1e-3, 5e-2);
}

TEST_CASE("an overflow on one rank skips the step on all") {
    if (world().world() == 1) return;
    for (const char* recipe : {static_cast<const char*>(nullptr), "delayed"})
        for (int stage = 0; stage <= 3; stage++) {
            CAPTURE(stage);
            RunConfig config;
            config.recipe = recipe;
            config.stage = stage;
            ShardedRun<bf16> run(config, world());
            run.step(0);
            const auto before = run.weights();
            CHECK(run.overflow_on_the_last_rank().is_skipped());
            CHECK(same_bits(run.weights(), before));
            run.step(2);
            CHECK(run.read(run.optimizer.state()).skip == 0);
            CHECK(!same_bits(run.weights(), before));
        }
}

TEST_SUITE_END();

// In stages 1 and 2 all FP8 weights travel after the update, while the next step begins: a block waits only for its
// own, and transposes them in backward. With streams as lazy as their waits allow, a block's weights therefore do not
// move before the previous block is computed.
TEST_CASE("FP8 weights are gathered during the forward pass of earlier blocks") {
#if !LLMC_CUDA
    if (!host::settings().lazy_streams || world().world() == 1) return;
    for (const int stage : {1, 2}) {
        CAPTURE(stage);
        RunConfig config;
        config.recipe = "delayed", config.stage = stage, config.blocks = 4;
        ShardedRun<bf16> run(config, world());
        Trace trace(1000);
        trace.name_stream(run.stream, "compute");
        trace.name_stream(run.trainer.weights().gather_stream(), "weights");
        trace.start(run.stream);
        for (int i = 0; i < 3; i++) run.step(i);
        std::map<std::string, std::vector<int64_t>> begins;
        for (const Trace::Range& range : trace.finish()) begins[range.name].push_back(range.begin);
        for (int block = 1; block < config.blocks; block++) {
            CAPTURE(block);
            const auto& gathers = begins["gather block " + std::to_string(block)];
            const auto& forward = begins["block " + std::to_string(block - 1) + " forward"];
            REQUIRE(gathers.size() == 3);  // the last gather is for a step that never comes
            REQUIRE(forward.size() == 3);
            for (size_t step = 0; step < 2; step++) CHECK(gathers[step] > forward[step + 1]);
        }
    }
#endif
}
