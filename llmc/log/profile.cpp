// Computes how much communication is hidden behind compute, and writes traces in Chrome's format.
#include "llmc/log/profile.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kWarmup = 2;       // steps: the first one calibrates FP8, and finds algorithms and clocks
constexpr int64_t kMostSteps = 100;  // every range is kept in memory until the end

// ---- sets of time ---------------------------------------------------------------------------------------------------

struct Interval {
    int64_t begin, end;
};
using Intervals = std::vector<Interval>;  // sorted and apart from each other, once united

Intervals united(Intervals all) {
    std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    Intervals result;
    for (const Interval& i : all) {
        if (!result.empty() && i.begin <= result.back().end)
            result.back().end = std::max(result.back().end, i.end);
        else
            result.push_back(i);
    }
    return result;
}

Intervals common(const Intervals& a, const Intervals& b) {
    Intervals result;
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const int64_t begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
        if (begin < end) result.push_back({begin, end});
        a[i].end < b[j].end ? i++ : j++;
    }
    return result;
}

Intervals without(const Intervals& a, const Intervals& b) {
    Intervals result;
    size_t j = 0;
    for (Interval i : a) {
        while (j < b.size() && b[j].end <= i.begin) j++;
        for (size_t k = j; k < b.size() && b[k].begin < i.end; k++) {
            if (b[k].begin > i.begin) result.push_back({i.begin, b[k].begin});
            i.begin = std::max(i.begin, b[k].end);
        }
        if (i.begin < i.end) result.push_back(i);
    }
    return result;
}

int64_t length(const Intervals& all) {
    int64_t sum = 0;
    for (const Interval& i : all) sum += i.end - i.begin;
    return sum;
}

// ---- the file -------------------------------------------------------------------------------------------------------

const char* category(Trace::Kind kind) {
    return kind == Trace::Kind::compute ? "compute" : kind == Trace::Kind::communication ? "communication" : "host";
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// An event that gives a process or one of its lines a name or a place.
ordered_json metadata_event(const char* what, int process, size_t line, const ordered_json& arguments) {
    return {{"ph", "M"}, {"pid", process}, {"tid", line}, {"name", what}, {"args", arguments}};
}

}  // namespace

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
        throw Error(ExitCode::bad_flags,
                    "'{}' is not a number of steps (3) or a range of them, counted from 1 and without its end (10:13 "
                    "for the steps 10 to 12)",
                    text);
    if (steps.last - steps.first >= kMostSteps)
        throw Error(ExitCode::bad_flags, "'{}' asks for {} steps; at most {} can be profiled, and a few are enough",
                    text, steps.last - steps.first + 1, kMostSteps);
    return steps;
}

Overlap overlap_of(const std::vector<Trace::Range>& ranges) {
    std::map<std::string, std::pair<Intervals, Intervals>> lines;  // compute and communication of each
    for (const Trace::Range& range : ranges) {
        if (range.kind == Trace::Kind::host) continue;
        auto& [compute, communication] = lines[range.line];
        (range.kind == Trace::Kind::compute ? compute : communication).push_back({range.begin, range.end});
    }
    Intervals all_compute, all_communication;
    for (const auto& [name, line] : lines) {
        const Intervals communication = united(line.second), compute = without(united(line.first), communication);
        all_compute.insert(all_compute.end(), compute.begin(), compute.end());
        all_communication.insert(all_communication.end(), communication.begin(), communication.end());
    }
    const Intervals compute = united(all_compute), communication = united(all_communication);
    return {length(communication), length(common(communication, compute)), length(compute)};
}

std::string trace_json(const TraceProcess& process, const std::vector<Trace::Range>& ranges) {
    std::map<std::string, size_t> line_numbers{{"host", 0}};
    for (const std::string& line : process.lines) line_numbers.emplace(line, line_numbers.size());
    const int rank = process.rank;
    std::vector<ordered_json> events = {metadata_event("process_name", rank, 0, {{"name", process.name}}),
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

// ---- in the training loop -------------------------------------------------------------------------------------------

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

std::optional<ordered_json> Profiler::finish(int64_t step) {
    if (!trace_ || first_ == 0) return std::nullopt;
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

    const Overlap overlap = overlap_of(ranges);
    const double steps = static_cast<double>(step - first_ + 1);
    const auto per_step = [steps](int64_t ns) { return static_cast<double>(ns) * 1e-6 / steps; };
    ordered_json profile{{"first_step", first_},
                         {"steps", step - first_ + 1},
                         {"compute_ms", per_step(overlap.compute)},
                         {"communication_ms", per_step(overlap.communication)},
                         {"hidden_ms", per_step(overlap.hidden)},
                         {"hidden", nullptr}};
    if (overlap.communication > 0)
        profile["hidden"] = static_cast<double>(overlap.hidden) / static_cast<double>(overlap.communication);
    return ordered_json{{"step", step}, {"profile", profile}};
}

std::string describe_profile(const ordered_json& record) {
    const ordered_json& p = record["profile"];
    std::string text =
        fmt::format("profile of steps {} to {}: {:.1f} ms of compute per step", p["first_step"].get<long long>(),
                    record["step"].get<long long>(), p["compute_ms"].get<double>());
    if (p["hidden"].is_null()) return text + ", no communication";
    return text + fmt::format(", {:.1f} ms of communication, {:.1f} % of it hidden behind compute",
                              p["communication_ms"].get<double>(), 100 * p["hidden"].get<double>());
}

void finish_profile(Profiler& profiler, int64_t step, const Comm& comm, RunDirectory& directory) {
    const std::optional<nlohmann::ordered_json> record = profiler.finish(step);
    if (!record) return;
    directory.append(*record);
    if (comm.is_main())
        print_line("{}\nwritten to {}/trace-rank*.json: open them in https://ui.perfetto.dev or chrome://tracing{}",
                   describe_profile(*record), profiler.directory(),
                   comm.world() > 1 ? "; scripts/merge_traces.py makes one file of them" : "");
}

}  // namespace llmc
