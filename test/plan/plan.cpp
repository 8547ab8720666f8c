// The plan's arithmetic against an independent calculation, what --dry-run prints, and the memory check.
#include "llmc/plan/plan.h"

#include <doctest/doctest.h>

#include <string>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/log/metrics.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr size_t kMiB = size_t{1} << 20, kGiB = size_t{1} << 30;

// 524,288 tokens per step.
PlannedRun run_of(const ModelConfig& model, int batch, int seq, const char* gpu = "h200") {
    PlannedRun run;
    run.gpu = *find_gpu_by_short_name(gpu);
    run.config.model = model;
    run.config.batch = batch, run.config.seq = seq, run.config.micro_steps = 524288 / (batch * seq);
    run.config.recompute = Recompute::none;
    run.config.sharding.stage = 0;
    return run;
}

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-4); }

// Milliseconds of a BF16 step on an H200 that one direction of the MLP takes: with GELU in the matmul, in the matmul
// alone, and with the activation's kernel alone, which moves `bytes` per element of h.
struct Gelu {
    double fused, matmul, bytes = 1e3 / (0.92 * 4.2e12);

    explicit Gelu(const PlannedRun& run) {
        const double n = run.config.batch * run.config.seq, C = run.config.model.channels;
        const double launches = run.config.micro_steps * run.config.model.layers;
        matmul = launches * TimeModel(run.gpu, {}).matmul({n, 4 * C, C, TimeModel::Kind::bf16});
        bytes *= launches * n * 4 * C;
        fused = launches * (2e3 * n * 4 * C * C / (0.94 * 790e12) + 2e-3) + 0.5 * 4 * bytes;
    }
};

}  // namespace

TEST_CASE("plan: a BF16 step against a separate calculation") {
    // Milliseconds of 524,288 tokens on an H200, vocabulary 50304, from a script that shares no code with this one.
    struct Expected {
        const char* model;
        int batch, seq;
        double blocks, head, attention, elementwise, rest, optimizer;
    };
    const Expected table[] = {
        {"gpt2", 64, 1024, 378.0271, 164.3685, 141.1239, 96.3752, 29.5946, 1.0076},
        {"gpt2", 32, 2048, 378.0271, 164.3685, 253.0228, 96.3752, 29.5946, 1.0140},
        {"gpt2-xl", 32, 1024, 6313.2010, 341.6155, 1176.0321, 801.8467, 32.0782, 12.6098},
        {"gpt3-6.7b", 8, 2048, 26397.2153, 838.2218, 2433.0757, 1357.0162, 39.5289, 53.9029},
    };
    for (const Expected& e : table) {
        CAPTURE(e.model);
        CAPTURE(e.seq);
        ModelConfig model = find_model(e.model);
        model.context = e.seq;
        const StepTime t = step_time(run_of(model, e.batch, e.seq), Precision::bf16, 1);
        // The script's matmuls and GELU are separate.
        const Gelu gelu(run_of(model, e.batch, e.seq));
        const double blocks = e.blocks - 2 * gelu.matmul + 2 * gelu.fused;
        const double elementwise = e.elementwise - (4 + 6) * gelu.bytes;
        CHECK(t.products == near(blocks + e.head));
        CHECK(t.attention == near(e.attention));
        CHECK(t.elementwise == near(elementwise + e.rest));
        CHECK(t.optimizer == near(e.optimizer));
        CHECK(t.total() == near(blocks + e.head + e.attention + elementwise + e.rest + e.optimizer));
        CHECK(t.blocks_forward + t.blocks_backward == near(blocks + e.attention + elementwise));
        CHECK(t.blocks_backward > 1.5 * t.blocks_forward);
        CHECK(t.blocks_static == near(e.blocks - 2 * gelu.matmul));
        CHECK(step_time(run_of(model, e.batch, e.seq), Precision::bf16, 8).optimizer == near(e.optimizer / 8));
    }
}

