// Updates of parameters, Muon's kernels and clipping: their specifications at many shapes, and properties that a
// specification cannot express.
#include "llmc/kernels/clip.h"
#include "llmc/kernels/muon.h"
#include "llmc/kernels/update.h"
#include "test/kernels/check_specifications.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("optimizers' updates, Muon's kernels and clipping meet their specifications") {
    for (const auto add : {check::add_optimizer_tests, check::add_muon_tests, check::add_clipping_tests})
        check_specifications(add);
}

TEST_CASE("updates need no working copy, and refuse misaligned tensors and more decay than elements") {
    const DeviceArray<StepState> state(std::vector<StepState>{StepState{}});
    DeviceArray<float> x(std::vector<float>(64, 1.0f)), y(std::vector<float>(64, 1.0f)), m(64), v(64), grad(64);
    const auto adamw = [&](size_t offset, size_t decay_count) {
        adamw_update<float>({x + offset, m + offset, v + offset, nullptr, grad + offset}, nullptr, 8, decay_count, {},
                            state.get(), test_stream());
    };
    const auto lion = [&](size_t offset, size_t decay_count) {
        lion_update<float>({x + offset, m + offset, {}, nullptr, grad + offset}, nullptr, 8, decay_count, {},
                           state.get(), test_stream());
    };
    const auto sgd = [&](size_t offset, size_t decay_count) {
        sgd_update<float>({x + offset, m + offset, {}, nullptr, grad + offset}, nullptr, 8, decay_count, {},
                          state.get(), test_stream());
    };
    for (const std::function<void(size_t, size_t)>& update : {std::function(adamw), {lion}, {sgd}}) {
        CHECK_NOTHROW(update(0, 8));
        CHECK_THROWS_AS(update(1, 0), Error);
        CHECK_THROWS_AS(update(0, 9), Error);
    }
    CHECK_THROWS_AS(clip_values(grad + 1, 8, 1.0, y, test_stream()), Error);
    CHECK_THROWS_AS(scale_gradient(grad + 1, 8, y, test_stream()), Error);
}

// The weight after each step, computed in FP64 from the definition of optax.nadamw.
TEST_CASE("adamw with Nesterov momentum follows optax.nadamw") {
    const float gradients[] = {0.5f, -0.25f, 1.0f, -2.0f, 0.125f};
    const double expected[] = {0.7469026316378947, 0.7470854944604107, 0.7449163068041638, 0.7460953640325731,
                               0.7461513957605048};
    AdamWConfig config{0.9, 0.95, 1e-8, 0.1};
    config.nesterov = true;
    DeviceArray<float> p(std::vector<float>{0.75f}), m(std::vector<float>{0.0f}), v(std::vector<float>{0.0f}), grad(1);
    StepState step = {};
    step.learning_rate = 2e-3;
    step.grad_scale = 1.0f;
    for (const double weight : expected) {
        grad.upload({gradients[step.applied++]});
        step.bias_correction1 = static_cast<float>(1 / (1 - std::pow(config.beta1, step.applied)));
        step.bias_correction2 = static_cast<float>(1 / (1 - std::pow(config.beta2, step.applied)));
        const DeviceArray<StepState> state(std::vector<StepState>{step});
        adamw_update<float>({p.get(), m.get(), v.get(), nullptr, grad.get()}, nullptr, 1, 1, config, state.get(),
                            test_stream());
        CHECK(std::fabs(static_cast<double>(p.download()[0]) - weight) < 3e-7);
    }
}

TEST_CASE("muon's momentum grows from 0.85 over its warm-up") {
    CHECK(momentum_at({0.95, 300}, 0) == 0.85);
    CHECK(std::fabs(momentum_at({0.95, 300}, 150) - 0.90) < 1e-15);
    CHECK(momentum_at({0.95, 300}, 300) == 0.95);
    CHECK(momentum_at({0.95, 0}, 0) == 0.95);
}

TEST_CASE("clip_factors: of sums of squares, in FP32 of the norm in FP64") {
    for (const float scale : {1.0f, 4096.0f}) {
        const size_t n = 300;
        std::vector<double> squares;
        for (size_t i = 0; i < n; i++) squares.push_back(scale * scale * std::pow(0.01 * static_cast<double>(i), 2));
        DeviceArray<double> device(squares);
        DeviceArray<float> factors(n), loss_scale(std::vector<float>{scale});
        clip_factors(factors, device, n, 1.25, loss_scale, test_stream());
        const std::vector<float> found = factors.download();
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            const double norm = static_cast<float>(std::sqrt(squares[i]) / static_cast<double>(scale));
            wrong += found[i] != static_cast<float>(norm > 1.25 ? 1.25 / norm : 1.0);
        }
        CHECK(wrong == 0);
        CHECK(found[125] == 1.0f);
        CHECK(found[126] < 1.0f);
    }
}

TEST_CASE("add_partials: all of them, however many") {
    for (const size_t n : {size_t{1}, size_t{255}, size_t{256}, size_t{1024}}) {
        std::vector<double> parts;
        for (size_t i = 0; i < n; i++) parts.push_back(static_cast<double>(i + 1));
        DeviceArray<double> device(parts), sum(1);
        add_partials(sum, device, n, test_stream());
        CHECK(sum.download()[0] == static_cast<double>(n * (n + 1) / 2));
    }
}
