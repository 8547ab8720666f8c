// The bytes that a step sends, computed by hand for a small table (test/comm/ranks/training.cpp compares with real
// runs), the waits for them, the table of stages, and that of --estimate-scaling.
#include "llmc/plan/plan.h"

#include <doctest/doctest.h>

#include <sstream>

#include "llmc/base/error.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

doctest::Approx nearly(double x) { return doctest::Approx(x).epsilon(1e-9); }

// For 4 ranks: an embedding of 1024 elements, three blocks of 528 padded to 768, a final norm of 16 padded to 256.
const ParameterTable& small_table() {
    static const ParameterTable table = [] {
        std::vector<Unit> units(5);
        units[0].tensors = {{"wte", {64, 16}, true}};
        for (size_t u = 1; u <= 3; u++)
            units[u].tensors = {{"a", {16, 16}, true}, {"b", {16, 16}, true}, {"c", {16}, false}};
        units[4].tensors = {{"norm", {16}, false}};
        return ParameterTable(units, 4);
    }();
    return table;
}

Sharding stage(int stage, Wire wire = Wire::fp32, int within = 0) {
    Sharding sharding;
    sharding.stage = stage, sharding.wire = wire, sharding.within = within;
    return sharding;
}

Sent sent(const Sharding& sharding, int micro_steps = 1, ReduceOrder order = ReduceOrder::any) {
    return sent_in_step(ShardLayout(small_table(), Comm::planned(4, "mpi", order), sharding), micro_steps, 2);
}

PlannedRun gpt2_run(const char* gpu = "h200", Precision precision = Precision::bf16) {
    PlannedRun run;
    run.config.model = find_model("gpt2");
    run.config.batch = 8, run.config.seq = 1024, run.config.sharding.stage = 1;
    run.ranks = 8;
    run.config.precision = precision;
    run.gpu = *find_gpu_by_short_name(gpu);
    return run;
}

// A stage on 8 ranks with this memory (GiB) and wait (ms): for the embedding and the first block, at 350 GB/s.
StagePlan plan(int stage, double gib, double ms) {
    constexpr size_t kGiB = size_t{1} << 30;
    StagePlan p;
    p.stage = stage;
    p.recompute = gpt2_run().config.recompute;
    p.memory = {kGiB, kGiB, kGiB, 0, 0};
    p.memory.activations = static_cast<size_t>(gib * kGiB) - 3 * kGiB;
    p.slices = stage == 0 ? 1 : 8;
    p.sent.group = 8, p.sent.first = 1, p.sent.forwards = p.sent.backwards = 1;
    p.sent.gradients.bytes = ms * 350e6;
    return p;
}

std::vector<StagePlan> plans(double ms0, double ms1, double ms2, double ms3) {
    return {plan(0, 130, ms0), plan(1, 100, ms1), plan(2, 90, ms2), plan(3, 60, ms3)};
}

std::optional<int> advice(const std::vector<StagePlan>& stages, const char* gpu = "h200",
                          Precision precision = Precision::bf16) {
    return recommend_stage(gpt2_run(gpu, precision), stages);
}

double waits(const Sent& sent, int stage, int micro_steps = 1) {
    PlannedRun run = gpt2_run();
    run.config.micro_steps = micro_steps;
    StagePlan p;
    p.stage = stage, p.sent = sent, p.recompute = run.config.recompute;
    return predict_step(run, p).waits;
}

}  // namespace

