// The time model against measurements: whole steps of this program, llm.c and llmq on H100, and rates of single
// kernels.
#include "llmc/plan/time_model.h"

#include <doctest/doctest.h>

#include <string>

using namespace llmc;

namespace {

using Kind = TimeModel::Kind;

TimeModel model_of(const char* card) { return {*find_gpu_by_short_name(card), {}}; }

// Element-wise kernels and optimizers of llm.c and llmq reach 2.3 to 2.6 TB/s on an H100: 0.85 of a copy's rate.
double element_wise(const TimeModel& model, double bytes) {
    return model.element_wise(bytes) * kElementWiseShare / 0.85;
}

// The three products of a layer from K to N channels; the gradient of the weight has `gradient_bytes` an element.
double layer(const TimeModel& model, double tokens, double K, double N, Kind kind, double gradient_bytes,
             double read_bytes) {
    return model.matmul({tokens, N, K, kind}) + model.matmul({tokens, K, N, kind}) +
           model.matmul({N, K, tokens, kind, gradient_bytes, read_bytes});
}

// cuDNN's attention, at its TFLOP/s forward and backward.
double cudnn_attention(double forward, double backward, double tokens, double channels) {
    return TimeModel::attention_at(forward, 2, tokens, 1024, channels) +
           TimeModel::attention_at(backward, 5, tokens, 1024, channels);
}

// A micro-step of llm.c in BF16, in ms. cuDNN's attention at head dimension 64 and T = 1024 has 288 and 200 TFLOP/s.
// Element-wise: 106 C bytes per token and layer, of which 16 C recompute GELU. Weights' gradients are BF16.
double llmc_step(double layers, double C, double tokens, double micro_steps, double ranks) {
    const TimeModel model = model_of("h100");
    const double V = 50304, parameters = 12 * layers * C * C + V * C;
    double ms = 0;
    for (const auto& [K, N] : {std::pair{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}})
        ms += layers * layer(model, tokens, K, N, Kind::bf16, 2, 2);
    ms += layer(model, tokens, C, V, Kind::bf16, 2, 2);
    ms += cudnn_attention(288, 200, layers * tokens, C);
    ms += element_wise(model, tokens * (106 * C * layers + 26 * C + 4 * V)) + model.launches(25 * layers);
    return ms + element_wise(model, 34 * parameters / ranks) / micro_steps;
}

// A micro-step of llmq's Qwen2.5-1.5B, in ms: 28 layers of 1536 channels, 2048 for queries, keys and values, and a
// gated MLP of 8960. cuDNN's attention at head dimension 128: 410 and 237 TFLOP/s. In FP8 every operand is quantized
// and then transposed by kernels of their own: 5 bytes an element.
double llmq_step(bool fp8) {
    const TimeModel model = model_of("h100");
    const double tokens = 32 * 1024, layers = 28, C = 1536, V = 151936, qkv = 2048, mlp = 8960;
    double ms = 0;
    for (const auto& [K, N] : {std::pair{C, qkv}, {C, C}, {C, 2 * mlp}, {mlp, C}})
        ms += layers * layer(model, tokens, K, N, fp8 ? Kind::fp8_split : Kind::bf16, 2, 2);
    ms += layer(model, tokens, C, V, Kind::bf16, 2, 2);
    ms += cudnn_attention(410, 237, layers * tokens, C);
    const double norms = 2 * 16 * C, rope = 8 * qkv, swiglu = 2 * (2 * mlp + mlp) + 2 * (mlp + 4 * mlp);
    const double quantize = fp8 ? 5 * (3 * C + mlp + qkv + C + 2 * mlp + C) : 0;
    ms += element_wise(model, tokens * (layers * (norms + rope + swiglu + quantize) + 4 * V));
    return ms + model.launches(30 * layers);
}

// A step of one micro-step of this program on an H100, T = 1024, without recomputation.
PlannedRun run_of(const char* model, int batch, const MeasuredRates& rates) {
    PlannedRun run;
    run.gpu = *find_gpu_by_short_name("h100"), run.measured = rates;
    run.config.model = find_model(model);
    run.config.batch = batch, run.config.seq = 1024, run.config.micro_steps = 1;
    run.config.recompute = Recompute::none;
    run.config.kernels = kernel_set({}, run.gpu.capability, Formats::fp8);
    run.config.sharding.stage = 0;
    return run;
}

}  // namespace

