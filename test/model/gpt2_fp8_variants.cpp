// Runs without some of the variants, compared with runs that use all: equal bits if a variant promises them, gradients
// of the same quality if it rounds once less, and no other changes.
#include <cmath>

#include "test/model/fp8_training.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using AllGradients = std::vector<std::vector<float>>;  // tensor after tensor

KernelSet all_but(KernelVariant variant) {
    KernelSet set = KernelSet::common();
    set.remove(variant);
    return set;
}
const KernelSet kPortable;

// Three steps on one batch with constant weights, so that a difference in one gradient cannot affect the others. With
// delayed scaling the last two steps have scales from earlier ones.
struct Run {
    Fp8Training training;
    double loss;
    AllGradients gradients;

    Run(Fp8Recipe kind, const KernelSet& kernels, float factor = 1)
        : training(recipe(kind), "off", Recompute::gelu, "all", 0, kernels) {
        if (factor != 1) enlarge_channel(training, "h.1.ln2.weight", 3, factor);
        training.test.trainer.weights_are_set();
        for (int i = 0; i < 3; i++) training.step(0);
        loss = training.test.mean_train_loss();
        gradients = training.test.all_gradients();
    }
};

// PyTorch's FP64 gradients of the fixture's first batch.
AllGradients exact_gradients(const ParameterTable& table) {
    const Gpt2Fixture fixture;
    AllGradients all;
    for (const Unit& unit : table.units())
        for (const ParameterTensor& tensor : unit.tensors) {
            all.push_back(fixture.gradient(tensor.name));
            all.back().resize(tensor.count(), 0.0f);  // wte's padded rows
        }
    return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
    return std::sqrt(sum);
}

double distance(const AllGradients& a, const AllGradients& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += std::pow(distance(a[i], b[i]), 2);
    return std::sqrt(sum);
}

std::vector<std::string> tensor_names(const ParameterTable& table) {
    std::vector<std::string> names;
    for (const Unit& unit : table.units())
        for (const ParameterTensor& tensor : unit.tensors) names.push_back(tensor.name);
    return names;
}

}  // namespace
TEST_SUITE_BEGIN(kNotUnderSanitizers);

TEST_CASE("gpt2 fp8 variants: attention that does not cast gives the same bits, on every level of recomputation") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current})
        for (const Recompute level : {Recompute::gelu, Recompute::block}) {
            Fp8Training fused(recipe(kind), "dynamic", level);
            Fp8Training plain(recipe(kind), "dynamic", level, "all", 1, all_but(KernelVariant::attention_fp8));
            for (Fp8Training* run : {&fused, &plain}) {
                for (int i = 0; i < 3; i++) run->step(i);
                const Batch batch = fixture_batch(run->fixture, 7);
                run->test.model.evaluate(batch.tokens.data(), batch.targets.data(), run->test.stream);
            }
            CHECK(same_bits(plain.weights(), fused.weights()));
            CHECK(same_states(plain, fused));
            CHECK(plain.test.mean_eval_loss() == fused.test.mean_eval_loss());
        }
}

// The bits that the headers promise hold in every tensor except those whose sums use another order. Sums over N rows
// are within N u of the sum of their terms' magnitudes, u = 2^-24, in either order. That is less than N times the sum,
// unless the terms cancel more than random ones do (random ones leave a sum of 1 / sqrt(N) of it).
TEST_CASE("gpt2 fp8 variants: backward kernels that do not cast change the order of some sums, and nothing else") {
    const struct {
        KernelVariant variant;
        const char *layer, *part;  // tensors that may differ: "h.0.qkv", ".bias"
    } rows[] = {{KernelVariant::layernorm_backward_fp8, "ln", ".weight"},
                {KernelVariant::attention_backward_fp8, "qkv", ".bias"}};
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        Run fused(kind, KernelSet::common());
        const double N = fused.training.B * fused.training.T;
        const std::vector<std::string> names = tensor_names(fused.training.test.table);
        for (const auto& [variant, layer, part] : rows) {
            CAPTURE(kernel_variant(variant).name);
            Run plain(kind, all_but(variant));
            CHECK(plain.loss == fused.loss);
            for (size_t i = 0; i < names.size(); i++) {
                CAPTURE(names[i]);
                const std::vector<float>&a = plain.gradients[i], &b = fused.gradients[i];
                const bool sums = names[i].find(layer) != std::string::npos && names[i].ends_with(part);
                if (sums)
                    CHECK(distance(a, b) <= 2 * N * N * 0x1p-24 * distance(b, std::vector<float>(b.size())));
                else
                    CHECK(same_bits(a, b));
            }
        }
    }
}

// The other variants round to BF16 before they cast, so some codes differ: one value in 128 crosses a boundary between
// two codes, and later values change as well. In the end two runs may be as far apart as two that round independently:
// sqrt(2) times the error of either.
TEST_CASE("gpt2 fp8 variants: gradients are as good without the variants that save a rounding") {
    for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::current}) {
        const Run fused(kind, KernelSet::common());
        const AllGradients exact = exact_gradients(fused.training.test.table);
        const double off = distance(fused.gradients, exact);
        for (const KernelSet& kernels : {all_but(KernelVariant::layernorm_fp8), all_but(KernelVariant::gelu_fp8),
                                         all_but(KernelVariant::gelu_backward_fp8), kPortable}) {
            CAPTURE(kernels.names().size());
            const Run plain(kind, kernels);
            CHECK(distance(plain.gradients, fused.gradients) > 0);
            CHECK(distance(plain.gradients, fused.gradients) < std::sqrt(2) * off);
            for (size_t i = 0; i < exact.size(); i++) {
                CAPTURE(i);
                CHECK(distance(plain.gradients[i], fused.gradients[i]) < 2 * distance(fused.gradients[i], exact[i]));
            }
        }
        // A control: one of 64 channels of one norm is eight times larger.
        CHECK(distance(Run(kind, kPortable, 8.0f).gradients, fused.gradients) > std::sqrt(2) * off);
        // GELU's backward is not used before its own gradient.
        CHECK(Run(kind, all_but(KernelVariant::gelu_backward_fp8)).loss == fused.loss);
    }
}