TEST_CASE("plan: an FP8 step against the same calculation") {
    // Blocks' products and element-wise kernels, what attention takes for quantizing beyond 0.91 of a BF16 run, and
    // what FP8 saves in the gradients of the head; the rest is as in BF16.
    struct Expected {
        const char* model;
        int batch, seq;
        double blocks, elementwise, attention_casts, head_saves;
    };
    const Expected table[] = {
        {"gpt2", 64, 1024, 217.9124, 88.8723, 10.6290, 45.6723},
        {"gpt2-xl", 32, 1024, 3484.3007, 739.3229, 88.5754, 106.0961},
        {"gpt3-6.7b", 8, 2048, 14418.9808, 1250.3090, 151.1686, 248.6334},
    };
    for (const Expected& e : table) {
        CAPTURE(e.model);
        ModelConfig model = find_model(e.model);
        model.context = e.seq;
        PlannedRun run = run_of(model, e.batch, e.seq);
        run.config.kernels = Kernels::portable;  // no matmuls with GELU
        const StepTime fp8 = step_time(run, Precision::fp8, 1), bf16 = step_time(run, Precision::bf16, 1);
        CHECK(fp8.blocks_forward + fp8.blocks_backward == near(e.blocks + e.elementwise + fp8.attention));
        CHECK(fp8.attention == near(0.91 * bf16.attention + e.attention_casts));
        CHECK(fp8.blocks_static == near(e.blocks));
        // cuBLASLt does not compute the matmuls with GELU.
        run.config.kernels = Kernels::automatic;
        const StepTime fused = step_time(run, Precision::fp8, 1);
        const TimeModel kernels(run.gpu, {});
        const double N = e.batch * e.seq, C = model.channels;
        const double gelu = kernels.matmul_gelu(N, 4 * C, C, TimeModel::Kind::fp8_fast) +
                            kernels.matmul_gelu(N, 4 * C, C, TimeModel::Kind::fp8_split);
        CHECK(fused.products - fused.blocks_static ==
              near(fp8.products - e.blocks + run.config.micro_steps * model.layers * gelu));
        run.config.kernels = Kernels::portable;
        // Layers in BF16 cost the same as in a BF16 run.
        run.config.fp8_layers = fp8_layers_from_text("none");
        CHECK(step_time(run, Precision::fp8, 1).total() == near(bf16.total()));
        run.config.fp8_layers = fp8_layers_from_text("all,-first");
        CHECK(step_time(run, Precision::fp8, 1).total() ==
              near(fp8.total() + (bf16.total() - fp8.total()) / model.layers));
        // The forward pass of a BF16 run, and casts.
        run.config.fp8_layers = fp8_layers_from_text("all,-forward");
        const StepTime gradients = step_time(run, Precision::fp8, 1);
        CHECK(gradients.blocks_backward == near(fp8.blocks_backward));
        CHECK(gradients.blocks_forward > bf16.blocks_forward);
        CHECK(gradients.total() < bf16.total());
        run.config.fp8_layers = fp8_layers_from_text("all,+lm_head");
        CHECK(fp8.products - step_time(run, Precision::fp8, 1).products == near(e.head_saves));
    }
}

TEST_CASE("plan: recomputation, ranks and lengths") {
    const ModelConfig model = find_model("gpt2");
    PlannedRun run = run_of(model, 64, 1024);
    const auto step = [&](Recompute recompute) {
        run.config.recompute = recompute;
        return step_time(run, Precision::bf16, 1);
    };
    const StepTime none = step(Recompute::none), block = step(Recompute::block);
    // 16C bytes a token and layer at 92 % of 4.2 TB/s.
    const double channel = 1e3 * 524288.0 * 12 * 768 / (0.92 * 4.2e12);
    CHECK(step(Recompute::gelu).total() - none.total() == near(16 * channel));
    CHECK(step(Recompute::norm).total() - none.total() == near(24 * channel));
    // In FP8 each of the two passes writes one layout of codes: reads 8C, or 2C for each norm, and writes half as much.
    const auto in_fp8 = [&](Recompute recompute) {
        run.config.recompute = recompute;
        return step_time(run, Precision::fp8, 1).total();
    };
    CHECK(in_fp8(Recompute::gelu) - in_fp8(Recompute::none) == near(8 * channel));
    CHECK(in_fp8(Recompute::norm) - in_fp8(Recompute::gelu) == near(4 * channel));
    const Gelu gelu(run_of(model, 64, 1024));
    CHECK(block.products - none.products == near(129.1604 - gelu.matmul + gelu.fused));
    CHECK(block.blocks_static - none.blocks_static == near(129.1604 - gelu.matmul));
    CHECK(block.blocks_forward == near(none.blocks_forward));
    CHECK(block.blocks_backward == near(none.blocks_backward + none.blocks_forward));

    run = run_of(model, 64, 1024);
    run.ranks = 8;  // a step of eight times the tokens
    CHECK(run.tokens() == 8 * 524288);
    CHECK(step_time(run, Precision::bf16, 1).total() == near(none.total()));
    CHECK(step_time(run_of(model, 128, 512), Precision::bf16, 1).attention == near(85.1745));
}

