// Training with Hopper's matmuls with GELU, compared with separate kernels. Skipped where the device is no Hopper card.
#include <cmath>

#include "test/model/fp8_training.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using AllGradients = std::vector<std::vector<float>>;  // tensor after tensor

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

}  // namespace

// A card may add up both products in other orders than the library does; the virtual GPU does not. The kernel adds up
// fc's bias gradient in another order than the separate one. So gradients differ by less than FP8's differ from BF16's.
TEST_CASE("gpt2 fp8: Hopper's products with GELU change the order of sums, and nothing else") {
    test_stream();
    if (!is_hopper()) return;
    struct Joined {
        TestModel<bf16> test;
        AllGradients gradients;
        ProductCounts counts;

        Joined(const std::optional<Fp8Config>& fp8, Kernels kernels, FastAccumulation fast, Recompute level)
            : test(config_of(fp8, kernels, fast, level)) {
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
        static TrainerConfig config_of(const std::optional<Fp8Config>& fp8, Kernels kernels, FastAccumulation fast,
                                       Recompute level) {
            TrainerConfig config = trainer_config(small_model(2, 64), 4, 64, level, fp8 ? &*fp8 : nullptr);
            config.schedule = {ScheduleKind::constant, 1e-3, 0, 100, 0};
            config.kernels = kernels, config.fast_accumulation = fast;
            return config;
        }
    };
    const Fp8Config delayed = recipe(Fp8Recipe::delayed), current = recipe(Fp8Recipe::current);
    // Without fast accumulation forward is separate.
    for (const FastAccumulation fast : {FastAccumulation::forward, FastAccumulation::none}) {
        CAPTURE(static_cast<int>(fast));
        const auto run = [&](const std::optional<Fp8Config>& fp8, Kernels kernels, Recompute level = Recompute::none) {
            return std::make_unique<Joined>(fp8, kernels, fast, level);
        };
        const auto separate = run(delayed, Kernels::portable), joined = run(delayed, Kernels::automatic);
        const double apart = distance(joined->gradients, separate->gradients);
        CHECK(apart > 0);  // it runs at all
        CHECK(apart < distance(separate->gradients, run({}, Kernels::portable)->gradients));
        CHECK(joined->counts.fp8 == separate->counts.fp8);
        CHECK(joined->test.model.activation_bytes() == separate->test.model.activation_bytes());
        for (const Recompute level : {Recompute::gelu, Recompute::norm, Recompute::block})
            CHECK(same_bits(run(delayed, Kernels::automatic, level)->gradients, joined->gradients));
        // Scales of the same step need a pass that measures, which these kernels do not have.
        CHECK(same_bits(run(current, Kernels::automatic)->gradients, run(current, Kernels::portable)->gradients));
    }
}