// A card may add up both products in other orders than the library does; the virtual GPU does not. The kernel adds up
// fc's bias gradient in another order than the separate one. So gradients differ by less than FP8's differ from BF16's.
TEST_CASE("gpt2 fp8 variants: Hopper's products with GELU change the order of sums, and nothing else") {
    test_stream();
    if (device_info().compute_capability != 90) return;
    using V = KernelVariant;
    struct Joined {
        TestModel<bf16> test;
        AllGradients gradients;
        ProductCounts counts;

        Joined(const std::optional<Fp8Config>& fp8, std::initializer_list<V> variants, Recompute level)
            : test(config_of(fp8, variants, level)) {
            test.trainer.initialize(1);
            for (int i = 0; i < 4; i++) {
                const Batch batch = small_batch(i, 256);
                test.begin_step(i % 2 == 0);  // counts losses, or not
                test.trainer.micro_step(batch.tokens.data(), batch.targets.data(), 1.0f);
                gradients = test.all_gradients();
                test.finish_step();
                test.model.evaluate(batch.tokens.data(), batch.targets.data(), test.stream);
            }
            counts = test.matmul.counts();
        }
        static TrainerConfig config_of(const std::optional<Fp8Config>& fp8, std::initializer_list<V> variants,
                                       Recompute level) {
            TrainerConfig config = trainer_config(small_model(2, 64), 4, 64, level, fp8 ? &*fp8 : nullptr);
            config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
            for (const V variant : variants) config.kernels.add(variant);
            return config;
        }
    };
    const Fp8Config delayed = recipe(Fp8Recipe::delayed), current = recipe(Fp8Recipe::current);
    const Joined separate(delayed, {}, Recompute::none), bf16_run({}, {}, Recompute::none);
    const double fp8_error = distance(separate.gradients, bf16_run.gradients);
    for (const std::initializer_list<V>& variants : {std::initializer_list<V>{V::hopper_matmul_gelu},
                                                     {V::hopper_matmul_gelu_backward},
                                                     {V::hopper_matmul_gelu, V::hopper_matmul_gelu_backward}}) {
        CAPTURE(kernel_variant(*variants.begin()).name);
        CAPTURE(variants.size());
        const Joined joined(delayed, variants, Recompute::none);
        const bool has_backward = *(variants.end() - 1) == V::hopper_matmul_gelu_backward;
        if (has_backward) CHECK(distance(joined.gradients, separate.gradients) > 0);  // it runs at all
        CHECK(distance(joined.gradients, separate.gradients) < fp8_error);
        CHECK(joined.counts.fp8 == separate.counts.fp8);
        CHECK(joined.test.model.activation_bytes() == separate.test.model.activation_bytes());
        for (const Recompute level : {Recompute::gelu, Recompute::norm, Recompute::block})
            CHECK(same_bits(Joined(delayed, variants, level).gradients, joined.gradients));
        // Scales of the same step need a pass that measures, which these kernels do not have.
        CHECK(same_bits(Joined(current, variants, Recompute::none).gradients,
                        Joined(current, {}, Recompute::none).gradients));
    }
}

TEST_CASE("gpt2 fp8 variants: with scales per block, no variant has an effect") {
    TrainerConfig config = trainer_config(fixture_config(Gpt2Fixture()), 4, 32, Recompute::gelu);
    config.precision = Precision::fp8, config.fp8 = recipe(Fp8Recipe::mxfp8);
    TestModel<bf16> fused(config);
    config.kernels = kPortable;
    TestModel<bf16> plain(config);
    CHECK(plain.model.linear().activation_bytes() == fused.model.linear().activation_bytes());
    Batch batch;
    for (int i = 0; i < 128; i++) batch.tokens.push_back(i * i % 97);
    for (int i = 0; i < 128; i++) batch.targets.push_back(batch.tokens[static_cast<size_t>(i + 1) % 128]);
    for (TestModel<bf16>* run : {&fused, &plain}) {
        run->trainer.initialize(1);
        for (int i = 0; i < 2; i++) run->step(batch);
    }
    CHECK(same_bits(all_weights(plain.weights, plain.stream), all_weights(fused.weights, fused.stream)));
}

// Values that are only cast need memory for one layer at a time, the widest: GELU's.
TEST_CASE("gpt2 fp8 variants: values that are only cast take the memory of one layer") {
    const Gpt2Fixture fixture;
    const auto bytes = [&](const KernelSet& kernels) {
        TrainerConfig config = trainer_config(fixture_config(fixture), 4, 32, Recompute::gelu);
        config.precision = Precision::fp8;
        config.kernels = kernels;
        return Trainer<bf16>(config, Comm::self()).memory().activations;
    };
    const size_t N = 4 * 32, C = static_cast<size_t>(fixture.integer("channels")), fused = bytes(KernelSet::common());
    CHECK(bytes(all_but(KernelVariant::layernorm_fp8)) == fused + 2 * N * C);
    CHECK(bytes(all_but(KernelVariant::gelu_fp8)) == fused + 2 * N * 4 * C);
    CHECK(bytes(all_but(KernelVariant::attention_fp8)) == fused);
    CHECK(bytes(all_but(KernelVariant::layernorm_backward_fp8)) < fused);  // no partial sums of the bias gradient
}
