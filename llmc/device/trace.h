// Records what streams and the host do during selected steps: named ranges with begin and end times.
//
//   ProfileRange range("block 3 forward", stream);   // the work submitted to the stream until the end of the scope
//   ProfileRange range("load a batch");              // the host's own time
//
// Ranges always appear in NVTX tools. While a Trace runs they are kept as well. A stream's range lies between two timed
// events on the stream, which are read when the trace finishes, so nothing waits in between. If a stream waits just
// before a range, the wait shows as a gap. Without a Trace, a range costs one predictable branch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/owned.h"

namespace llmc {

// A trace of the main thread's work. Only the main thread may use it, and only one may run at a time.
class Trace {
public:
    enum class Kind { compute, communication, host };
    struct Range {
        std::string name, line;  // the stream's name, or "host"
        Kind kind;
        int64_t begin, end;  // nanoseconds since the start
        size_t bytes;        // 0 if unknown
        int64_t step;        // the value given to set_step()
    };

    // Creates the events for this many ranges now. Further ranges create theirs when they begin.
    explicit Trace(size_t expected_ranges);
    ~Trace() {
        if (active_ == this) active_ = nullptr;
    }
    Trace(Trace&&) = delete;

    // Names the stream's row. Streams without a name are called "stream 1", "stream 2" and so on.
    void name_stream(stream_t stream, const std::string& name) {
        if (stream) lines_[line_of(stream)].name = name;
    }
    std::vector<std::string> lines() const;  // names of the rows, by stream

    // Waits for `stream` to finish its work; that moment is time 0.
    void start(stream_t stream);
    void set_step(int64_t step) { step_ = step; }
    // Waits for all ranges and returns them in the order of their begin(). Leaves out ranges that are still open.
    std::vector<Range> finish();
    // The system clock at time 0, in nanoseconds.
    int64_t start_of_clock() const { return start_of_clock_; }

    static Trace* active() { return active_; }

    // For ProfileRange.
    static constexpr size_t kNone = ~size_t{0};
    size_t begin(const char* name, Kind kind, stream_t stream);
    void end(size_t range, size_t bytes);

private:
    struct Line {
        stream_t stream;
        std::string name;
    };
    struct Entry {
        Range range;                             // of a stream: without its line and times until finish()
        size_t line = 0;                         // of a stream
        event_t begin = nullptr, end = nullptr;  // of a stream
        bool ended = false;
    };
    size_t line_of(stream_t stream);
    event_t take_event() {
        if (taken_ == events_.size()) events_.push_back(create_event(true));
        return events_[taken_++];
    }
    int64_t host_time() const;

    inline static Trace* active_ = nullptr;
    std::vector<Line> lines_;
    std::vector<Entry> entries_;
    std::vector<OwnedEvent> events_;
    size_t taken_ = 0;
    OwnedEvent base_;
    int64_t start_of_clock_ = 0, steady_start_ = 0, step_ = 0;
};

// Marks the scope it lives in as a range, for NVTX tools and for the running Trace.
class ProfileRange {
public:
    // The name must live as long as the range.
    explicit ProfileRange(const char* name) : ProfileRange(name, Trace::Kind::host, stream_t{}) {}
    ProfileRange(const char* name, stream_t stream) : ProfileRange(name, Trace::Kind::compute, stream) {}
    ProfileRange(const char* name, Trace::Kind kind, stream_t stream) {
        push_range(name);
        if (Trace::active()) index_ = Trace::active()->begin(name, kind, stream);
    }
    ~ProfileRange() {
        if (index_ != Trace::kNone && Trace::active()) Trace::active()->end(index_, bytes_);
        pop_range();
    }
    ProfileRange(ProfileRange&&) = delete;

    void set_bytes(size_t bytes) { bytes_ = bytes; }

private:
    size_t index_ = Trace::kNone, bytes_ = 0;
};

}  // namespace llmc
