// Tests of the learning rate schedules: values worked out by hand, boundaries, monotony, and the device's bits.
#include "llmc/optim/schedule.cuh"

#include <cmath>
#include <cstring>

#include "llmc/device/kernel.cuh"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const ScheduleKind kKinds[] = {ScheduleKind::cosine,      ScheduleKind::linear,     ScheduleKind::constant,
                               ScheduleKind::wsd,         ScheduleKind::wsd_linear, ScheduleKind::step,
                               ScheduleKind::inverse_sqrt};

bool near(double a, double b) { return std::fabs(a - b) <= 1e-15; }

}  // namespace

namespace llmc {
static __global__ void __launch_bounds__(256) learning_rate_kernel(double* out, ScheduleConfig config, int64_t steps) {
    const int64_t step = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (step < steps) out[step] = learning_rate(config, step);
}
}  // namespace llmc

TEST_CASE("warm-up climbs to the peak in every schedule") {
    for (const ScheduleKind kind : kKinds) {
        const ScheduleConfig config{kind, 1e-3, 10, 110, 0.1};
        CHECK(near(learning_rate(config, 0), 1e-4));  // not zero: llm.c counts the step itself
        CHECK(near(learning_rate(config, 4), 5e-4));
        CHECK(near(learning_rate(config, 9), 1e-3));  // the last of the warm-up is at the peak
        // The decay starts there, but inverse_sqrt's one step earlier.
        CHECK(near(learning_rate(config, 10), kind == ScheduleKind::inverse_sqrt ? 1e-3 * std::sqrt(10.0 / 11) : 1e-3));
    }
}

TEST_CASE("rates of every schedule, worked out by hand") {
    using enum ScheduleKind;
    const double last_of_cosine = 1e-4 + 9e-4 * 0.5 * (1 + std::cos(M_PI * 0.99));
    const ScheduleConfig on_a_branch{inverse_sqrt, 1e-3, 100, 2000, 0.1, 0.2, 0, 1, 1, 399};
    const ScheduleConfig wsd_branch{wsd_linear, 1e-3, 10, 300, 0.1, 0.2, 0, 1, 1, 200};
    const struct {
        ScheduleConfig config;
        std::vector<std::pair<int64_t, double>> rates;  // number of steps taken, and the next rate
    } schedules[] = {
        // Halfway; a quarter, where (1 + cos(pi / 4)) / 2 is left; the end.
        {{cosine, 1e-3, 10, 110, 0.1},
         {{60, 5.5e-4},
          {35, 1e-4 + 9e-4 * 0.8535533905932737},
          {85, 1e-4 + 9e-4 * 0.1464466094067262},
          {109, last_of_cosine},
          {110, 1e-4},
          {1000, 1e-4}}},
        {{linear, 1e-3, 10, 110, 0.1}, {{35, 7.75e-4}, {109, 1.09e-4}, {110, 1e-4}}},
        {{constant, 1e-3, 0, 100, 0.1}, {{0, 1e-3}, {1, 1e-3}, {99, 1e-3}, {100, 1e-3}, {500, 1e-3}}},
        // The last fifth falls as 1 - sqrt does, or in a line.
        {{wsd, 1e-3, 10, 200, 0.1},
         {{159, 1e-3}, {160, 1e-3}, {170, 5.5e-4}, {199, 1e-4 + 9e-4 * (1 - std::sqrt(39.0 / 40))}, {200, 1e-4}}},
        {{wsd_linear, 1e-3, 10, 200, 0.1, 0.5},
         {{99, 1e-3}, {100, 1e-3}, {150, 5.5e-4}, {199, 1e-4 + 9e-4 * 0.01}, {200, 1e-4}}},
        {{wsd, 1e-3, 10, 110, 0, 1.0}, {{10, 1e-3}, {35, 0.5e-3}}},  // a cooldown over everything after the warm-up
        {wsd_branch, {{199, 1e-3}, {200, 1e-3}, {250, 5.5e-4}, {300, 1e-4}}},
        {{step, 1e-3, 10, 200, 0.05},
         {{10, 1e-3}, {159, 1e-3}, {160, 3.16e-4}, {179, 3.16e-4}, {180, 1e-4}, {500, 1e-4}}},
        // Halves when the steps quadruple; a branch then falls in a line.
        {{inverse_sqrt, 1e-3, 100, 2000, 0.1}, {{99, 1e-3}, {399, 5e-4}, {1599, 2.5e-4}, {1000000, 1e-4}}},
        {on_a_branch, {{399, 5e-4}, {399 + 1601 / 2, 1e-4 + 4e-4 * (1 - 800.0 / 1601)}, {2000, 1e-4}}},
    };
    for (const auto& [config, rates] : schedules)
        for (const auto& [steps, rate] : rates) {
            CAPTURE(static_cast<int>(config.kind));
            CAPTURE(steps);
            CHECK(near(learning_rate(config, steps), rate));
        }
}

