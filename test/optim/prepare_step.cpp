// Tests of whole optimizer steps: global norm, prepare_step and AdamW together against a simulation in FP64, and the
// promises about skipped steps and loss scales, bit by bit.
#include "llmc/optim/prepare_step.h"

#include <cmath>
#include <tuple>

#include "llmc/kernels/clip.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

constexpr AdamWConfig kAdamW{0.9, 0.95, 1e-8, 0.1};
const ScheduleConfig kSchedule{ScheduleKind::cosine, 1e-2, 5, 20, 0.1};
const ScheduleConfig kConstant{ScheduleKind::constant, 1e-2};

// Two tensors (units) of parameters with their optimizer, driven like a trainer does.
struct Trainer {
    static constexpr size_t kSizes[2] = {40001, 515};
    static constexpr size_t kDecayed[2] = {39900, 0};
    struct Unit {
        DeviceArray<float> master, m, v, grad;
        DeviceArray<bf16> working;
        explicit Unit(size_t n, uint32_t seed)
            : master(random_normal<float>(n, 0.5f, seed)),
              m(std::vector<float>(n, 0.0f)),
              v(std::vector<float>(n, 0.0f)),
              grad(n),
              working(std::vector<bf16>(n, bf16{0})) {}
    };
    Unit units[2] = {Unit(kSizes[0], 1), Unit(kSizes[1], 2)};
    DeviceArray<double> partials{global_norm_blocks(kSizes[0]) + global_norm_blocks(kSizes[1])};
    DeviceArray<double> loss{std::vector<double>{3.0}};
    DeviceArray<StepState> state{std::vector<StepState>{StepState{}}};
    const float* scale = nullptr;
    const int* bad_flag = nullptr;
    double clip = 0;
    SpikeCheck spikes;
    ScheduleConfig schedule = kSchedule;

    StepState step(const std::vector<float>& grad0, const std::vector<float>& grad1) {
        units[0].grad.upload(grad0);
        units[1].grad.upload(grad1);
        size_t offset = 0;
        for (int u = 0; u < 2; u++) {
            global_norm_partials(partials + offset, units[u].grad.get(), kSizes[u], test_stream());
            offset += global_norm_blocks(kSizes[u]);
        }
        prepare_step(state, partials, offset, loss, scale, bad_flag, schedule, kAdamW, clip, spikes, test_stream());
        for (int u = 0; u < 2; u++)
            adamw_update<bf16>(
                {units[u].master.get(), units[u].m.get(), units[u].v.get(), units[u].working, units[u].grad.get()},
                nullptr, kSizes[u], kDecayed[u], kAdamW, state, test_stream());
        return state.download()[0];
    }
};

std::vector<float> gradient(int unit, int step, float size = 1.0f) {
    return random_normal<float>(Trainer::kSizes[unit], 1e-2f * size, 100 * step + unit, 1e-3f * size);
}

// The same in FP64, directly from the definitions.
struct Simulation {
    std::vector<double> p[2], m[2], v[2];
    int applied = 0;
    double norm = 0, learning_rate = 0;

    explicit Simulation(const Trainer& trainer) {
        for (int u = 0; u < 2; u++) {
            p[u] = to_doubles(trainer.units[u].master.download());
            m[u].assign(p[u].size(), 0.0);
            v[u].assign(p[u].size(), 0.0);
        }
    }
    void step(const std::vector<float> (&grads)[2], double clip) {
        double squares = 0;
        for (const auto& grad : grads)
            for (const float g : grad) squares += static_cast<double>(g) * g;
        norm = std::sqrt(squares);
        const double factor = clip > 0 ? std::min(1.0, clip / norm) : 1.0;
        const ScheduleConfig& s = kSchedule;
        if (applied < s.warmup) {
            learning_rate = s.lr * (applied + 1) / s.warmup;
        } else {
            const double passed = static_cast<double>(applied - s.warmup) / static_cast<double>(s.steps - s.warmup);
            learning_rate = s.lr * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * passed)));
        }
        applied++;
        for (int u = 0; u < 2; u++)
            for (size_t i = 0; i < p[u].size(); i++) {
                const double g = grads[u][i] * factor;
                m[u][i] = 0.9 * m[u][i] + 0.1 * g;
                v[u][i] = 0.95 * v[u][i] + 0.05 * g * g;
                if (i < Trainer::kDecayed[u]) p[u][i] *= 1 - learning_rate * 0.1;
                p[u][i] -= learning_rate * (m[u][i] / (1 - std::pow(0.9, applied))) /
                           (std::sqrt(v[u][i] / (1 - std::pow(0.95, applied))) + 1e-8);
            }
    }
};

