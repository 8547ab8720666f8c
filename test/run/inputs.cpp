// --bench reduces the options to those of a bench.
#include "llmc/run/inputs.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/flags/flags.h"

using namespace llmc;

TEST_CASE("bench: options of any command become those of a bench, which writes nothing") {
    Options o;
    o.out = o.hellaswag = o.checkpoint_local = "x";
    o.val = o.task = {{"y", "y"}};
    o.sample_every = o.checkpoint_every = o.early_stop = o.rewind = o.skip_data = 1;
    find_flag("plateau")->set(o, "0.5,3");
    find_flag("resume")->set(o, "latest");
    o.new_data = true;
    o.schedule.warmup = 700;
    only_bench(o);
    CHECK(o.stop_after == kBenchSteps);
    CHECK(o.schedule.steps == 725);
    Options expected;
    expected.stop_after = kBenchSteps;
    expected.schedule.steps = 725;
    expected.schedule.warmup = 700;
    expected.checkpoint_minutes = 0;
    for (const Flag& flag : all_flags()) CHECK(*flag.get(o) == *flag.get(expected));

    Options given;
    given.train = "z";
    given.stop_after = 8;
    only_bench(given);
    CHECK(given.train == "z");
    CHECK(given.stop_after == 8);
    CHECK(given.schedule.steps == -1);  // one epoch
    given.stop_after = kBenchWarmup;
    CHECK_THROWS_AS(only_bench(given), Error);
}
