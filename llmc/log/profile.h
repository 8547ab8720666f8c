// --profile-steps: records what the streams and the host do during some steps. Each rank writes a file for Perfetto
// (https://ui.perfetto.dev) or chrome://tracing.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/device/trace.h"

namespace llmc {

struct ProfileSteps {
    int64_t first = 1, last = 0;  // count from 1; both are included
    bool any() const { return last > 0; }
};

// "N": N steps after two steps of warm-up. "A:B": from step A up to, but without, step B. Throws Error(bad_flags).
ProfileSteps profile_steps_from_text(const std::string& text);

struct TraceProcess {
    int rank = 0;
    std::string name;                // "rank 0 on node7"
    std::vector<std::string> lines;  // names of the streams in display order; the host comes first
    int64_t clock = 0;               // nanoseconds from `base` to this rank's time 0
    int64_t base = 0;                // Unix time in nanoseconds, the same for all ranks
};
// The text of the file: Chrome's trace event format, complete events in microseconds after `base`, one event per line.
std::string trace_json(const TraceProcess& process, const std::vector<Trace::Range>& ranges);

// Traces the steps of --profile-steps in the training loop. A collective: the ranks agree on the base of their clocks.
class Profiler {
public:
    struct Setup {
        ProfileSteps steps;
        std::string directory;                                  // the files go here
        size_t ranges_per_step = 0;                             // estimate
        std::vector<std::pair<std::string, stream_t>> streams;  // the first is the compute stream; nullptr if unused
    };
    // Without a setup it only marks the steps for NVTX tools.
    Profiler(const Comm& comm, const std::optional<Setup>& setup);

    // Call before a step's first work, and end_step() after its last. Returns true if it waited for the stream.
    bool begin_step(int64_t step);
    bool is_last(int64_t step) const { return trace_ && step == setup_->steps.last; }
    void end_step() { step_.reset(); }

    // Call after the last profiled step or at the end of the run. Waits for the streams, writes this rank's file, and
    // prints where it is. Returns false if there is nothing (more) to write.
    bool finish(int64_t step);

private:
    const Comm& comm_;
    const std::optional<Setup> setup_;
    std::unique_ptr<Trace> trace_;
    int64_t first_ = 0, base_ = 0;
    std::string step_name_;
    std::optional<ProfileRange> step_;
};

}  // namespace llmc
