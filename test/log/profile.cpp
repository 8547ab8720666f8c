// Profiles: the selected steps, the overlap of communication and compute, and the file.
// build: gpu test
#include "llmc/log/profile.h"
#include "llmc/base/json.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "test/helpers.h"
#include "test/kernel_test.h"

using namespace llmc;
using namespace llmc::test;

namespace {

using Kind = Trace::Kind;

std::string refusal(const std::string& text) {
    return error_of([&] { profile_steps_from_text(text); }, ExitCode::bad_flags);
}

Trace::Range range(const std::string& line, Kind kind, int64_t begin, int64_t end) {
    return {"r", line, kind, begin, end, 0, 1};
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

TEST_CASE("profile: the overlap of compute and communication, compared with a count of each nanosecond") {
    std::mt19937 random(5);
    constexpr int kEnd = 200;
    for (int trial = 0; trial < 200; trial++) {
        std::vector<Trace::Range> ranges;
        bool computes[3][kEnd] = {}, communicates[3][kEnd] = {};
        for (int i = 0; i < 12; i++) {
            const int line = static_cast<int>(random() % 3), begin = static_cast<int>(random() % kEnd);
            const int end = std::min(kEnd, begin + static_cast<int>(random() % 30));
            const std::string name(1, static_cast<char>('a' + line));
            ranges.push_back(range(name, Kind::host, begin + 3, end + 3));  // counts as neither
            const bool compute = random() % 2;
            ranges.push_back(range(name, compute ? Kind::compute : Kind::communication, begin, end));
            for (int t = begin; t < end; t++) (compute ? computes : communicates)[line][t] = true;
        }
        int64_t communication = 0, hidden = 0, compute = 0;
        for (int t = 0; t < kEnd; t++) {
            bool some_compute = false, some_communication = false;
            for (int line = 0; line < 3; line++) {
                some_communication |= communicates[line][t];
                some_compute |= computes[line][t] && !communicates[line][t];
            }
            communication += some_communication;
            compute += some_compute;
            hidden += some_communication && some_compute;
        }
        const Overlap overlap = overlap_of(ranges);
        CHECK(overlap.communication == communication);
        CHECK(overlap.hidden == hidden);
        CHECK(overlap.compute == compute);
    }
}

TEST_CASE("profile: the file") {
    const TraceProcess process{3, "rank 3 on \"node\"", {"compute", "weights", "gradients"}, 2000, 1700000000000000000};
    const std::vector<Trace::Range> ranges{{"step 4", "host", Kind::host, -1500, 1000, 0, 4},
                                           {"gather block 1", "weights", Kind::communication, 1234, 1235, 42, 4}};
    const nlohmann::json json = parse_json<nlohmann::json>(trace_json(process, ranges));
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
    CHECK(complete[0] == parse_json<nlohmann::json>(R"({"ph":"X","pid":3,"tid":0,"ts":0.5,"dur":2.5,"name":"step 4",
                                                   "cat":"host","args":{"step":4}})"));
    CHECK(complete[1] == parse_json<nlohmann::json>(R"({"ph":"X","pid":3,"tid":2,"ts":3.234,"dur":0.001,
        "name":"gather block 1","cat":"communication","args":{"step":4,"bytes":42}})"));
    CHECK(parse_json<nlohmann::json>(trace_json(process, {})).contains("traceEvents"));
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
        const nlohmann::json trace = parse_json<nlohmann::json>(test::read_file(directory / "trace-rank0.json"));
        for (const nlohmann::json& event : trace["traceEvents"])
            if (event["ph"] == "X") result.push_back(event["name"]);
        std::filesystem::remove_all(directory);
        return result;
    };
    Profiler profiler(comm, setup);
    CHECK(steps(profiler, 1, 9) == 3);
    const nlohmann::ordered_json record = profiler.finish(3).value();
    CHECK(!profiler.finish(9));
    CHECK(!profiler.is_last(3));
    CHECK(Trace::active() == nullptr);
    CHECK(names() == std::vector<std::string>{"step 2", "work", "step 3", "work"});
    CHECK(record["step"] == 3);
    CHECK(record["profile"]["first_step"] == 2);
    CHECK(record["profile"]["steps"] == 2);
    CHECK(record["profile"]["hidden"].is_null());
    CHECK(describe_profile(record).find("profile of steps 2 to 3: 0.") == 0);
    CHECK(describe_profile(record).find("no communication") != std::string::npos);

    Profiler stopped(comm, setup);  // before its last step
    CHECK(steps(stopped, 1, 2) == 2);
    CHECK(stopped.finish(2).value()["profile"]["steps"] == 1);
    CHECK(names() == std::vector<std::string>{"step 2", "work"});

    Profiler late(comm, setup);  // the run goes on from its step 3
    CHECK(late.begin_step(3));
    late.end_step();
    CHECK(late.finish(3).value()["profile"]["first_step"] == 3);
    std::filesystem::remove_all(directory);

    Profiler early(comm, setup);
    CHECK(!early.begin_step(1));
    CHECK(!early.finish(1));
    Profiler nothing(comm, std::nullopt);
    CHECK(!nothing.begin_step(1));
    CHECK(!nothing.is_last(1));
    CHECK(!nothing.finish(1));
}

TEST_CASE("profile: the line that is printed") {
    const nlohmann::ordered_json record{{"step", 5},
                                        {"profile",
                                         {{"first_step", 3},
                                          {"steps", 3},
                                          {"compute_ms", 12.34},
                                          {"communication_ms", 4.56},
                                          {"hidden_ms", 4.1},
                                          {"hidden", 0.899}}}};
    CHECK(describe_profile(record) ==
          "profile of steps 3 to 5: 12.3 ms of compute per step, 4.6 ms of communication, 89.9 % of it hidden behind "
          "compute");
}
