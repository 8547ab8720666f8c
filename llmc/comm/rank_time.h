// The time of each rank's steps, split into waits for other ranks and the rank's own work, and the rank that slows a
// run down.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/device/owned.h"

namespace llmc {

class OperationLog;

// ---- the slowest rank -----------------------------------------------------------------------------------------------
// All ranks wait for the slowest one in every step, so the step's time does not tell which it is. The time that each
// rank spends on its own work does.

// The time of one rank's step, in milliseconds.
struct RankTime {
    float ms = 0;        // the whole step, much the same on all ranks
    float peers_ms = 0;  // waiting for other ranks, with the transfers (PeerWaits)
    float data_ms = 0;   // waiting for the prefetch thread; part of the rank's own time
};

// The rank whose own work (ms - peers_ms) took longest in a step.
struct SlowestRank {
    int rank = 0;
    double own_ms = 0, data_ms = 0;  // that rank's own work, and the part of it that is waiting for data
    double others_ms = 0;            // median of the other ranks' own times
    double peers_ms = 0;             // median over all ranks of the time waiting for others
    double ratio() const { return others_ms > 0 ? own_ms / others_ms : 1; }
    // True if at least half of its extra time is time waiting for data.
    bool waits_for_data() const { return 2 * data_ms >= own_ms - others_ms && data_ms > 0; }
};
SlowestRank slowest_rank(const std::vector<RankTime>& ranks);  // needs at least two ranks

// A rank stands out if its own time is kSlowRatio times the others'. Below that, ranks of healthy clusters differ too:
// by their cards' clocks, and by other work of their hosts. It is slow once it has stood out in kSlowSteps steps in a
// row, because a single slow step has many causes, such as a busy file system. It stays slow until, for as many steps
// in a row, no rank or another rank has stood out.
class SlowRankWatch {
public:
    static constexpr double kSlowRatio = 1.2;
    static constexpr int kSlowSteps = 5;

    enum class Change { none, begins, ends };
    Change observe(const SlowestRank& step);

private:
    static constexpr int kNone = -1;
    int outstanding_ = kNone, steps_ = 0;  // the rank that stood out in the last steps
    int slow_ = kNone;
};

// "step 118: rank 3 on node7 (NVIDIA H100, ...) is slow: its own work took 131.0 ms, 1.35 times ..."
std::string format_slow_rank(int64_t step, const SlowestRank& slowest, const std::string& rank);

// ---- a rank's waits for others --------------------------------------------------------------------------------------

// The time that a rank waits for other ranks within its steps, the transfers included. What is left of a step is the
// rank's own work.
//
// Back-ends over host memory block the calling thread, and the operation log has that time. With NCCL, the training
// stream waits: at a collective of its own, or for one of another stream. Two events around each such place measure it,
// and are read when the step is done. The running time of collectives would mislead: on a rank that is ahead, each one
// in the background runs until the other ranks join it, so 2 % of difference would look like 20 %. Main thread only.
class PeerWaits {
public:
    explicit PeerWaits(std::shared_ptr<const OperationLog> log) : log_(std::move(log)) {}

    // From now on events in streams measure. The NCCL back-end calls this.
    void measure_on_device() { on_device_ = true; }

    // The waits of a step.
    struct Step {
        struct Pair {
            OwnedEvent begin, end;
        };
        double blocked_ms = 0;    // for which collectives blocked the calling thread
        std::vector<Pair> pairs;  // on the device
    };
    // Counts waits of `stream` between the two calls. If `continues`, the time since the previous end_step() belongs to
    // this step too.
    void begin_step(stream_t stream, bool continues);
    Step end_step();
    // The length of a step's waits, once the device has passed them. Its events are used again afterwards.
    double ms(Step step);

    // Marks a part of a stream's work that waits for other ranks. Such parts may be nested.
    void begin(stream_t stream);
    void end(stream_t stream);

private:
    bool counts(stream_t stream) const { return on_device_ && stream_ && stream == stream_; }

    const std::shared_ptr<const OperationLog> log_;
    bool on_device_ = false;
    stream_t stream_ = nullptr;  // the training stream during a step
    int depth_ = 0;
    double blocked_before_ = 0;  // seconds in the log that earlier steps have counted
    Step step_;
    std::vector<Step::Pair> free_;
};

}  // namespace llmc