TEST_CASE("plan: attention of layers with windows takes less time") {
    ModelConfig model = find_model("qwen3-0.6b");
    model.context = 4096;
    const double whole = step_time(run_of(model, 1, 4096), Precision::bf16, 1).attention;
    model.window = 1024;
    // A query sees 1024 keys but in the first 1024 tokens: 1 - (3/4)^2 of the square.
    CHECK(step_time(run_of(model, 1, 4096), Precision::bf16, 1).attention == near(whole * 7 / 16));
}

TEST_CASE("plan: AdamW's state in BF16 moves fewer bytes per parameter") {
    PlannedRun run = run_of(find_model("d12"), 4, 1024);
    const double fp32 = step_time(run, Precision::bf16, 1).optimizer;
    run.config.optimizer.adam_moments = StateFormat::bf16;
    CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(fp32 * 26 / 34));
    CHECK(describe_plan(run, {}).find("adamw, moments BF16\n") != std::string::npos);
    run.config.optimizer.adam_moments = StateFormat::fp8;  // m; v stays BF16
    CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(fp32 * 24 / 34));
    CHECK(describe_plan(run, {}).find("adamw, moments FP8 and BF16\n") != std::string::npos);
    run.config.optimizer.adam_moments = StateFormat::bf16;
    run.config.optimizer.masters = StateFormat::bf16;  // and no copy
    CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(fp32 * 20 / 34));
    CHECK(describe_plan(run, {}).find("adamw, masters BF16, moments BF16\n") != std::string::npos);
    run.config.sharding.gradients = StateFormat::bf16;
    CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(fp32 * 16 / 34));
    CHECK(describe_plan(run, {}).find("sums BF16, four units of a micro-step FP32\n") != std::string::npos);
}

TEST_CASE("plan: an optimizer with one moment moves 8 bytes a parameter less than AdamW") {
    PlannedRun run = run_of(find_model("gpt2"), 4, 1024);
    const double adamw = step_time(run, Precision::bf16, 1).optimizer;
    for (const OptimizerKind kind : {OptimizerKind::lion, OptimizerKind::sgd}) {
        run.config.optimizer.kind = kind;
        CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(adamw * 26 / 34));
    }
}

TEST_CASE("plan: Muon's products are those of 300 C^3 a block, divided among the ranks that share") {
    PlannedRun run = run_of(find_model("gpt2"), 4, 1024);  // 12 blocks of 768 channels
    const double adamw = step_time(run, Precision::bf16, 1).optimizer;
    const double five = 12 * 300.0 * 768 * 768 * 768 / (790e12 * 1e-3);
    for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
        run.config.optimizer.kind = kind;
        CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(adamw + five).epsilon(1e-3));
        run.ranks = 8;
        CHECK(step_time(run, Precision::bf16, 8).optimizer == doctest::Approx((adamw + five) / 8).epsilon(1e-3));
        CHECK(step_time(run, Precision::bf16, 1).optimizer == doctest::Approx(adamw + five / 8).epsilon(1e-3));
        run.config.sharding.within = 4;
        CHECK(step_time(run, Precision::bf16, 4).optimizer == doctest::Approx((adamw + five) / 4).epsilon(1e-3));
        run.ranks = 1, run.config.sharding.within = 0;
    }
}

