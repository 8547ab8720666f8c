// What the streams do during some steps: named ranges of a stream's work, or of the host's own time, with begin and
// end.
//
//   ProfileRange range("block 3 forward", stream);   // until the end of the scope: what is submitted to the stream
//   ProfileRange range("load a batch");              // what the host does
//
// Ranges are always shown to NVTX tools. While a Trace is started they are kept as well: a stream's ranges lie between
// two timed events recorded on it, which are read when the trace is finished, so nothing waits in between; waits of the
// stream show as gaps if they come before the range. Otherwise a range costs one predictable branch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// At most one is started at a time. To be used by the main thread alone, like streams are.
class Trace {
public:
    enum class Kind { compute, communication, host };
    struct Range {
        std::string name, line;  // the stream's name, or "host"
        Kind kind;
        int64_t begin, end;  // nanoseconds since the start
        size_t bytes;        // 0: not said
        int64_t step;        // as set_step() has said
    };

    // Events for this many ranges are made now; if there are more, the rest when they come.
    explicit Trace(size_t expected_ranges);
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    // The stream's line. Streams without a name are called "stream 1", "stream 2" and so on.
    void name_stream(stream_t stream, const std::string& name);
    std::vector<std::string> lines() const;  // by stream

    // Waits for `stream`; time 0 is when that is done.
    void start(stream_t stream);
    void set_step(int64_t step) { step_ = step; }
    // Waits for the ranges, in the order of their begin() here. Those still open are left out.
    std::vector<Range> finish();
    // Nanoseconds of the system's clock at time 0.
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
        std::string name;
        Kind kind;
        size_t line;
        event_t begin, end;            // of a stream
        int64_t host_begin, host_end;  // of the host
        size_t bytes;
        int64_t step;
        bool ended;
    };
    size_t line_of(stream_t stream);
    event_t take_event();
    int64_t host_time() const;

    inline static Trace* active_ = nullptr;
    std::vector<Line> lines_;
    std::vector<Entry> entries_;
    std::vector<event_t> events_;
    size_t taken_ = 0;
    event_t base_ = nullptr;
    int64_t start_of_clock_ = 0, steady_start_ = 0, step_ = 0;
};

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
    ProfileRange(const ProfileRange&) = delete;
    ProfileRange& operator=(const ProfileRange&) = delete;

    void set_bytes(size_t bytes) { bytes_ = bytes; }

private:
    size_t index_ = Trace::kNone, bytes_ = 0;
};

}  // namespace llmc