std::vector<std::vector<float>> all_tensors(const Trainer& t) {
    std::vector<std::vector<float>> all;
    for (const auto& unit : t.units) {
        all.push_back(unit.master.download());
        all.push_back(unit.m.download());
        all.push_back(unit.v.download());
        const std::vector<bf16> working = unit.working.download();
        std::vector<float> widened(working.size());
        for (size_t i = 0; i < working.size(); i++) widened[i] = to_float(working[i]);
        all.push_back(widened);
    }
    return all;
}

}  // namespace

TEST_CASE("20 steps equal a simulation in FP64, with clipping on, off and too high to matter") {
    for (const double clip : {0.0, 1.0, 100.0}) {  // the norm is about 2
        CAPTURE(clip);
        Trainer trainer;
        trainer.clip = clip;
        Simulation simulation(trainer);
        for (int step = 0; step < 20; step++) {
            const std::vector<float> grads[2] = {gradient(0, step), gradient(1, step)};
            const StepState state = trainer.step(grads[0], grads[1]);
            simulation.step(grads, clip);
            CHECK(state.applied == step + 1);
            CHECK(state.skipped == 0);
            CHECK(state.skip == 0);
            CHECK(state.loss_sum == 3.0f);
            CHECK(std::fabs(state.norm / simulation.norm - 1) < 1e-6);
            CHECK(std::fabs(state.learning_rate / simulation.learning_rate - 1) < 1e-14);
        }
        for (int u = 0; u < 2; u++) {
            CHECK(relative_norm_error(trainer.units[u].master.download(), simulation.p[u]) < 3e-7);
            CHECK(relative_norm_error(trainer.units[u].m.download(), simulation.m[u]) < 1e-6);
            CHECK(relative_norm_error(trainer.units[u].v.download(), simulation.v[u]) < 2e-6);
            CHECK(relative_norm_error(trainer.units[u].working.download(), simulation.p[u]) < 2.5e-3);
        }
    }
}

TEST_CASE("one NaN or Inf among the gradients skips the step and leaves every tensor as it was") {
    Trainer trainer;
    trainer.step(gradient(0, 0), gradient(1, 0));
    const auto before = all_tensors(trainer);
    int skips = 0;
    for (const float bad : {NAN, INFINITY, -INFINITY})
        for (int unit = 0; unit < 2; unit++)
            for (const size_t position : {size_t{0}, Trainer::kSizes[unit] - 1}) {
                std::vector<float> grads[2] = {gradient(0, 1), gradient(1, 1)};
                grads[unit][position] = bad;
                const StepState state = trainer.step(grads[0], grads[1]);
                CHECK(state.skip == 1);
                CHECK(state.applied == 1);
                CHECK(state.skipped == ++skips);
                CHECK(!std::isfinite(state.norm));
                CHECK(state.learning_rate == learning_rate(kSchedule, skips));  // skipped steps count
            }
    CHECK(same_bits(all_tensors(trainer), before));
}

TEST_CASE("a non-finite loss skips the step too, and skipped steps leave no trace in later ones but in the schedule") {
    Trainer plain, skipping;
    plain.schedule = skipping.schedule = kConstant;
    plain.step(gradient(0, 0), gradient(1, 0));
    skipping.step(gradient(0, 0), gradient(1, 0));
    for (const float bad : {NAN, INFINITY}) {
        skipping.loss.upload({bad});
        CHECK(skipping.step(gradient(0, 7), gradient(1, 7)).skip == 1);
    }
    skipping.loss.upload({3.0f});
    plain.step(gradient(0, 1), gradient(1, 1));
    const StepState state = skipping.step(gradient(0, 1), gradient(1, 1));
    CHECK(state.skip == 0);
    CHECK(state.applied == 2);
    CHECK(state.skipped == 2);
    CHECK(same_bits(all_tensors(skipping), all_tensors(plain)));
}

TEST_CASE("a value that was not finite before its cast to FP8 skips the step, though norm and loss are finite") {
    Trainer trainer;
    DeviceArray<int> bad(std::vector<int>{0});
    trainer.bad_flag = bad;
    CHECK(trainer.step(gradient(0, 0), gradient(1, 0)).skip == 0);
    const auto before = all_tensors(trainer);
    for (int skips = 1; skips <= 3; skips++) {
        bad.upload({skips});
        const StepState state = trainer.step(gradient(0, 1), gradient(1, 1));
        CHECK(state.skip == 1);
        CHECK(state.applied == 1);
        CHECK(state.skipped == skips);
        CHECK(state.consecutive_skips == skips);
        CHECK(std::isfinite(state.norm));
    }
    CHECK(same_bits(all_tensors(trainer), before));
    bad.upload({0});
    const StepState state = trainer.step(gradient(0, 1), gradient(1, 1));
    CHECK(state.applied == 2);
    CHECK(state.skipped == 3);
    CHECK(state.consecutive_skips == 0);
}

