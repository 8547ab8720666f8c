// Profiles: the selected steps, and the file.
// build: gpu test
#include "llmc/log/profile.h"
#include "llmc/base/json.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "test/helpers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Kind = Trace::Kind;

std::string refusal(const std::string& text) {
    return error_of([&] { profile_steps_from_text(text); }, ExitCode::bad_flags);
}

}  // namespace

TEST_CASE("profile: the steps that the flag selects") {
    const auto check_steps = [](const char* text, int64_t first, int64_t last) {
        CAPTURE(text);
        CHECK(profile_steps_from_text(text).first == first);
        CHECK(profile_steps_from_text(text).last == last);
    };
    check_steps("3", 3, 5);
    check_steps("1", 3, 3);
    check_steps("100", 3, 102);
    check_steps("10:13", 10, 12);
    check_steps("1:2", 1, 1);
    for (const char* text : {"", "0", "-1", "x", "3x", " 3", "1.5", ":", "1:", ":4", "0:4", "4:4", "5:4", "1:2:3",
                             "-1:3", "99999999999999999999", "1:99999999999999999999"}) {
        CAPTURE(text);
        CHECK(refusal(text).find(std::string("'") + text + "' is not a number of steps") == 0);
    }
    CHECK(refusal("101").find("at most 100") != std::string::npos);
    CHECK(refusal("1:102").find("asks for 101 steps; at most 100") != std::string::npos);
}

TEST_CASE("profile: the file") {
    const TraceProcess process{3, "rank 3 on \"node\"", {"compute", "weights", "gradients"}, 2000, 1700000000000000000};
    const std::vector<Trace::Range> ranges{{"step 4", "host", Kind::host, -1500, 1000, 0, 4},
                                           {"gather block 1", "weights", Kind::communication, 1234, 1235, 42, 4}};
    const nlohmann::json json = parse_json(trace_json(process, ranges));
    CHECK(json["displayTimeUnit"] == "ms");
    CHECK(json["baseTimeNanoseconds"] == 1700000000000000000);
    std::vector<nlohmann::json> complete, names;
    for (const nlohmann::json& event : json["traceEvents"]) {
        CHECK(event["pid"] == 3);
        if (event["ph"] == "X") complete.push_back(event);
        if (event["name"] == "thread_name") names.push_back(event);
        if (event["name"] == "process_name") CHECK(event["args"]["name"] == "rank 3 on \"node\"");
    }
    REQUIRE(names.size() == 4);
    for (const nlohmann::json& name : names) {
        const std::vector<std::string> lines{"host", "compute", "weights", "gradients"};
        CHECK(name["args"]["name"] == lines.at(name["tid"].get<size_t>()));
    }
    REQUIRE(complete.size() == 2);
    CHECK(complete[0] == parse_json(R"({"ph":"X","pid":3,"tid":0,"ts":0.5,"dur":2.5,"name":"step 4",
                                                   "cat":"host","args":{"step":4}})"));
    CHECK(complete[1] == parse_json(R"({"ph":"X","pid":3,"tid":2,"ts":3.234,"dur":0.001,
        "name":"gather block 1","cat":"communication","args":{"step":4,"bytes":42}})"));
    CHECK(parse_json(trace_json(process, {})).contains("traceEvents"));
    // Before `base`; rounding towards 0 would move it.
    CHECK(trace_json({0, "", {}, -5, 0}, {{"x", "host", Kind::host, 0, 1, 0, 1}}).find("\"ts\":-0.005") !=
          std::string::npos);
}

TEST_CASE("profile: begins and ends with its steps") {
    const stream_t stream = test::test_stream();
    const TemporaryDirectory base;
    const std::filesystem::path directory = base.path / "profile";
    const Comm comm = Comm::self();
    const Profiler::Setup setup{{2, 3}, directory.string(), 4, {{"compute", stream}, {"weights", stream_t{}}}};
    const auto steps = [&](Profiler& profiler, int64_t first, int64_t last) {
        for (int64_t step = first; step <= last; step++) {
            CHECK(profiler.begin_step(step) == (step == std::max<int64_t>(first, 2)));
            { ProfileRange range("work", stream); }
            profiler.end_step();
            if (profiler.is_last(step)) return step;
        }
        return last;
    };
    const auto names = [&] {
        std::vector<std::string> result;
        const nlohmann::json trace = parse_json(test::read_file(directory / "trace-rank0.json"));
        for (const nlohmann::json& event : trace["traceEvents"])
            if (event["ph"] == "X") result.push_back(event["name"]);
        std::filesystem::remove_all(directory);
        return result;
    };
    Profiler profiler(comm, setup);
    CHECK(steps(profiler, 1, 9) == 3);
    CHECK(profiler.finish(3));
    CHECK(!profiler.finish(9));
    CHECK(!profiler.is_last(3));
    CHECK(Trace::active() == nullptr);
    CHECK(names() == std::vector<std::string>{"step 2", "work", "step 3", "work"});

    Profiler stopped(comm, setup);  // before its last step
    CHECK(steps(stopped, 1, 2) == 2);
    CHECK(stopped.finish(2));
    CHECK(names() == std::vector<std::string>{"step 2", "work"});

    Profiler late(comm, setup);  // the run goes on from its step 3
    CHECK(late.begin_step(3));
    late.end_step();
    CHECK(late.finish(3));
    CHECK(names() == std::vector<std::string>{"step 3"});
    std::filesystem::remove_all(directory);

    Profiler early(comm, setup);
    CHECK(!early.begin_step(1));
    CHECK(!early.finish(1));
    Profiler nothing(comm, std::nullopt);
    CHECK(!nothing.begin_step(1));
    CHECK(!nothing.is_last(1));
    CHECK(!nothing.finish(1));
}