TEST_CASE("sharding plan: bytes and calls of the stages, by hand") {
    REQUIRE(small_table().count() == 1024 + 3 * 768 + 256);
    const Sent none = sent(stage(0));
    CHECK(none.weights.bytes == 0);
    CHECK(none.gradients.bytes == 2 * 10752);  // 3 / 4 of 3584 values, 4 bytes each, in both directions
    CHECK(none.gradients.calls == 10);
    CHECK(sent(stage(0), 7).bytes() == none.bytes());  // micro-steps are added up first
    CHECK(sent(stage(0), 7, ReduceOrder::rank).gradients.bytes == 8 * 10752);
    CHECK(none.first == nearly((1024.0 + 768) / 3584));

    const Sent one = sent(stage(1), 3);
    CHECK(one.weights.bytes == 5376);
    CHECK(one.weights.calls == 5);
    CHECK(one.gradients.bytes == 10752);
    CHECK(sent(stage(1, Wire::bf16)).gradients.bytes == 10752 / 2);
    // Codes, and 16 bytes for a piece's scales: of 256, 192 (three times) and 64 elements.
    CHECK(sent(stage(1, Wire::fp8)).gradients.bytes == 3 * (272 + 3 * 208 + 80));
    CHECK(sent(stage(1, Wire::fp8)).exchanged);

    const Sent two = sent(stage(2), 3);
    CHECK(two.weights.bytes == 5376);
    CHECK(two.gradients.bytes == 3 * 10752);
    CHECK(two.gradients.calls == 15);

    // The embedding, the final norm, block 1 three times, block 2 once, block 3 twice.
    const Sent three = sent(stage(3), 2);
    CHECK(three.weights.bytes == 1.5 * (1024 + 256 + 6 * 768));
    CHECK(three.weights.calls == 8);
    CHECK(three.gradients.bytes == 2 * 10752);
    CHECK(sent_in_step(ShardLayout(small_table(), Comm::self(), stage(3)), 1, 2).bytes() == 0);
}

TEST_CASE("sharding plan: FP8 weights travel as one byte, the rest of their unit as a working copy") {
    std::vector<Unit> units = small_table().units();
    for (size_t u = 1; u <= 3; u++) units[u].tensors[0].codes = CodesFrom::masters;
    const ParameterTable table(units, 4);
    const auto weights = [&](int zero) {
        return sent_in_step(ShardLayout(table, Comm::planned(4, "mpi"), stage(zero)), 1, 2).weights;
    };
    CHECK(weights(1).bytes == 1.5 * (1024 + 256) + 3 * 0.75 * (768 + (768 - 256) * 2));
    CHECK(weights(1).calls == 5);
    CHECK(weights(0).bytes == 0);
}

TEST_CASE("sharding plan: groups of ranks that share slices") {
    const Sent half = sent(stage(1, Wire::fp32, 2));
    CHECK(half.group == 2);
    CHECK(half.groups == 2);
    CHECK(half.weights.bytes == 3584);
    CHECK(half.gradients.bytes == 2 * 3584);
    CHECK(half.between_groups.bytes == 2 * 0.5 * 1792 * 4);
    CHECK(half.between_groups.calls == 10);
    CHECK(sent(stage(1, Wire::bf16, 2)).between_groups.bytes == 0.5 * 1792 * (2 + 4));
    CHECK(sent(stage(1, Wire::fp8, 2)).gradients.bytes == 528 + 3 * 400 + 144);
    CHECK(sent(stage(1, Wire::fp8, 2)).between_groups.bytes == 0.5 * 1792 * (2 + 4));
    const Sent steps = sent(stage(3, Wire::fp32, 2), 2);  // between groups, once per step
    CHECK(steps.gradients.bytes == 4 * 3584);
    CHECK(steps.between_groups.bytes == half.between_groups.bytes);
    CHECK(sent(stage(2, Wire::fp32, 1)).weights.bytes == 0);
    CHECK(sent(stage(2, Wire::fp32, 4), 2).bytes() == sent(stage(2), 2).bytes());
}

