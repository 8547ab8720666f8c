// Records ranges as pairs of timed events and turns them into nanoseconds at the end (trace.h).
#include "llmc/device/trace.h"

#include <chrono>
#include <cmath>

namespace llmc {

template <class Clock>
static int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

Trace::Trace(size_t expected_ranges) {
    base_ = create_event(true);
    events_.reserve(2 * expected_ranges);
    entries_.reserve(expected_ranges);
    for (size_t i = 0; i < 2 * expected_ranges; i++) events_.push_back(create_event(true));
}

std::vector<std::string> Trace::lines() const {
    std::vector<std::string> names;
    for (const Line& line : lines_) names.push_back(line.name);
    return names;
}

size_t Trace::line_of(stream_t stream) {
    for (size_t i = 0; i < lines_.size(); i++)
        if (lines_[i].stream == stream) return i;
    lines_.push_back({stream, "stream " + std::to_string(lines_.size() + 1)});
    return lines_.size() - 1;
}

int64_t Trace::host_time() const { return nanoseconds<std::chrono::steady_clock>() - steady_start_; }

void Trace::start(stream_t stream) {
    if (active_) throw Error(ExitCode::failure, "a second trace was started before the first was finished");
    record(base_, stream);
    synchronize(base_);
    start_of_clock_ = nanoseconds<std::chrono::system_clock>();
    steady_start_ = nanoseconds<std::chrono::steady_clock>();
    entries_.clear();
    taken_ = 0;
    active_ = this;
}

size_t Trace::begin(const char* name, Kind kind, stream_t stream) {
    Entry entry{{name, "host", kind, 0, 0, 0, step_}};
    if (kind == Kind::host) {
        entry.range.begin = host_time();
    } else {
        entry.line = line_of(stream);
        entry.begin = take_event();
        entry.end = take_event();
        record(entry.begin, stream);
    }
    entries_.push_back(std::move(entry));
    return entries_.size() - 1;
}

// Destructors call this, perhaps while another error is on its way, so it must not throw. A broken stream shows at its
// next use.
void Trace::end(size_t range, size_t bytes) {
    if (range >= entries_.size() || entries_[range].ended) return;
    Entry& entry = entries_[range];
    entry.range.bytes = bytes;
    try {
        if (entry.range.kind == Kind::host)
            entry.range.end = host_time();
        else
            record(entry.end, lines_[entry.line].stream);
        entry.ended = true;
    } catch (const Error&) {
    }
}

std::vector<Trace::Range> Trace::finish() {
    active_ = nullptr;
    // elapsed_ms() is a float: 60 ns of resolution after a second, 1 us after ten. It is monotonic, so rounding never
    // makes ranges of one stream overlap.
    const auto since_start = [this](event_t event) { return std::llround(double{elapsed_ms(base_, event)} * 1e6); };
    std::vector<Range> ranges;
    for (const Entry& entry : entries_) {
        if (!entry.ended) continue;
        Range range = entry.range;
        if (range.kind != Kind::host) {
            synchronize(entry.end);
            range.line = lines_[entry.line].name;
            range.begin = since_start(entry.begin);
            range.end = since_start(entry.end);
        }
        ranges.push_back(std::move(range));
    }
    return ranges;
}

}  // namespace llmc
