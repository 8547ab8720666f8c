// The traffic of a training step in FP8, counted from the declarations of every launch: under delayed scaling producers
// cast their output themselves, and nothing unneeded is kept or written in BF16. Host device only.
// build: per device
#include "llmc/kernels/fp8_state.h"

#if !LLMC_CUDA
#include "dev/element_wise.h"
#include "test/model/gpt2_fixture.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr int kB = 4, kT = 128, kC = 128;
constexpr double kTokens = kB * kT;

ModelConfig config_of(int layers) {
    ModelConfig config;
    config.name = "traffic";
    config.layers = layers, config.heads = 2, config.channels = kC, config.vocab = 101, config.context = kT;
    return config;
}

// The operations of one step after calibration.
struct RecordedStep {
    std::map<std::string, host::OperationRecord> operations;
    double element_wise = 0;  // bytes
    size_t activation_bytes = 0;

    RecordedStep(int layers, const Fp8Config* fp8, Recompute recompute = Recompute::none,
                 const char* fp8_layers = "all") {
        TrainerConfig config = trainer_config(config_of(layers), kB, kT, recompute, fp8, fp8_layers);
        config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
        config.clip = 1.0;
        TestModel<bf16> test(config);
        test.trainer.initialize(3);
        Batch batch;
        for (int i = 0; i < kB * kT; i++) batch.tokens.push_back(i * 37 % 101);
        for (int i = 0; i < kB * kT; i++) batch.targets.push_back(batch.tokens[(i + 1) % (kB * kT)]);
        for (int step = 0; step < 2; step++) {
            synchronize(test.stream);
            host::record_operations(true);
            test.step(batch);
            synchronize(test.stream);
        }
        element_wise = element_wise_bytes();
        operations = host::operations();
        host::record_operations(false);
        activation_bytes = test.model.activation_bytes();
    }

    // The sum over all kernels whose name contains `part`.
    host::OperationRecord of(const std::string& part) const {
        host::OperationRecord sum;
        for (const auto& [name, row] : operations)
            if (name.find(part) != std::string::npos) {
                sum.count += row.count;
                sum.bytes_read += row.bytes_read;
                sum.bytes_written += row.bytes_written;
            }
        return sum;
    }
};

// A layer's own share: the increase from two more layers.
double per_token_and_layer(const Fp8Config* fp8, Recompute recompute = Recompute::none) {
    const RecordedStep four(4, fp8, recompute), two(2, fp8, recompute);
    return (four.element_wise - two.element_wise) / 2 / kTokens / kC;
}

}  // namespace
TEST_SUITE_BEGIN(kOnce);

TEST_CASE("traffic: element-wise kernels move 68 C bytes a token and layer under delayed scaling") {
    // Two norms forward: the residual stream, FP8 twice (4 each); GELU (16) and its gradient (24); two norms
    // backward: gradient, input, residual's gradient in and out, FP8 twice (10 each). In addition: statistics, and
    // partial sums of weights' and biases' gradients, which shrink with longer micro-batches.
    const Fp8Config delayed = recipe(Fp8Recipe::delayed), current = recipe(Fp8Recipe::current);
    const double bytes = per_token_and_layer(&delayed);
    MESSAGE("delayed: " << bytes << " C");
    CHECK(bytes > 68.0);
    CHECK(bytes < 71.0);
    // The cost of recomputing GELU: the 8 that it reads. Each pass writes one layout of codes. Norms read 2 each.
    CHECK(per_token_and_layer(&delayed, Recompute::gelu) - bytes == doctest::Approx(8).epsilon(0.01));
    CHECK(per_token_and_layer(&delayed, Recompute::norm) - bytes == doctest::Approx(8 + 4).epsilon(0.02));
    // Current scaling: every producer reads its inputs twice, and attention's results and gradients go through BF16.
    CHECK(per_token_and_layer(&current) > 100.0);
}

