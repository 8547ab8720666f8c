// Traces the steps of --profile-steps, and writes them in Chrome's format.
#include "llmc/log/profile.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/log/run_directory.h"

namespace llmc {

constexpr int64_t kWarmup = 2;       // steps: the first one calibrates FP8, and finds algorithms and clocks
constexpr int64_t kMostSteps = 100;  // every range is kept in memory until the end

static const char* category(Trace::Kind kind) {
    return kind == Trace::Kind::compute ? "compute" : kind == Trace::Kind::communication ? "communication" : "host";
}

static double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// An event that gives a process or one of its lines a name or a place.
static Json metadata_event(const char* what, int process, size_t line, const Json& arguments) {
    return {{"ph", "M"}, {"pid", process}, {"tid", line}, {"name", what}, {"args", arguments}};
}

ProfileSteps profile_steps_from_text(const std::string& text) {
    const auto number = [](const std::string& part) -> int64_t {
        const int64_t value = number_in<int64_t>(part).value_or(0);
        return value >= 1 && value < int64_t{1} << 50 ? value : 0;
    };
    const size_t colon = text.find(':');
    ProfileSteps steps;
    if (colon == std::string::npos) {
        const int64_t count = number(text);
        steps = {kWarmup + 1, count > 0 ? kWarmup + count : 0};
    } else {
        const int64_t first = number(text.substr(0, colon)), end = number(text.substr(colon + 1));
        steps = {first, first > 0 ? end - 1 : 0};
    }
    if (steps.first < 1 || steps.last < steps.first)
        refuse(
            "'{}' is not a number of steps (3) or a range of them, counted from 1 and without its end (10:13 "
            "for the steps 10 to 12)",
            text);
    if (steps.last - steps.first >= kMostSteps)
        refuse("'{}' asks for {} steps; at most {} can be profiled, and a few are enough", text,
               steps.last - steps.first + 1, kMostSteps);
    return steps;
}

std::string trace_json(const TraceProcess& process, const std::vector<Trace::Range>& ranges) {
    std::map<std::string, size_t> line_numbers{{"host", 0}};
    for (const std::string& line : process.lines) line_numbers.emplace(line, line_numbers.size());
    const int rank = process.rank;
    std::vector<Json> events = {metadata_event("process_name", rank, 0, {{"name", process.name}}),
                                metadata_event("process_sort_index", rank, 0, {{"sort_index", rank}})};
    for (const auto& [line, number] : line_numbers) {
        events.push_back(metadata_event("thread_name", rank, number, {{"name", line}}));
        events.push_back(metadata_event("thread_sort_index", rank, number, {{"sort_index", number}}));
    }
    for (const Trace::Range& range : ranges) {
        events.push_back({{"ph", "X"},
                          {"pid", rank},
                          {"tid", line_numbers.at(range.line)},
                          {"ts", microseconds(process.clock + range.begin)},
                          {"dur", microseconds(range.end - range.begin)},
                          {"name", range.name},
                          {"cat", category(range.kind)},
                          {"args", {{"step", range.step}}}});
        if (range.bytes) events.back()["args"]["bytes"] = range.bytes;
    }
    std::string text =
        fmt::format("{{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},\"traceEvents\":[\n", process.base);
    for (size_t i = 0; i < events.size(); i++) text += json_text(events[i]) + (i + 1 < events.size() ? ",\n" : "\n");
    return text + "]}\n";
}

Profiler::Profiler(const Comm& comm, const std::optional<Setup>& setup) : comm_(comm), setup_(setup) {
    if (!setup_) return;
    const int64_t steps = setup_->steps.last - setup_->steps.first + 1;
    trace_ = std::make_unique<Trace>(std::min(setup_->ranges_per_step * static_cast<size_t>(steps), size_t{1} << 16));
    for (const auto& [name, stream] : setup_->streams) trace_->name_stream(stream, name);
}

bool Profiler::begin_step(int64_t step) {
    bool waited = false;
    if (trace_ && first_ == 0 && step >= setup_->steps.first) {
        first_ = step;
        trace_->start(setup_->streams[0].second);
        const int64_t mine = trace_->start_of_clock();
        std::vector<int64_t> all(static_cast<size_t>(comm_.world()));
        comm_.host_all_gather(all.data(), &mine, sizeof mine);
        base_ = *std::min_element(all.begin(), all.end());
        waited = true;
    }
    if (Trace::active()) Trace::active()->set_step(step);
    step_name_ = fmt::format("step {}", step);
    step_.emplace(step_name_.c_str());
    return waited;
}

bool Profiler::finish(int64_t step) {
    if (!trace_ || first_ == 0) return false;
    step_.reset();
    const std::vector<Trace::Range> ranges = trace_->finish();
    const int rank = comm_.rank();
    const TraceProcess process{rank, fmt::format("rank {} on {}", rank, comm_.host(rank)), trace_->lines(),
                               trace_->start_of_clock() - base_, base_};
    std::error_code ignored;  // writing says what is wrong
    std::filesystem::create_directories(setup_->directory, ignored);
    const std::filesystem::path file =
        std::filesystem::path(setup_->directory) / fmt::format("trace-rank{}.json", rank);
    write_file(file.string(), trace_json(process, ranges));
    trace_.reset();

    if (comm_.is_main())
        print_line(
            "profile of steps {} to {}: written to {}/trace-rank*.json; open them in https://ui.perfetto.dev or "
            "chrome://tracing{}",
            first_, step, setup_->directory,
            comm_.world() > 1 ? "; python3 scripts/merge_traces.py makes one file of them" : "");
    return true;
}

}  // namespace llmc
