// The time that a rank waits for other ranks within its steps, the transfers included. What is left of a step is the
// rank's own work, which tells a slow rank from those that wait for it (llmc/comm/slow_rank.h).
//
// Back-ends over host memory block the calling thread, and the operation log has that time. With NCCL, the training
// stream waits: at a collective of its own, or for one of another stream. Two events around each such place measure it,
// and are read when the step is done. The running time of collectives would mislead: on a rank that is ahead, each one
// in the background runs until the other ranks join it, so 2 % of difference would look like 20 %. Main thread only.
#pragma once
#include <memory>
#include <vector>

#include "llmc/comm/operation_log.h"
#include "llmc/device/owned.h"

namespace llmc {

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

    // Around a place in a stream that waits for other ranks. Such places may be nested.
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
