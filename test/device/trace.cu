// Traces on both devices: ranges of streams in order, nested, and with their properties; and no cost while no trace
// runs.
#include "llmc/device/trace.h"

#include <string>
#include <vector>

#include "llmc/device/kernel.cuh"
#include "test/device/streams.h"

using namespace llmc;
using namespace llmc::test;

namespace {

const Trace::Range& named(const std::vector<Trace::Range>& ranges, const std::string& name) {
    for (const Trace::Range& range : ranges)
        if (range.name == name) return range;
    FAIL("no range is called " << name);
    return ranges[0];
}

}  // namespace

TEST_CASE("trace: ranges have names, lines, kinds, steps and bytes") {
    Streams s;
    Trace trace(2);  // more ranges follow
    trace.name_stream(s.a, "compute");
    trace.name_stream(stream_t{}, "not there");
    trace.start(s.a);
    CHECK(Trace::active() == &trace);
    trace.set_step(7);
    {
        ProfileRange outer("outer", s.a);
        {
            ProfileRange inner("inner", s.a);
            fill(s.x, 1, s.a);
        }
        std::string name = "second";
        ProfileRange second(name.c_str(), s.a);
        name = "changed later";
        fill(s.x, 1, s.a);
    }
    trace.set_step(8);
    {
        ProfileRange sent("sent", Trace::Kind::communication, s.b);
        sent.set_bytes(12);
        fill(s.y, 1, s.b);
        ProfileRange host("on the host");
    }
    const std::vector<Trace::Range> ranges = trace.finish();
    CHECK(Trace::active() == nullptr);
    CHECK(trace.lines() == std::vector<std::string>{"compute", "stream 2"});
    REQUIRE(ranges.size() == 5);
    for (const Trace::Range& range : ranges) {
        CAPTURE(range.name);
        CHECK(range.begin >= 0);
        CHECK(range.begin <= range.end);
        CHECK(range.step == (range.name == "sent" || range.name == "on the host" ? 8 : 7));
        CHECK(range.bytes == (range.name == "sent" ? 12 : 0));
    }
    const Trace::Range &outer = named(ranges, "outer"), &inner = named(ranges, "inner");
    const Trace::Range &second = named(ranges, "second"), &sent = named(ranges, "sent");
    CHECK(outer.begin <= inner.begin);
    CHECK(inner.end <= second.begin);
    CHECK(second.end <= outer.end);
    CHECK(inner.end - inner.begin > 0);
    CHECK(outer.line == "compute");
    CHECK(outer.kind == Trace::Kind::compute);
    CHECK(sent.line == "stream 2");
    CHECK(sent.kind == Trace::Kind::communication);
    CHECK(named(ranges, "on the host").line == "host");
    CHECK(named(ranges, "on the host").kind == Trace::Kind::host);
}

TEST_CASE("trace: without a trace, ranges ignore their stream") {
    test_stream();
    REQUIRE(Trace::active() == nullptr);
    const auto nobody = reinterpret_cast<stream_t>(uintptr_t{64});
    ProfileRange outer("outer", nobody);
    ProfileRange inner("inner", Trace::Kind::communication, nobody);
    ProfileRange host("host");
    inner.set_bytes(1);
    Trace trace(4);  // a trace that was not started changes nothing
    ProfileRange other("other", nobody);
    CHECK(trace.lines().empty());
}

TEST_CASE("trace: one at a time, again and again") {
    Streams s;
    Trace first(4), second(4);
    first.start(s.a);
    CHECK_THROWS_AS(second.start(s.a), Error);
    { ProfileRange range("a", s.a); }
    CHECK(first.finish().size() == 1);
    {
        ProfileRange between("between", s.a);
        second.start(s.a);  // a stream that is not part of the trace
    }
    { ProfileRange range("b", s.a); }
    CHECK(second.finish().size() == 1);
    first.start(s.a);
    { ProfileRange range("c", s.a); }
    const std::vector<Trace::Range> again = first.finish();
    REQUIRE(again.size() == 1);
    CHECK(again[0].name == "c");
}

TEST_CASE("trace: open ranges are left out, and a destroyed trace leaves nothing behind") {
    Streams s;
    {
        Trace trace(4);
        trace.start(s.a);
        ProfileRange open("open", s.a);
        ProfileRange host("open too");
        { ProfileRange closed("closed", s.a); }
        const std::vector<Trace::Range> ranges = trace.finish();
        REQUIRE(ranges.size() == 1);
        CHECK(ranges[0].name == "closed");
        trace.start(s.a);
    }
    CHECK(Trace::active() == nullptr);
    ProfileRange range("later", s.a);
}

TEST_CASE("trace: a waiting stream begins its range after the awaited work has ended") {
    Streams s;
    Trace trace(4);
    trace.start(s.a);
    for (int i = 0; i < 20; i++) {
        {
            ProfileRange range("first", s.a);
            fill(s.x, 1, s.a);
        }
        record(s.first, s.a);
        wait(s.b, s.first);
        ProfileRange range("second", s.b);
        fill(s.x, 1, s.b);
    }
    synchronize(s.b);
    const std::vector<Trace::Range> ranges = trace.finish();
    REQUIRE(ranges.size() == 40);
    for (size_t i = 0; i < ranges.size(); i += 2) {
        REQUIRE(ranges[i].name == "first");
        CHECK(ranges[i].end <= ranges[i + 1].begin);
        if (i > 0) CHECK(ranges[i - 2].end <= ranges[i].begin);
    }
}
