// The table of stages and the stage it recommends.
#include "llmc/run/sharding_plan.h"

#include <doctest/doctest.h>

#include <sstream>

#include "llmc/run/scaling.h"

using namespace llmc;

namespace {

constexpr size_t kGiB = size_t{1} << 30;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

PlanInputs inputs(const char* gpu = "h200", const char* precision = "bf16") {
    PlanInputs in;
    in.batch = 8, in.seq = 1024, in.ranks = 8, in.zero = 1;
    in.precision = precision;
    in.gpu = find_gpu_by_short_name(gpu);
    return in;
}

// A stage with so much memory, whose communication alone, at 350 GB/s, takes so many ms.
StagePlan plan(int stage, double gib, double alone_ms) {
    StagePlan p;
    p.stage = stage;
    p.memory = {kGiB, kGiB, kGiB, 0, 0};
    p.memory.activations = static_cast<size_t>(gib * kGiB) - 3 * kGiB;
    p.wire.layout = {8, 1, 2}, p.wire.shard_ranks = 8;
    p.wire.first_forward.alone.weights.bytes = alone_ms * 350e6;
    return p;
}

std::vector<StagePlan> plans(double ms0, double ms1, double ms2, double ms3) {
    return {plan(0, 130, ms0), plan(1, 100, ms1), plan(2, 90, ms2), plan(3, 60, ms3)};
}

Recommendation advice(const std::vector<StagePlan>& stages, const char* gpu = "h200", const char* precision = "bf16") {
    return recommend_stage(find_model("gpt2"), inputs(gpu, precision), stages);
}

}  // namespace

TEST_CASE("sharding plan: the recommended stage") {
    CHECK(*advice(plans(0, 0, 0, 0)).stage == 1);  // the optimizer's eighth is faster, by 0.9 of 13 ms
    CHECK(*advice(plans(0, 5, 5, 5)).stage == 0);
    CHECK(*advice(plans(5, 5, 1, 5)).stage == 2);
    CHECK(contains(advice(plans(5, 5, 1, 5)).reason, "; 1.0 ms of it waiting"));
    CHECK(*advice(plans(5, 0.05, 0, 0)).stage == 1);       // less than 1 % of a step: the lower stage
    CHECK(*advice(plans(0, 5, 5, 9), "h100").stage == 3);  // 79.2 GiB
    CHECK(contains(advice(plans(0, 5, 5, 9), "h100").reason, "no other stage runs and fits"));
    CHECK(!advice(plans(0, 0, 0, 0), "a100-40gb").stage);
    CHECK(contains(advice(plans(0, 0, 0, 0), "a100-40gb").reason, "no stage fits"));
    std::vector<StagePlan> some = plans(0, 0, 0, 0);
    some[1].refused = "not this one";
    CHECK(*advice(some).stage == 2);
    CHECK(*advice(plans(5, 0, 0, 0), "h200", "fp32").stage == 0);
    CHECK(contains(advice(plans(5, 0, 0, 0), "h200", "fp32").reason, "times are not known"));
}

TEST_CASE("sharding plan: a step is compute and waiting") {
    const ModelConfig model = find_model("gpt2");
    PlanInputs in = inputs();
    const StepPrediction p = predict_step(model, in, plan(1, 10, 2.5));
    CHECK(p.exposed == doctest::Approx(2.5));
    CHECK(p.wire == doctest::Approx(2.5));
    CHECK(p.compute == doctest::Approx(ideal_step_time(model, in, *in.gpu, "bf16").total()));
    CHECK(p.step() == doctest::Approx(p.compute + 2.5));
    CHECK(p.forward > 0);
    CHECK(p.backward > 1.5 * p.forward);
    CHECK(p.forward + p.backward < p.compute);
    in.total_batch = 4 * 8 * 1024 * 8;  // micro-steps are alike
    CHECK(predict_step(model, in, plan(1, 10, 2.5)).forward == doctest::Approx(p.forward));
    // Stage 0 updates everything on every rank.
    const double all = ideal_step_time(model, in, *in.gpu, "bf16").optimizer;
    in.zero = 0;
    CHECK(ideal_step_time(model, in, *in.gpu, "bf16").optimizer == doctest::Approx(8 * all));
    in.zero = 2, in.shard_ranks = 4;
    CHECK(ideal_step_time(model, in, *in.gpu, "bf16").optimizer == doctest::Approx(2 * all));
}