TEST_CASE("plan: the printed text") {
    StagePlan plan;
    plan.memory = {237 * kMiB, 475 * kMiB, 1424 * kMiB, 20000 * kMiB, 64 * kMiB, 1500 * kMiB};
    PlannedRun run = run_of(find_model("gpt2"), 64, 1024);
    const auto text = [&](size_t reserve = kGiB) {
        plan.reserve = reserve;
        return describe_plan(run, plan);
    };
    for (const std::string& part :
         split("12 layers|12 heads of 64|124,439,808|124 M|FLOPs per token           797.8 M   forward|"
               "524,288 tokens|64 sequences x 1,024 tokens x 1 rank x 8 micro-steps|weights|237.0 MiB|"
               "activations|19.5 GiB|-b 64, -r none|libraries|22.7 GiB|"
               "host memory               1.5 GiB   pinned|fits into H200, which has 139.8 GiB|"
               "matmuls                  556.9 ms|790 TFLOP/s in bf16 and 1450 in fp8|3.9 TB/s|775.0 ms|"
               "605.9 ms|MFU|within 10 % of the steps",
               '|')) {
        CAPTURE(part);
        CAPTURE(text());
        CHECK(contains(text(), part));
    }
    CHECK(!contains(text(), " \n"));
    const size_t left = run.available() - plan.memory.total();
    CHECK(contains(text(left), "  fits into H200"));
    CHECK(contains(text(left + 1), "DOES NOT FIT into H200, which has 139.8 GiB"));
    run.config.batch = 1;
    CHECK(contains(text(), "  1 sequence x 1,024 tokens"));
    run.config.precision = Precision::fp32;
    CHECK(contains(text(), "only known for bf16 and fp8 (this is fp32)"));
    run = run_of(find_model("gpt2"), 64, 1024, "a100");
    run.config.precision = Precision::fp8;
    CHECK(contains(text(), "A100-SXM4-80GB has no FP8: use --precision bf16 there"));
}

TEST_CASE("plan: a card that shares the host's memory also holds a checkpoint's copy") {
    PlannedRun run = run_of(find_model("gpt2"), 4, 1024, "gb10");
    StagePlan plan;
    plan.memory = {2 * kGiB, 4 * kGiB, 12 * kGiB, 30 * kGiB, 1 * kGiB};
    plan.memory.staging = plan.shared_copy = 5 * kGiB;
    plan.reserve = kGiB;
    const std::string shared = describe_plan(run, plan);
    CHECK(contains(shared, "libraries                 1.0 GiB"));
    CHECK(contains(shared, "total                    55.0 GiB   fits into GB10, which has 117.8 GiB"));
    CHECK(shared.find("host memory") < shared.find("total"));
    run = run_of(find_model("gpt2"), 4, 1024, "gh200");  // has HBM of its own
    plan.shared_copy = 0;
    const std::string apart = describe_plan(run, plan);
    CHECK(contains(apart, "total                    50.0 GiB   fits into GH200"));
    CHECK(apart.find("host memory") > apart.find("total"));
}

TEST_CASE("plan: how long a run is") {
    const RunLength length{20000, 10485760000, 2.5};
    CHECK(length.gpu_hours(8) == 20);
    const std::string text = describe_length(length, 8);
    CHECK(contains(text, "Run: 20,000 steps, 10.5 B tokens\n"));
    CHECK(contains(text, "2:30:00   20 GPU-hours on 8 GPUs\n"));
    CHECK(describe_length({1, 1024, {}}, 1) == "Run: 1 step, 1,024 tokens\n");
}