TEST_CASE("sharding plan: waiting is what compute does not cover, by hand") {
    const StepTime kernels = step_time(gpt2_run(), Precision::bf16, 1);
    const double forward = kernels.blocks_forward, backward = kernels.blocks_backward;
    Sent s;
    s.group = 8, s.first = 0.25, s.forwards = 1, s.backwards = 1;
    const auto ms = [](double time, double rate = 350) { return Sent::Kind{0, time * rate * 1e6}; };
    s.weights = ms(1), s.gradients = ms(2);
    // NCCL holds 24 multiprocessors; cuBLASLt's matmuls take twice as long.
    const auto beside = [](double time, int micro_steps = 1) {
        PlannedRun run = gpt2_run();
        run.config.micro_steps = micro_steps;
        const StepTime t = step_time(run, Precision::bf16, 1);
        const double matmuls = t.blocks_static / (t.blocks_forward + t.blocks_backward);
        return time * (matmuls + (1 - matmuls) * 24 / (132 - 24));
    };
    CHECK(waits(s, 1) == nearly(0.25 * 3 + beside(0.75 * 3)));  // the rest is hidden
    s.gradients = ms(2 + 2 * (forward + backward));
    const double all = 3 + 2 * (forward + backward);
    CHECK(waits(s, 1) == nearly(all - (forward + backward) + beside(forward + backward)));
    s.forwards = s.backwards = 2;  // as much again to overlap with
    CHECK(waits(s, 2, 2) == nearly(0.25 * all + beside(0.75 * all, 2)));
    s.gradients = ms(2), s.weights = ms(4);  // gathered in four passes, the first of which waits
    CHECK(waits(s, 3, 2) == nearly(0.25 * (1 + 2) + beside(6 - 0.25 * (1 + 2), 2)));

    // Latencies: a call, and a step to each other rank; or an exchange with all at once.
    Sent calls;
    calls.group = 8, calls.first = 1;
    calls.gradients = {1000, 0};
    CHECK(waits(calls, 1) == nearly(6.6 + 7 * 0.6));
    calls.exchanged = true;
    CHECK(waits(calls, 1) == nearly(6.6 + 0.6));
    calls.group = 16;
    CHECK(waits(calls, 1) == nearly(6.6 + 2.7));
    calls.exchanged = false;
    CHECK(waits(calls, 1) == nearly(6.6 + 14 * 0.6 + 2.7));

    // Between nodes: in a ring through all eight NICs of 50 GB/s, or an exchange of each rank through its own NIC.
    Sent nodes;
    nodes.group = 16, nodes.first = 1, nodes.gradients = ms(7);
    CHECK(waits(nodes, 1) == nearly(7));  // the link is slower
    nodes.exchanged = true;
    CHECK(waits(nodes, 1) == nearly(7 * 350 / 50));
    // Two groups of eight, and four groups of four, of which two share a node and so two NICs.
    Sent groups;
    groups.group = 8, groups.groups = 2, groups.first = 1, groups.between_groups = ms(1, 50);
    CHECK(waits(groups, 1) == nearly(1));
    groups.group = 4, groups.groups = 4;
    CHECK(waits(groups, 1) == nearly(0.5));
    groups.group = groups.groups = 1;
    CHECK(waits(groups, 1) == 0);
}

TEST_CASE("sharding plan: the recommended stage") {
    CHECK(advice(plans(0, 0, 0, 0)) == 1);  // the optimizer's eighth is faster, by 0.9 of 13 ms
    CHECK(advice(plans(0, 5, 5, 5)) == 0);
    CHECK(advice(plans(5, 5, 1, 5)) == 2);
    CHECK(advice(plans(5, 0.05, 0, 0)) == 1);       // less than 1 % of a step: the lower stage
    CHECK(advice(plans(0, 5, 5, 9), "h100") == 3);  // 79.2 GiB
    CHECK(!advice(plans(0, 0, 0, 0), "a100-40gb"));
    std::vector<StagePlan> some = plans(0, 0, 0, 0);
    some[1].refused = "not this one";
    CHECK(advice(some) == 2);
    CHECK(advice(plans(5, 0, 0, 0), "h200", Precision::fp32) == 0);  // times are unknown
}

