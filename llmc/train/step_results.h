// Results of optimizer steps, read on the host without stopping the device.
#pragma once
#include <cstdint>
#include <optional>

#include "llmc/comm/peer_waits.h"
#include "llmc/device/owned.h"
#include "llmc/kernels/step_state.h"
#include "llmc/train/step_record.h"

namespace llmc {

// Copies each step's loss and state to the host as soon as the device has them. The training loop submits step k + 1
// before it takes the record of step k, so the device never waits for the host.
class StepResults {
public:
    explicit StepResults(PeerWaits& waits);

    // Call before a step's first work. `continues`: nothing but the previous step ran before it.
    void begin(bool continues, stream_t stream);
    // Call after a step's last work. At most two records may be waiting.
    void submit(int64_t step, const StepState* state, const int* loss_count, const float* loss_scale, stream_t stream);
    // The record of the last submitted step, to which the host adds what it knows before the record is taken.
    StepRecord& submitted() { return slots_[(submitted_ + 2) % 3].record; }
    // Returns the oldest record not taken yet, if more than `leave` are waiting. Waits for the device.
    std::optional<StepRecord> take(int leave);

private:
    struct Slot {
        struct Values {
            StepState state;
            float loss_scale;
            int loss_count;
        };
        Pinned<Values> values;
        OwnedEvent begin, end;
        bool continues = false;
        PeerWaits::Step waits;
        StepRecord record;  // what the host knows
    };
    PeerWaits& waits_;
    Slot slots_[3];
    int64_t submitted_ = 0, taken_ = 0;
};

}  // namespace llmc