TEST_CASE("plan: memory check") {
    const MemoryByKind needed = {2 * kGiB, 4 * kGiB, 12 * kGiB, 30 * kGiB, 1 * kGiB};
    CHECK(needed.total() == 49 * kGiB);
    CHECK_NOTHROW(check_memory(needed, 0, 49 * kGiB, "card", true));
    CHECK_NOTHROW(check_memory(needed, kGiB, 0, "card", true));  // not known
    CHECK_NOTHROW(check_memory(needed, kGiB, 50 * kGiB, "card", true));
    const auto message = [&](size_t available, size_t reserve = 0, bool may_offload = true) {
        return error_of([&] { check_memory(needed, reserve, available, "card", may_offload); }, ExitCode::no_resources);
    };
    CHECK(contains(message(49 * kGiB - 1), "needs 49.0 GiB and card has"));
    CHECK(contains(message(48 * kGiB), "activations 30.0 GiB"));
    CHECK(contains(message(48 * kGiB), "reduce -b"));
    CHECK(contains(message(10 * kGiB), "more ranks with -z 3"));
    CHECK(contains(message(10 * kGiB), "--offload optimizer"));
    CHECK(!contains(message(10 * kGiB, 0, false), "--offload"));
    CHECK(contains(message(50 * kGiB - 1, kGiB), "needs 50.0 GiB and card has"));
    CHECK(contains(message(50 * kGiB - 1, kGiB), "libraries (estimated) 1.0 GiB"));
    CHECK(contains(message(18 * kGiB, kGiB), "more ranks with -z 3"));  // weights, gradients, moments and libraries: 19
    MemoryByKind forward_only = needed;
    forward_only.gradients = 0;
    CHECK(contains(error_of([&] { check_memory(forward_only, 0, 10 * kGiB, "card", true); }, ExitCode::no_resources),
                   "; share the model among more ranks with -z 3, or use a larger device"));
}

TEST_CASE("plan: a picture of the learning rate") {
    ScheduleConfig schedule{ScheduleKind::wsd_linear, 1e-3, 60, 600, 0.1, 0.25};
    CHECK(describe_schedule(schedule) ==
          "Learning rate: 1.67e-05 in step 1, at most 0.001, 0.000106 in the last step\n"
          "     0.001 |      ########################################\n"
          "           |     ###########################################\n"
          "           |     #############################################\n"
          "           |    ################################################\n"
          "           |   ###################################################\n"
          "           |  ######################################################\n"
          "           |  ########################################################\n"
          "           | ###########################################################\n"
          "         0 +------------------------------------------------------------\n"
          "      step  1                                                        600\n");
    schedule = {ScheduleKind::constant, 3e-4, 0, 1, 0};
    CHECK(contains(describe_schedule(schedule), "0.0003 |" + std::string(60, '#') + "\n"));
}

TEST_CASE("plan: host memory check") {
    MemoryByKind needed = {2 * kGiB, 4 * kGiB, 0, 30 * kGiB, 1 * kGiB};
    CHECK_NOTHROW(check_host_memory(needed, 0));
    needed.offloaded = 12 * kGiB;
    CHECK(needed.total() == 37 * kGiB);
    CHECK_NOTHROW(check_host_memory(needed, 12 * kGiB));
    CHECK(contains(error_of([&] { check_host_memory(needed, 11 * kGiB); }, ExitCode::no_resources),
                   "--offload needs 12.0 GiB of host memory per rank, and this machine has 11.0 GiB"));
}

TEST_CASE("plan: memory of libraries") {
    CHECK(nccl_communicators(1, 0) == 0);
    CHECK(nccl_communicators(8, 0) == 3);  // the world's, for weights, for gradients
    CHECK(nccl_communicators(8, 8) == 3);
    CHECK(nccl_communicators(16, 8) == 4);  // and between groups
    CHECK(nccl_communicators(4, 1) == 2);
    CHECK(memory_reserve(0) == kGiB);
    CHECK(memory_reserve(3) == 5 * kGiB / 2);

    CHECK(memory_outside(80 * kGiB, 10 * kGiB, 69 * kGiB) == kGiB);
    CHECK(memory_outside(80 * kGiB, 11 * kGiB, 69 * kGiB) == 0);
    CHECK(memory_outside(80 * kGiB, 20 * kGiB, 69 * kGiB) == 0);  // another process freed memory
    CHECK(memory_outside(10 * kGiB, 20 * kGiB, 0) == 0);
}