TEST_CASE("sharding plan: the printed table") {
    std::vector<StagePlan> stages = plans(12, 5, 5, 5);
    stages[2].refused = "not with this recipe";
    const std::string text = describe_sharding(gpt2_run(), stages);
    CAPTURE(text);
    for (const char* part :
         {"each of 8 ranks", "--zero    weights  gradients  optimizer      total       sent",
          "  0         1.0 GiB    1.0 GiB    1.0 GiB  130.0 GiB    3.9 GiB     12.0 ms", "recommended  this run",
          "  2        not with this recipe", "NVLink at 350 GB/s a direction (78 % of 450)", "NIC"})
        CHECK(contains(text, part));
    CHECK(!contains(text, "does not fit"));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        CHECK(line.size() <= 120);
        CHECK((line.empty() || line.back() != ' '));
    }
    const auto described = [&](const char* gpu, Precision precision = Precision::bf16) {
        return describe_sharding(gpt2_run(gpu, precision), stages);
    };
    CHECK(contains(described("h100"), "does not fit"));
    CHECK(contains(described("l4"), "no stage fits"));
    CHECK(contains(described("l40s"), "PCIe at 20 GB/s"));
    CHECK(contains(described("h200", Precision::fp32), "bf16 and fp8 alone"));
    CHECK(contains(described("a100", Precision::fp8), "A100-SXM4-80GB has no FP8"));
}

TEST_CASE("scaling: tokens per second and efficiency, by hand") {
    PlannedRun run = gpt2_run();
    run.config.sharding.stage = 0, run.config.micro_steps = 3;
    const auto points = estimate_scaling(run, [](int gpus) { return plan(0, 30, gpus > 1 ? 1.0 : 0.0); });
    REQUIRE(points.size() == 11);
    CHECK(points.front().gpus == 1);
    CHECK(points.back().gpus == 1024);
    const double compute = points[0].step.compute;
    CHECK(compute == nearly(step_time(run, Precision::bf16, 1).total()));
    for (const ScalingPoint& p : points) {
        CAPTURE(p.gpus);
        const double step = compute + (p.gpus > 1 ? 1 : 0);
        CHECK(p.tokens_per_s == nearly(3 * 8 * 1024 * p.gpus / step * 1e3));
        CHECK(p.efficiency == nearly(compute / step));
        CHECK(p.fits);
    }
    const std::string text = describe_scaling(run, points), json = scaling_json(run, points);
    CAPTURE(text);
    for (const char* part :
         {"Predicted scaling of gpt2 on H200, bf16, --zero 0: nothing here is measured",
          "8 sequences x 1024 tokens x 3 micro-steps", "   1024 ", "weak scaling", "compute's share", "NIC"})
        CHECK(contains(text, part));
    CHECK(contains(json, "\"predicted\": true"));
    CHECK(contains(json, "\"gpus\": 1024"));
}

TEST_CASE("scaling: a plan for which -r auto chose another level takes that level's time, and says so") {
    PlannedRun run = gpt2_run();
    run.config.recompute = Recompute::automatic;
    const auto points = estimate_scaling(run, [](int gpus) {
        StagePlan p = plan(1, 30, 0);
        p.recompute = gpus == 2 ? Recompute::block : Recompute::none;
        return p;
    });
    CHECK(points[2].step.compute == nearly(step_time(run, run.config.precision, 8).total()));
    CHECK(points[1].step.compute > 1.2 * points[2].step.compute);
    const std::string text = describe_scaling(run, points);
    CAPTURE(text);
    CHECK(contains(text, "yes  -r block\n"));
    CHECK(!contains(text, "-r none"));
    StagePlan other = plan(2, 90, 0);
    other.recompute = Recompute::norm;
    CHECK(contains(describe_sharding(run, {plan(1, 30, 0), other}), "ms  -r norm\n"));
}

TEST_CASE("scaling: runs that cannot be predicted") {
    const auto message = [](const PlannedRun& run, const char* refused) {
        const auto planned = [&](int) {
            StagePlan p = plan(1, 30, 0);
            p.refused = refused;
            return p;
        };
        return error_of([&] { estimate_scaling(run, planned); }, ExitCode::bad_flags);
    };
    CHECK(contains(message(gpt2_run("h200", Precision::fp32), ""), "bf16 and fp8 alone"));
    CHECK(contains(message(gpt2_run("a100", Precision::fp8), ""), "has no FP8: use --precision bf16"));
    CHECK(contains(message(gpt2_run(), "not with this recipe"), "not with this recipe"));
    CHECK(message(gpt2_run(), "") == "");
}