TEST_CASE("time model: within 10 % of this program's measured steps") {
    // On an H100 80GB HBM3 (driver 580.159.04, 2026-11-26), in ms: medians of 15 steps.
    struct Run {
        const char* model;
        int batch;
        double bf16, fp8;
    };
    const Run runs[] = {{"d12", 64, 113.4, 98.3}, {"d24", 32, 156.2, 124.4}, {"d48", 16, 321.5, 242.1}};
    // Rates of the card check on that card, and those of the table.
    const MeasuredRates checked = {{{"bf16", 781e12}, {"fp8", 1404e12}, {"copy", 2.923e12}}, "2026-11-26"};
    for (const MeasuredRates& rates : {checked, MeasuredRates{}})
        for (const Run& run : runs)
            for (const Precision precision : {Precision::bf16, Precision::fp8}) {
                const double measured = precision == Precision::fp8 ? run.fp8 : run.bf16;
                const double computed = step_time(run_of(run.model, run.batch, rates), precision, 1).total();
                CAPTURE(run.model);
                CAPTURE(measured);
                CAPTURE(computed);
                CHECK(computed > 0.9 * measured);
                CHECK(computed < 1.1 * measured);
            }
}

TEST_CASE("time model: within 10 % of published steps") {
    // llm.c's runs had eight GPUs, of whose time communication takes 2 to 4 % in this model (test/plan/stages.cpp).
    const double eight = 1.03;
    struct Run {
        std::string name;
        double published, computed;
    };
    const Run runs[] = {
        {"llm.c 124M, 8 x 64 x 1024 tokens: 140 ms a step", 140, eight * llmc_step(12, 768, 65536, 1, 8)},
        {"llm.c 1558M, 8 x 16 x 1024 tokens: 2.80 s for 8 micro-steps", 350, eight * llmc_step(48, 1600, 16384, 8, 8)},
        {"llmq Qwen2.5-1.5B BF16, 32 x 1024 tokens: 8.85 s for 16", 553, llmq_step(false)},
        {"llmq Qwen2.5-1.5B FP8: 7.18 s for 16", 449, llmq_step(true)},
    };
    for (const Run& run : runs) {
        CAPTURE(run.name);
        CAPTURE(run.computed);
        CHECK(run.computed > 0.9 * run.published);
        CHECK(run.computed < 1.1 * run.published);
    }
}

TEST_CASE("time model: matmuls by their shape") {
    const TimeModel h100 = model_of("h100");
    const auto tflops = [&](double M, double N, double K, Kind kind) {
        return 2e-9 * M * N * K / h100.matmul({M, N, K, kind});
    };
    // Published for 8192 cubed: 716 to 798 in BF16; 1350 to 1600 in FP8. Split sums are slower, by 1 to 5 % (measured).
    CHECK((tflops(8192, 8192, 8192, Kind::bf16) > 716 && tflops(8192, 8192, 8192, Kind::bf16) < 798));
    CHECK((tflops(8192, 8192, 8192, Kind::fp8_fast) > 1300 && tflops(8192, 8192, 8192, Kind::fp8_fast) < 1600));
    const double split = tflops(8192, 8192, 8192, Kind::fp8_split) / tflops(8192, 8192, 8192, Kind::fp8_fast);
    CHECK((split > 0.95 && split < 0.99));
    // Short sums wait for their results, and a few tiles leave multiprocessors idle.
    CHECK(tflops(32768, 768, 768, Kind::fp8_fast) < 0.65 * tflops(8192, 8192, 8192, Kind::fp8_fast));
    CHECK(h100.matmul({128 * 133, 256, 8192, Kind::bf16}) > 1.3 * h100.matmul({128 * 132, 256, 8192, Kind::bf16}));
    // Splitting the sum fills the card: a quarter of its tiles takes less than half of its time.
    CHECK(h100.matmul({128 * 33, 256, 32768, Kind::bf16}) < 0.5 * h100.matmul({128 * 132, 256, 32768, Kind::bf16}));
    CHECK(h100.matmul({1, 8192, 8192, Kind::bf16}) > 1e3 * 2 * 8192 * 8192 / 3e12);  // the weight's bytes
}

