// --profile-steps: what the streams and the host do during some steps, as a file that Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open, one a rank; and how much of the communication was hidden behind
// compute.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/device/trace.h"
#include "llmc/log/metrics.h"

namespace llmc {

struct ProfileSteps {
    int64_t first = 1, last = 0;  // from 1, both of them included
};

// "N": N steps after two of warm-up. "A:B": from step A up to B, without B. Throws Error(bad_flags).
ProfileSteps profile_steps_from_text(const std::string& text);

// Nanoseconds in which collectives ran, in which they and compute ran, and in which compute ran. Ranges of a line may
// be nested: where one of communication lies in one of compute, the stream communicates.
struct Overlap {
    int64_t communication = 0, hidden = 0, compute = 0;
};
Overlap overlap_of(const std::vector<Trace::Range>& ranges);

struct TraceProcess {
    int rank = 0;
    std::string name;                // "rank 0 on node7"
    std::vector<std::string> lines;  // the streams' names in the order in which they are shown; the host comes first
    int64_t clock = 0;               // of this rank at the ranges' time 0, in nanoseconds after `base`
    int64_t base = 0;                // Unix time in nanoseconds, the same for all ranks
};
// The file: Chrome's trace event format, complete events in microseconds after `base`. One event a line.
std::string trace_json(const TraceProcess& process, const std::vector<Trace::Range>& ranges);

// The life of a profile in the training loop. Collective: the ranks agree on the base of their clocks.
class Profiler {
public:
    struct Setup {
        ProfileSteps steps;
        std::string directory;                                  // where the files go
        size_t ranges_per_step = 0;                             // about so many
        std::vector<std::pair<std::string, stream_t>> streams;  // the first one computes; null: not there
    };
    // Without a setup, nothing happens but that NVTX tools see the steps.
    Profiler(const Comm& comm, const std::optional<Setup>& setup);

    // Before a step's first work and after its last. True: the stream was waited for.
    bool begin_step(int64_t step);
    bool is_last(int64_t step) const { return trace_ && step == setup_->steps.last; }
    void end_step() { step_.reset(); }
    const std::string& directory() const { return setup_->directory; }

    // After the last profiled step, or the run's last: writes the file and returns this rank's record for
    // metrics.jsonl,
    // {"step", "profile": {...}}. Waits for the streams. Absent: nothing was profiled, or it is written already.
    std::optional<nlohmann::ordered_json> finish(int64_t step);

private:
    const Comm& comm_;
    const std::optional<Setup> setup_;
    std::unique_ptr<Trace> trace_;
    int64_t first_ = 0, base_ = 0;
    std::string step_name_;
    std::optional<ProfileRange> step_;
};

// The record in words.
std::string describe_profile(const nlohmann::ordered_json& record);

// After step `step`, on every rank: the record, and a word about it. Nothing, if nothing was profiled or it has been
// written.
void finish_profile(Profiler& profiler, int64_t step, const Comm& comm, RunDirectory& directory);

}  // namespace llmc
