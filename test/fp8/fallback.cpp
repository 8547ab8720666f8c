// When layers leave FP8: the kernels against the rule, written a second time, on random counts of several ranks.
#include "llmc/fp8/fallback.h"

#include <random>

#include "llmc/fp8/scaling.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

TEST_CASE("fp8 fallback: streaks and verdicts are those of a simulation") {
    constexpr int kCount = 301, kSteps = 60;
    const Fp8FallbackRule rule{0.25f, 0.5f, 3};
    std::mt19937 random(5);
    std::vector<Fp8State> states(kCount);
    std::vector<Fp8Watch> watches(kCount, Fp8Watch{});
    std::vector<int> saturating(kCount), underflowing(kCount);
    std::vector<double> pending[3];  // counted but not evaluated yet
    for (auto& list : pending) list.resize(kCount);
    int fired[3] = {}, cleared = 0;
    const stream_t stream = test_stream();
    const auto count_something = [&](int i) {
        const uint64_t n = 1 + random() % 1000;
        const uint64_t s = random() % 4 ? n / 2 : n / 10, u = random() % 4 ? n / 5 * 4 : n / 4;
        const uint64_t added[3] = {n, i % 3 == 0 ? s : 0, i % 3 == 1 ? u : 0};
        states[i].elements += added[0], states[i].saturated += added[1], states[i].underflowed += added[2];
        for (int k = 0; k < 3; k++) pending[k][i] += static_cast<double>(added[k]);
    };
    for (int step = 0; step < kSteps; step++) {
        for (int i = 0; i < kCount; i++)
            if (random() % 16) count_something(i);
        const int bad = random() % 8 == 0;
        DeviceArray<Fp8State> device_states(states);
        DeviceArray<Fp8Watch> device_watches(watches);
        DeviceArray<float> packed(3 * kCount);
        DeviceArray<Fp8Verdict> verdicts(kCount);
        DeviceArray<int> bad_flag(std::vector<int>{bad});
        fp8_pack_counts(packed.get(), device_watches.get(), device_states.get(), kCount, stream);
        fp8_judge(verdicts.get(), device_watches.get(), packed.get(), bad_flag.get(), kCount, rule, stream);
        const auto result = verdicts.download();
        for (int i = 0; i < kCount; i++) {
            const double n = pending[0][i], s = n > 0 ? pending[1][i] / n : 0, u = n > 0 ? pending[2][i] / n : 0;
            if (!bad) {
                saturating[i] = s > 0.25 ? saturating[i] + 1 : 0;
                underflowing[i] = u > 0.5 ? underflowing[i] + 1 : 0;
            }
            const int expected = bad ? 0 : saturating[i] >= 3 ? 1 : underflowing[i] >= 3 ? 2 : 0;
            CHECK(result[i].reason == expected);
            if (expected) CHECK(result[i].fraction == doctest::Approx(expected == 1 ? s : u));
            fired[expected]++;
            for (auto& list : pending) list[i] = 0;
        }
        if (step % 7 == 3) {  // the log takes the counts in between
            for (int i = 0; i < kCount; i++)
                if (i % 2) count_something(i);
            DeviceArray<Fp8State> counted(states);
            fp8_keep_watched_counts(device_watches.get(), counted.get(), kCount, stream);
            fp8_clear_counts(counted.get(), kCount, stream);
            states = counted.download();
            cleared++;
        }
        watches = device_watches.download();
    }
    CHECK(cleared > 5);
    for (const int count : fired) CHECK(count > 100);
}

TEST_CASE("--fp8-fallback: what it takes, and what it refuses") {
    CHECK(fp8_fallback_from_text("off").steps == 0);
    const Fp8FallbackRule rule = fp8_fallback_from_text("0.01,0.5,10");
    CHECK(rule.saturated == 0.01f);
    CHECK(rule.underflowed == 0.5f);
    CHECK(rule.steps == 10);
    CHECK(fp8_fallback_from_text("1,1,1").steps == 1);
    for (const char* text : {"", "on", "0.01", "0.01,0.5", "0,0.5,10", "0.01,0,10", "-0.1,0.5,1", "1.1,0.5,1",
                             "0.1,1.5,1", "nan,0.5,1", "0.1,0.5,0", "0.1,0.5,-3", "0.1,0.5,10x", "0.1,0.5,10,"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(fp8_fallback_from_text(text), Error);
    }
}