TEST_CASE("with --skip-spikes a spike leaves every tensor as it was; without it the step is applied") {
    for (const bool skip : {false, true}) {
        Trainer trainer;
        SpikeState limits = {};
        limits.loss_limit = 5;
        limits.norm_limit = 1e9;
        DeviceArray<SpikeState> spikes(std::vector<SpikeState>{limits});
        trainer.spikes = {spikes, skip};
        CHECK(trainer.step(gradient(0, 0), gradient(1, 0)).spike == 0);
        const auto before = all_tensors(trainer);
        trainer.loss.upload({5.5f});
        const StepState state = trainer.step(gradient(0, 1), gradient(1, 1));
        CHECK(state.spike == kLossSpike);
        CHECK(state.skip == skip);
        CHECK(state.applied == (skip ? 1 : 2));
        CHECK(same_bits(all_tensors(trainer), before) == skip);
        if (skip) CHECK(state.learning_rate == learning_rate(kSchedule, 1));
    }
}

TEST_CASE("a run with a dynamic loss scale has the same bits as one without, except for skipped steps") {
    Trainer plain, scaled;
    plain.schedule = scaled.schedule = kConstant;
    plain.clip = scaled.clip = 1.0;
    const LossScaleConfig config{true, 65536.0f, 2, 16777216.0f, 1.0f};
    DeviceArray<LossScaleState> scaling(1);
    reset_loss_scale(scaling, config, test_stream());
    scaled.scale = &scaling.get()->scale;
    const float scales[] = {65536, 65536, 131072, 131072, 65536, 65536, 131072};  // before each step
    int clean = 0;
    for (int step = 0; step < 7; step++) {
        const LossScaleState now = scaling.download()[0];
        CHECK(now.scale == scales[step]);
        std::vector<float> grads[2] = {gradient(0, step), gradient(1, step)};
        const bool overflow = step == 3;
        if (!overflow) plain.step(grads[0], grads[1]);
        for (auto& grad : grads)
            for (float& g : grad) g *= now.scale;
        if (overflow) grads[0][17] = INFINITY;
        const StepState state = scaled.step(grads[0], grads[1]);
        CHECK(state.skip == overflow);
        CHECK(state.applied == (clean += !overflow));
        update_loss_scale(scaling, scaled.state, config, test_stream());
    }
    CHECK(same_bits(all_tensors(plain), all_tensors(scaled)));
}

TEST_CASE("clipping starts where the norm passes the limit") {
    DeviceArray<double> loss(std::vector<double>{0.0});
    DeviceArray<StepState> state(std::vector<StepState>{StepState{}});
    for (const auto& [sum_of_squares, clip, expected] :
         {std::tuple{4.0, 2.0, 1.0f}, std::tuple{4.0, 1.0, 0.5f}, std::tuple{4.0, 3.0, 1.0f},
          std::tuple{4.0, 0.0, 1.0f}, std::tuple{4.0, -1.0, 1.0f}, std::tuple{0.0, 1.0, 1.0f}}) {
        DeviceArray<double> partials(std::vector<double>{sum_of_squares});
        prepare_step(state, partials, 1, loss, nullptr, nullptr, kSchedule, kAdamW, clip, {}, test_stream());
        CHECK(state.download()[0].grad_scale == expected);
    }
}

TEST_CASE("every partial counts once, however many there are") {
    DeviceArray<double> loss(std::vector<double>{0.0});
    for (const size_t n : {1, 2, 255, 256, 257, 5000}) {
        std::vector<double> values(n);
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += values[i] = static_cast<double>(i + 1);
        DeviceArray<double> partials(values);
        DeviceArray<StepState> state(std::vector<StepState>{StepState{}});
        prepare_step(state, partials, n, loss, nullptr, nullptr, kSchedule, kAdamW, 1.0, {}, test_stream());
        CHECK(state.download()[0].norm == static_cast<float>(std::sqrt(sum)));  // the sums are exact
    }
}

TEST_CASE("bias corrections stay right after many steps") {
    DeviceArray<double> loss(std::vector<double>{0.0}), partials(std::vector<double>{1.0});
    for (const int64_t applied : {int64_t{0}, int64_t{1}, int64_t{6}, int64_t{999}, int64_t{1000000}}) {
        StepState start = {};
        start.applied = applied;
        DeviceArray<StepState> state(std::vector<StepState>{start});
        prepare_step(state, partials, 1, loss, nullptr, nullptr, kSchedule, kAdamW, 1.0, {}, test_stream());
        const StepState after = state.download()[0];
        const double t = static_cast<double>(applied + 1);
        CHECK(std::fabs(after.bias_correction1 * (1 - std::pow(0.9, t)) - 1) < 1e-7);
        CHECK(std::fabs(after.bias_correction2 * (1 - std::pow(0.95, t)) - 1) < 1e-7);
    }
}