TEST_CASE("time model: attention as measured on an H100") {
    // Microseconds of a layer on the card named above, in BF16; backward with delta. In runs of 12 and 48 layers, or
    // (*) 1.1 times what they were in runs of two layers, where the card's clock is higher.
    struct Layer {
        const char* kernels;
        int B, T;
        AttentionHeads heads;
        double forward, backward;
    };
    const Layer layers[] = {
        {"hopper_attention,hopper_attention_backward_split", 64, 1024, {12, 12, 64}, 496, 1229},  // backward *
        {"hopper_attention,hopper_attention_backward_split", 16, 1024, {25, 25, 64}, 249, 616},   // backward *
        {"hopper_attention,hopper_attention_backward_split", 2, 4096, {32, 8, 128}, 723, 2118},   // *
        {"portable", 64, 1024, {12, 12, 64}, 544, 1568},
        {"portable", 2, 4096, {32, 8, 128}, 1411, 4623},  // *
    };
    for (const Layer& layer : layers) {
        CAPTURE(layer.kernels);
        CAPTURE(layer.T);
        const TimeModel::Attention time = model_of("h100").attention(
            1, layer.B, layer.T, layer.heads, kernel_set(wanted_kernels(layer.kernels), 90, Formats::bf16));
        CHECK(1e3 * time.forward == doctest::Approx(layer.forward).epsilon(0.06));
        CHECK(1e3 * time.backward == doctest::Approx(layer.backward).epsilon(0.06));
    }
}

TEST_CASE("time model: attention's portable kernels are slower than FlashAttention-2") {
    const auto tflops = [](const char* card, double T, int head_dim, const char* kernels) {
        const GpuSpec gpu = *find_gpu_by_short_name(card);
        const int B = static_cast<int>(65536 / T);
        const double tokens = 65536, channels = 2048;
        const TimeModel::Attention time = TimeModel(gpu, {}).attention(
            1, B, static_cast<int>(T), AttentionHeads{2048 / head_dim, 2048 / head_dim, head_dim},
            kernel_set(wanted_kernels(kernels), gpu.capability, Formats::bf16));
        return TimeModel::Attention{2e-9 * tokens * T * channels / time.forward,
                                    5e-9 * tokens * T * channels / time.backward};
    };
    // FlashAttention-2 on an H100: 229 and 180 TFLOP/s (T = 1024, causal).
    const TimeModel::Attention portable = tflops("h100", 1024, 64, "portable");
    CHECK((portable.forward > 0.8 * 229 && portable.forward < 229));
    CHECK((portable.backward > 0.8 * 180 && portable.backward < 180));
    CHECK(tflops("rtx4090", 1024, 64, "auto").forward == tflops("rtx4090", 1024, 64, "portable").forward);
    // Head dimension 256 has no Hopper kernels, and 11 products backward instead of 7.
    const TimeModel::Attention wide = tflops("h100", 1024, 256, "auto");
    CHECK(wide.forward == tflops("h100", 1024, 256, "portable").forward);
    CHECK(wide.backward < 0.8 * tflops("h100", 1024, 128, "portable").backward);
}
