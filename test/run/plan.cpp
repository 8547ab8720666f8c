// The plan's arithmetic against an independent calculation, what --dry-run prints, and the memory check.
#include "llmc/run/plan.h"

#include <doctest/doctest.h>

#include <string>

#include "llmc/device/error.h"

using namespace llmc;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

PlanInputs inputs(int batch, int seq, const char* gpu = "h200") {
    PlanInputs in;
    in.batch = batch;
    in.seq = seq;
    in.total_batch = 524288;
    in.recompute = "none";
    in.gpu = find_gpu_by_short_name(gpu);
    const size_t mib = size_t{1} << 20;
    in.memory = {237 * mib, 475 * mib, 1424 * mib, 20000 * mib, 64 * mib};
    return in;
}

}  // namespace

TEST_CASE("plan: ideal step time against a separate roofline calculation") {
    // Milliseconds of 524,288 tokens on an H200, vocabulary 50304, from a roofline script that shares no code with this
    // one.
    struct Expected {
        const char* model;
        int batch, seq;
        double gemm, head, attention, elementwise, cross_entropy, embedding, optimizer;
    };
    const Expected table[] = {
        {"gpt2", 64, 1024, 356.2418, 162.0405, 150.8236, 27.6105, 25.1179, 2.4926, 1.0076},
        {"gpt2", 32, 2048, 356.2418, 162.0405, 213.9885, 27.6105, 25.1179, 2.4926, 1.0140},
        // So few tokens that some products wait for memory.
        {"gpt2", 1, 1024, 358.0751, 162.0405, 150.8236, 27.6105, 25.1179, 2.4926, 1.0076},
        {"gpt2-xl", 32, 1024, 6184.7529, 337.5844, 1256.8634, 230.0875, 25.1179, 5.1929, 12.6098},
        {"gpt3-6.7b", 8, 2048, 27021.5978, 864.2161, 2536.4126, 392.6827, 25.1179, 13.2939, 53.9029},
    };
    for (const Expected& e : table) {
        CAPTURE(e.model);
        CAPTURE(e.seq);
        ModelConfig model = find_model(e.model);
        model.context = e.seq;
        const PlanInputs in = inputs(e.batch, e.seq);
        const StepTime t = ideal_step_time(model, in, *in.gpu, "bf16");
        auto near = [](double x) { return doctest::Approx(x).epsilon(1e-4); };
        CHECK(t.block_gemms == near(e.gemm));
        CHECK(t.lm_head == near(e.head));
        CHECK(t.attention == near(e.attention));
        CHECK(t.elementwise == near(e.elementwise));
        CHECK(t.cross_entropy == near(e.cross_entropy));
        CHECK(t.embedding == near(e.embedding));
        CHECK(t.optimizer == near(e.optimizer));
        CHECK(t.recompute == 0);
        CHECK(t.total() ==
              near(e.gemm + e.head + e.attention + e.elementwise + e.cross_entropy + e.embedding + e.optimizer));
    }
}

TEST_CASE("plan: an FP8 step against the same calculation") {
    // Block products, element-wise kernels and the whole step; the rest is as in BF16.
    struct Expected {
        const char* model;
        int batch, seq;
        double gemm, elementwise, total;
    };
    const Expected table[] = {
        {"gpt2", 64, 1024, 198.1802, 78.2298, 617.8923},
        {"gpt2-xl", 32, 1024, 3435.9738, 651.9147, 5725.257},
        {"gpt3-6.7b", 8, 2048, 15011.9988, 1112.6011, 19617.5433},
    };
    for (const Expected& e : table) {
        CAPTURE(e.model);
        ModelConfig model = find_model(e.model);
        model.context = e.seq;
        PlanInputs in = inputs(e.batch, e.seq);
        const StepTime fp8 = ideal_step_time(model, in, *in.gpu, "fp8"),
                       bf16 = ideal_step_time(model, in, *in.gpu, "bf16");
        auto near = [](double x) { return doctest::Approx(x).epsilon(1e-4); };
        CHECK(fp8.block_gemms == near(e.gemm));
        CHECK(fp8.elementwise == near(e.elementwise));
        CHECK(fp8.total() == near(e.total));
        CHECK(fp8.lm_head == bf16.lm_head);
        CHECK(fp8.attention == bf16.attention);
        // Layers that stay in BF16 cost what they cost there.
        in.fp8_layers = "none";
        CHECK(ideal_step_time(model, in, *in.gpu, "fp8").total() == bf16.total());
        in.fp8_layers = "all,-first";
        const double layers = model.layers, blocks = ideal_step_time(model, in, *in.gpu, "fp8").block_gemms;
        CHECK(blocks == doctest::Approx(fp8.block_gemms + (bf16.block_gemms - fp8.block_gemms) / layers));
    }
    PlanInputs in = inputs(64, 1024);
    in.recompute = "block";
    const ModelConfig model = find_model("gpt2");
    const StepTime t = ideal_step_time(model, in, *in.gpu, "fp8");
    CHECK(t.recompute > 0.3 * t.block_gemms);
    CHECK(t.recompute < ideal_step_time(model, in, *in.gpu, "bf16").recompute);
}