TEST_CASE("wsd: a cooldown of a fifth starts at the end of the fourth fifth, rounded down") {
    for (int64_t steps = 1; steps <= 2000; steps++) {
        const ScheduleConfig fifth{ScheduleKind::wsd, 1.0, 0, steps, 0};
        const int64_t start = steps * 4 / 5;
        if (start > 0) REQUIRE(learning_rate(fifth, start - 1) == 1.0);
        REQUIRE(learning_rate(fifth, start) == 1.0);  // nothing of the cooldown has passed
        if (start + 1 < steps) REQUIRE(learning_rate(fifth, start + 1) < 1.0);
    }
}

// The definition of SGDR: eta_min + (eta_max - eta_min) (1 + cos(pi T_cur / T_i)) / 2, T_i = T_0 T_mult^i.
TEST_CASE("cosine: warm restarts") {
    for (const int64_t factor : {1, 2, 3}) {
        const ScheduleConfig config{ScheduleKind::cosine, 1e-3, 5, 20, 0.1, 0.2, 10, factor};
        int64_t current = 0, period = 10;
        for (int64_t step = 5; step < 2000; step++) {
            CAPTURE(factor);
            CAPTURE(step);
            const double angle = M_PI * static_cast<double>(current) / static_cast<double>(period);
            REQUIRE(near(learning_rate(config, step), 1e-4 + 9e-4 * 0.5 * (1 + std::cos(angle))));
            if (++current == period) current = 0, period *= factor;
        }
        CHECK(learning_rate(config, 15) == 1e-3);
    }
}

TEST_CASE("after the warm-up no schedule rises, and none leaves [final, peak]") {
    for (const ScheduleKind kind : kKinds)
        for (const double final_fraction : {0.0, 0.1, 1.0})
            for (const int64_t warmup : {0, 1, 7, 90, 100, 150}) {
                const ScheduleConfig config{kind, 3e-4, warmup, 100, final_fraction};
                double previous = 0;
                for (int64_t step = 0; step < 220; step++) {
                    const double lr = learning_rate(config, step);
                    CAPTURE(static_cast<int>(kind));
                    CAPTURE(warmup);
                    CAPTURE(step);
                    REQUIRE(lr <= 3e-4 * (1 + 1e-15));
                    if (step < warmup)
                        REQUIRE(lr > previous);
                    else if (step > warmup)
                        REQUIRE(lr <= previous * (1 + 1e-15));
                    if (step >= warmup) REQUIRE(lr >= 3e-4 * final_fraction * (1 - 1e-15));
                    previous = lr;
                }
            }
}

TEST_CASE("half_cosine agrees with the library") {
    for (int i = 0; i <= 100000; i++) {
        const double x = i / 100000.0;
        REQUIRE(std::fabs(half_cosine(x) - 0.5 * (1 + std::cos(M_PI * x))) < 4e-16);
    }
    CHECK(half_cosine(0) == 1.0);
    CHECK(half_cosine(1) == 0.0);
}

TEST_CASE("the device computes the host's bits") {
    const int64_t steps = 1000;
    for (const ScheduleKind kind : kKinds) {
        const ScheduleConfig config{kind, 6e-4, 37, 900, 0.07, 0.3, kind == ScheduleKind::cosine ? 100 : 0, 2};
        DeviceArray<double> out(steps);
        launch<learning_rate_kernel>({dim3{4}, 256, 0, test_stream()}, {llmc::out(out.get(), steps)}, out.get(), config,
                                     steps);
        const std::vector<double> device = out.download();
        for (int64_t step = 0; step < steps; step++) {
            const double host = learning_rate(config, step);
            REQUIRE(std::memcmp(&host, &device[step], sizeof host) == 0);
        }
    }
}
