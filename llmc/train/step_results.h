// Results of optimizer steps, read on the host without stopping the device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/device/runtime.h"
#include "llmc/kernels/step_state.h"

namespace llmc {

// Result of a step that --verify-every checked (llmc/train/verification.h).
struct VerifiedStep {
    double ms = 0;           // time that the verification took
    std::string difference;  // "rank 1 on node7 (...): output of h.3 had checksum ..."; "" if all bits agree
};

struct StepResult {
    int64_t step;       // as given to submit()
    double loss;        // mean over the step's targets
    double loss_limit;  // a loss above this is a spike
    StepState state;    // after the step
    double loss_scale;  // for the next step
    double ms;          // device time, counted from the end of the previous step if nothing ran in between
    std::optional<VerifiedStep> verified = {};
};

// Copies each step's loss and state to the host as soon as the device has them. The training loop submits step k + 1
// before it takes the result of step k, so the device never waits for the host.
class StepResults {
public:
    StepResults();
    ~StepResults();
    StepResults(const StepResults&) = delete;
    StepResults& operator=(const StepResults&) = delete;

    // Call before a step's first work. `continues`: nothing but the previous step ran before it.
    void begin(bool continues, stream_t stream);
    // Call after its last work. At most two results may be waiting.
    void submit(int64_t step, const StepState* state, const int* loss_count, const float* loss_scale, stream_t stream);
    // Returns the oldest result not taken yet, if more than `leave` are waiting. Waits for the device.
    std::optional<StepResult> take(int leave);

private:
    struct Slot {
        struct Values {
            StepState state;
            float loss_scale;
            int loss_count;
        };
        Values* values = nullptr;  // pinned
        event_t begin = nullptr, end = nullptr;
        int64_t step = 0;
        bool continues = false;
    };
    Slot slots_[3];
    int64_t submitted_ = 0, taken_ = 0;
};

}  // namespace llmc
