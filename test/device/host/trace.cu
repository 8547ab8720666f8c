// Traces with lazy streams: a range has the time at which the stream reaches it, not that of its submission.
#include "llmc/device/trace.h"

#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/host/changed_settings.h"
#include "test/device/streams.h"

using namespace llmc;
using namespace llmc::test;

namespace {

// Ranges "first" on one stream and "second" on another, which waits for it or should. Returns how often the second came
// too early.
int too_early(bool with_wait) {
    Streams s;
    Trace trace(100);
    trace.start(s.a);
    for (int i = 0; i < 50; i++) {
        {
            ProfileRange range("first", s.a);
            fill(s.x, 1, s.a);
        }
        record(s.first, s.a);
        if (with_wait) wait(s.b, s.first);
        ProfileRange range("second", s.b);
        fill(s.x, 2, s.b);
    }
    synchronize(s.b);
    const std::vector<Trace::Range> ranges = trace.finish();
    REQUIRE(ranges.size() == 100);
    int early = 0;
    for (size_t i = 0; i < ranges.size(); i += 2) {
        early += ranges[i + 1].begin < ranges[i].end;
        CHECK(ranges[i].begin < ranges[i].end);
    }
    return early;
}

}  // namespace

TEST_CASE("host trace: a missing wait shows in the times, and a wait does not") {
    for (const bool random : {false, true}) {
        CAPTURE(random);
        const ChangedSettings settings(true, random);
        CHECK(too_early(true) == 0);
        CHECK(too_early(false) > 10);
    }
}

TEST_CASE("host trace: lazy work is timed when it runs") {
    const ChangedSettings settings(true);
    Streams s;
    Trace trace(4);
    trace.start(s.a);
    {
        ProfileRange range("submitted early", s.a);
        fill(s.x, 1, s.a);
    }
    { ProfileRange range("meanwhile"); }
    const std::vector<Trace::Range> ranges = trace.finish();
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[1].end <= ranges[0].begin);
}