TEST_CASE("traffic: under delayed scaling every tensor is cast by its producer") {
    const int layers = 3;
    const Fp8Config delayed = recipe(Fp8Recipe::delayed);
    const RecordedStep step(layers, &delayed);
    CHECK(step.of("Bf16Values").count == 0);
    CHECK(step.of("layernorm_forward_fp8_kernel").count == 2 * layers);
    CHECK(step.of("ActivationValues<Gelu>").count == layers);
    CHECK(step.of("ActivationGradientValues<Gelu>").count == layers);
    // The last norm's kernel also casts for the first, and so on.
    CHECK(step.of("layernorm_backward_fp8_kernel").count == 2 * layers);
    CHECK(step.of("layernorm_backward_kernel").count == 1);  // the first norm's gradient goes to the embedding
    for (const auto& [name, row] : step.operations)
        if (name.find("attention_forward") != std::string::npos || name.find("_gradient_kernel") != std::string::npos) {
            CAPTURE(name);
            CHECK(name.find("bf16") == std::string::npos);
            CHECK(row.count == layers);
        }
    // Attention: reads qkv, writes O unrounded (4 bytes) and twice in FP8, and lse.
    const auto forward = step.of("attention_forward_kernel");
    const double elements = kTokens * kC * layers;
    CHECK(static_cast<double>(forward.bytes_written) == doctest::Approx((4 + 2) * elements).epsilon(0.03));
    CHECK(static_cast<double>(forward.bytes_read) == doctest::Approx(6 * elements).epsilon(0.03));
}

TEST_CASE(
    "traffic: the loss moves 4 bytes a logit, 5 if it writes the codes of a head in FP8, 7 if it measures first") {
    const double logits = kTokens * config_of(1).padded_vocab();
    const auto bytes_per_logit = [&](Fp8Recipe kind, const char* layers) {
        const Fp8Config fp8 = recipe(kind);
        const RecordedStep step(1, &fp8, Recompute::none, layers);
        CHECK(step.of("quantize_tile_kernel<llmc::e5m2, llmc::Bf16Values>").count == 0);
        host::OperationRecord sum = step.of("softmax_cross_entropy");
        const auto transposed = step.of("transpose_codes");
        sum.bytes_read += transposed.bytes_read, sum.bytes_written += transposed.bytes_written;
        return static_cast<double>(sum.bytes_read + sum.bytes_written) / logits;
    };
    // Targets and losses are another 8 bytes a row of 128 logits.
    CHECK(bytes_per_logit(Fp8Recipe::delayed, "none") == doctest::Approx(4 + 8 / 128.0).epsilon(0.001));
    CHECK(bytes_per_logit(Fp8Recipe::delayed, "none,+lm_head") == doctest::Approx(5 + 8 / 128.0).epsilon(0.005));
    CHECK(bytes_per_logit(Fp8Recipe::current, "none,+lm_head") == doctest::Approx(7 + 16 / 128.0).epsilon(0.005));
}

TEST_CASE("traffic: FP8 weights are read once and never written in BF16") {
    const int layers = 3;
    const Fp8Config delayed = recipe(Fp8Recipe::delayed);
    const RecordedStep step(layers, &delayed), bf16_step(layers, nullptr);
    const double matrices = 12.0 * kC * kC * layers;
    const auto quantize = step.of("quantize_weight_kernel");
    CHECK(quantize.count == 4 * layers);
    CHECK(static_cast<double>(quantize.bytes_read) == doctest::Approx(4 * matrices).epsilon(0.01));
    CHECK(static_cast<double>(quantize.bytes_written) == doctest::Approx(2 * matrices).epsilon(0.01));
    const double saved = static_cast<double>(bf16_step.of("AdamWRule").bytes_written) -
                         static_cast<double>(step.of("AdamWRule").bytes_written);
    CHECK(saved == doctest::Approx(2 * matrices).epsilon(0.01));
}

TEST_CASE("traffic: inputs of FP8 layers have no BF16 buffers") {
    const int layers = 3;
    const Fp8Config delayed = recipe(Fp8Recipe::delayed);
    for (const Recompute level : {Recompute::none, Recompute::gelu, Recompute::norm, Recompute::block}) {
        const double norms = level < Recompute::norm ? layers : 1, gelus = level < Recompute::gelu ? layers : 1;
        const double saved = static_cast<double>(RecordedStep(layers, nullptr, level).activation_bytes) -
                             static_cast<double>(RecordedStep(layers, &delayed, level).activation_bytes);
        const double bias_parts = sizeof(float) * static_cast<double>(norm_backward_fp8_bias_parts(kB * kT, kC));
        CHECK(saved + bias_parts == doctest::Approx((2 * norms + 4 * gelus) * 2 * kTokens * kC).epsilon(0.001));
    }
}
#endif