TEST_CASE("plan: recomputation, ranks and lengths") {
    const ModelConfig model = find_model("gpt2");
    PlanInputs in = inputs(64, 1024);
    const double none = ideal_step_time(model, in, *in.gpu, "bf16").total();
    auto recompute = [&](const char* mode) {
        in.recompute = mode;
        return ideal_step_time(model, in, *in.gpu, "bf16").recompute;
    };
    // 16C bytes a token and layer at 4.2 TB/s.
    CHECK(recompute("gelu") == doctest::Approx(1e3 * 524288.0 * 12 * 16 * 768 / 4.2e12));
    CHECK(recompute("norm") == doctest::Approx(1e3 * 524288.0 * 12 * 24 * 768 / 4.2e12));
    CHECK(recompute("block") > 0.3 * 356);  // at least the forward third of the products
    CHECK(ideal_step_time(model, in, *in.gpu, "bf16").total() > none);

    in.recompute = "none";
    in.ranks = 8;
    const StepTime eighth = ideal_step_time(model, in, *in.gpu, "bf16");
    in.ranks = 1;
    CHECK(eighth.block_gemms == doctest::Approx(ideal_step_time(model, in, *in.gpu, "bf16").block_gemms / 8));
    // Attention rates are held outside 1024..2048, so its time per token grows with T there and in proportion.
    in.seq = 512;
    in.batch = 128;
    CHECK(ideal_step_time(model, in, *in.gpu, "bf16").attention == doctest::Approx(150.8236 / 2).epsilon(1e-4));
}

TEST_CASE("plan: what is printed") {
    const ModelConfig model = find_model("gpt2");
    const std::string text = describe_plan(model, inputs(64, 1024));
    for (const std::string part :
         {"12 layers", "12 heads of 64", "124,439,808", "124.4 million", "797.8 MFLOP", "524,288 tokens",
          "64 sequences x 1024 tokens x 1 rank x 8 micro-steps", "weights", "237.0 MiB", "activations", "19.5 GiB",
          "-b 64, -r none", "21.7 GiB", "fits into H200, which has 139.8 GiB", "block products           356.2 ms",
          "750 and 1350 TFLOP/s", "725.3 ms", "MFU"}) {
        CAPTURE(part);
        CAPTURE(text);
        CHECK(contains(text, part));
    }
    CHECK(!contains(text, "recomputation"));
    CHECK(!contains(text, " \n"));
}

TEST_CASE("plan: what is printed when less is known") {
    const ModelConfig model = find_model("gpt2");
    PlanInputs in = inputs(64, 1024, "l4");
    in.device_name = "NVIDIA L4";
    in.memory.activations = size_t{60} << 30;
    CHECK(contains(describe_plan(model, in), "DOES NOT FIT into NVIDIA L4, which has 22.2 GiB"));
    in.available = size_t{100} << 30;
    CHECK(contains(describe_plan(model, in), "fits into NVIDIA L4, which has 100.0 GiB"));
    in.precision = "fp32";
    CHECK(contains(describe_plan(model, in), "only known for bf16 and fp8 (this is fp32)"));
    in.gpu.reset();
    in.available = 0;
    in.total_batch = 0;
    const std::string text = describe_plan(model, in);
    CHECK(contains(text, "name a card with --gpu"));
    CHECK(contains(text, "x 1 micro-step\n"));
    CHECK(!contains(text, "fit"));
}

TEST_CASE("plan: memory check") {
    const size_t gib = size_t{1} << 30;
    const MemoryByKind needed = {2 * gib, 4 * gib, 12 * gib, 30 * gib, 1 * gib};
    CHECK(needed.total() == 49 * gib);
    CHECK_NOTHROW(check_memory(needed, 0, 49 * gib, "card"));
    CHECK_NOTHROW(check_memory(needed, gib, 0, "card"));  // not known
    CHECK_NOTHROW(check_memory(needed, gib, 50 * gib, "card"));
    auto message = [&](size_t available, size_t reserve = 0) -> std::string {
        try {
            check_memory(needed, reserve, available, "card");
        } catch (const Error& error) {
            CHECK(error.code() == ExitCode::no_resources);
            return error.what();
        }
        return "(nothing was thrown)";
    };
    CHECK(contains(message(49 * gib - 1), "needs 49.0 GiB and card has"));
    CHECK(contains(message(48 * gib), "activations 30.0 GiB"));
    CHECK(contains(message(48 * gib), "reduce -b"));
    CHECK(contains(message(10 * gib), "smaller model"));
    CHECK(contains(message(50 * gib - 1, gib), "needs 50.0 GiB and card has"));
    CHECK(contains(message(50 * gib - 1, gib), "libraries (estimated) 1.0 GiB"));
    CHECK(contains(message(18 * gib, gib), "smaller model"));  // weights, gradients, moments and libraries: 19
}

TEST_CASE("plan: what libraries take beside the plan") {
    const size_t gib = size_t{1} << 30;
    CHECK(nccl_communicators(1, 0) == 0);
    CHECK(nccl_communicators(8, 0) == 3);  // the world's, for weights, for gradients
    CHECK(nccl_communicators(8, 8) == 3);
    CHECK(nccl_communicators(16, 8) == 4);  // and between groups
    CHECK(nccl_communicators(4, 1) == 2);
    CHECK(memory_reserve(0) == gib);
    CHECK(memory_reserve(3) == 5 * gib / 2);

    PlanInputs in = inputs(64, 1024);
    in.reserve = memory_reserve(0);
    in.available = in.memory.total() + gib;
    const ModelConfig model = find_model("gpt2");
    CHECK(contains(describe_plan(model, in), "libraries"));
    CHECK(contains(describe_plan(model, in), "fits into"));
    CHECK(contains(describe_plan(model, in), "22.7 GiB"));
    in.available--;
    CHECK(contains(describe_plan(model, in), "DOES NOT FIT"));

    CHECK(memory_outside(80 * gib, 10 * gib, 69 * gib) == gib);
    CHECK(memory_outside(80 * gib, 11 * gib, 69 * gib) == 0);
    CHECK(memory_outside(80 * gib, 20 * gib, 69 * gib) == 0);  // somebody else left
    CHECK(memory_outside(10 * gib, 20 * gib, 0) == 0);
}