TEST_CASE("sharding plan: what is printed") {
    std::vector<StagePlan> stages = plans(12, 5, 5, 5);
    stages[2].refused = "not with this recipe";
    const std::string text = describe_sharding(find_model("gpt2"), inputs(), stages);
    CAPTURE(text);
    for (const char* part :
         {"each of 8 ranks",
          "--zero    weights  gradients  optimizer      total       sent    wire   waits    step     hides\n",
          "  0         1.0 GiB    1.0 GiB    1.0 GiB  130.0 GiB    3.9 GiB 12.0 ms 12.0 ms", "recommended, this run",
          "  2        not with this recipe", "NVLink at 350 GB/s a direction (78 % of 450);",
          "now -b 8 x -t 1024 = 8,192", "Recommended: --zero 1: fits, and takes"})
        CHECK(contains(text, part));
    CHECK(!contains(text, "NIC"));
    CHECK(!contains(text, "does not fit"));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        CHECK(line.size() <= 120);
        CHECK((line.empty() || line.back() != ' '));
    }
    PlanInputs in = inputs("h100");
    in.ranks = 16;
    const std::string more = describe_sharding(find_model("gpt2"), in, plans(1, 1, 1, 1));
    CHECK(contains(more, "between nodes a NIC"));
    CHECK(contains(more, "does not fit"));
    CHECK(contains(describe_sharding(find_model("gpt2"), inputs("l40s", "fp32"), stages), "PCIe at 20 GB/s"));
    CHECK(contains(describe_sharding(find_model("gpt2"), inputs("a100", "fp8"), stages), "A100-SXM4-80GB has no FP8"));
}

TEST_CASE("scaling: tokens per second and efficiency, by hand") {
    const ModelConfig model = find_model("gpt2");
    PlanInputs in = inputs();
    in.zero = 0;
    in.total_batch = 3 * 8 * 1024 * 8;
    // 1 ms of waiting in every step of more than one GPU.
    const auto waiting = [](int gpus) {
        StagePlan p = plan(0, 30, gpus > 1 ? 1.0 : 0.0);
        p.wire.layout.ranks = gpus, p.wire.shard_ranks = std::min(gpus, 8);
        return p;
    };
    const auto points = estimate_scaling(model, in, waiting);
    REQUIRE(points.size() == 11);
    CHECK(points.front().gpus == 1);
    CHECK(points.back().gpus == 1024);
    const double compute = points[0].step.compute;
    CHECK(compute > 10);
    for (const ScalingPoint& p : points) {
        CAPTURE(p.gpus);
        const double step = compute + (p.gpus > 1 ? 1 : 0);
        CHECK(p.step.compute == doctest::Approx(compute));
        CHECK(p.tokens_per_s == doctest::Approx(3 * 8 * 1024 * p.gpus / step * 1e3));
        CHECK(p.efficiency == doctest::Approx(compute / step));
        CHECK(p.fits);
    }
    const std::string text = describe_scaling(model, in, points), json = scaling_json(model, in, points);
    CAPTURE(text);
    for (const char* part :
         {"Predicted scaling of gpt2 on H200, bf16, --zero 0: nothing here is measured",
          "8 sequences x 1024 tokens x 3 micro-steps", "   1024 ", "weak scaling", "upper bound", "NIC"})
        CHECK(contains(text, part));
    CHECK(contains(json, "\"predicted\": true"));
    CHECK(contains(json, "\"gpus\": 1024"));
}

TEST_CASE("scaling: runs that cannot be predicted") {
    const auto message = [](const PlanInputs& in, const char* refused) -> std::string {
        try {
            estimate_scaling(find_model("gpt2"), in, [&](int) {
                StagePlan p = plan(1, 30, 0);
                p.refused = refused;
                return p;
            });
        } catch (const Error& error) {
            CHECK(error.code() == ExitCode::bad_flags);
            return error.what();
        }
        return "(nothing was thrown)";
    };
    CHECK(contains(message(inputs("h200", "fp32"), ""), "bf16 and fp8 alone"));
    CHECK(contains(message(inputs("a100", "fp8"), ""), "has no FP8: use --precision bf16"));
    CHECK(contains(message(inputs(), "not with this recipe"), "not with this recipe"));
    CHECK(contains(message(inputs(), ""), "(nothing was thrown)"));
}
