// What --bench leaves of a run, and what it says of its steps.
#include "llmc/run/bench.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

using namespace llmc;

namespace {

// The warm-up, then `ms`.
std::vector<StepRecord> steps_of(const std::vector<double>& ms) {
    std::vector<StepRecord> steps;
    for (int64_t i = 0; i < kBenchWarmup + static_cast<int64_t>(ms.size()); i++) {
        StepRecord record;
        record.step = i + 1;
        record.ms = i < kBenchWarmup ? 5000 : ms[static_cast<size_t>(i - kBenchWarmup)];
        record.tokens_per_s = 1e6 / record.ms;
        record.flops_per_token = 1e9;
        steps.push_back(record);
    }
    return steps;
}

}  // namespace

TEST_CASE("bench: the median of the steps after the warm-up") {
    ProgressSetup setup;
    CHECK(format_bench(steps_of({120, 100, 90, 3000, 80}), setup, size_t{3} << 30) ==
          "bench: 100.0 ms per step (median of 5 after 5 of warm-up; 80.0 to 3000.0), 10,000 tok/s, mem 3.0 GiB");
    setup.peak_tflops = 20;
    setup.ranks = 2;
    std::vector<StepRecord> steps = steps_of({100});
    steps.back().joules_per_token = 0.0125;
    CHECK(format_bench(steps, setup, size_t{3} << 30) ==
          "bench: 100.0 ms per step (median of 1 after 5 of warm-up; 100.0 to 100.0), 10,000 tok/s, 5,000 of each of 2 "
          "ranks, MFU 25.0% of 20 TFLOP/s, 0.0125 J per token, mem 3.0 GiB");
    CHECK(format_bench(steps_of({}), setup, 0) == "bench: it ended before the warm-up did");
}

TEST_CASE("bench: any command, and nothing that it would write") {
    Options o;
    o.out = o.resume = o.hellaswag = o.checkpoint_local = "x";
    o.val = {{"", "y"}};
    o.sample_every = o.checkpoint_every = o.early_stop = o.rewind = o.skip_data = 1;
    o.plateau = {"0.5,3", {0.5, 3}};
    o.track = {"wandb", {"wandb"}};
    o.new_data = true;
    o.warmup = 700;
    only_bench(o);
    CHECK(o.stop_after == kBenchSteps);
    CHECK(o.max_steps == 725);
    Options expected;
    expected.stop_after = kBenchSteps;
    expected.max_steps = 725;
    expected.warmup = 700;
    expected.checkpoint_minutes = 0;
    CHECK(o == expected);

    Options given;
    given.train = "z";
    given.stop_after = 8;
    only_bench(given);
    CHECK(given.train == "z");
    CHECK(given.stop_after == 8);
    CHECK(given.max_steps == -1);  // an epoch of it
    given.stop_after = kBenchWarmup;
    CHECK_THROWS_AS(only_bench(given), Error);
}
