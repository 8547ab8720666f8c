// One optimizer step over all parameters, and its results read without stopping the device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/optim/clipping.h"
#include "llmc/optim/config.h"
#include "llmc/optim/loss_scale.h"
#include "llmc/optim/moments.h"
#include "llmc/optim/muon.h"
#include "llmc/optim/optimizer.h"
#include "llmc/shard/gradients.h"
#include "llmc/shard/weights.h"

namespace llmc {

// Global norm, clipping, schedule and the optimizer's update over all units. Everything is decided on the device
// (StepState): nothing here waits for it.
struct OptimizerState;

template <class Real>
class Optimizer {
public:
    Optimizer(Weights<Real>& weights, Gradients& gradients, const ScheduleConfig& schedule, const AdamWConfig& adamw,
              double clip, const LossScaleConfig& loss_scale = {}, bool skip_spikes = false,
              const OptimizerConfig& config = {}, Matmul* matmul = nullptr);  // which Muon needs

    size_t workspace_bytes() const {
        return arena_.bytes() + clipping_.bytes() + (muon_ ? muon_->workspace_bytes() : 0);
    }
    size_t moment_bytes() const { return moments_.bytes() + (muon_ ? muon_->state_bytes() : 0); }
    const Muon<Real>* muon() const { return muon_ ? &*muon_ : nullptr; }  // nullptr: another optimizer
    void allocate(stream_t stream);                                       // moments start at 0

    // Uses the gradients, which are loss_scale() times the true ones. A non-finite loss sum or gradient
    // norm, or *bad_flag (nullptr: none), skips the update, and so does a spike if asked; the loss scale follows.
    void update(const double* loss_sum, const int* bad_flag, stream_t stream);

    // From the next update on, of the schedule's rates.
    void scale_rate(double factor) { schedule_.factor = factor; }

    // On the device.
    const StepState* state() const { return state_; }
    const float* loss_scale() const { return &loss_scale_->scale; }
    const float* loss_scale_change() const { return &loss_scale_->change; }  // by the last update: 2, 1 or 1/2

    // What is kept of the parameters: all of it, one array after the other, and of a tensor, see
    // OptimizerMoments::of().
    std::vector<OptimizerMoments::Moment> moments() const { return moments_.all(); }
    std::vector<OptimizerMoments::Moment> moments_of(size_t unit, const ParameterTensor& tensor,
                                                     size_t position) const {
        return moments_.of(unit, tensor, position);
    }

    // For checkpoints; both wait for the device. The loss scale goes on where both runs have a
    // dynamic one; otherwise it is as configured.
    OptimizerState read_state(stream_t stream) const;
    void restore(const OptimizerState& state, stream_t stream);

private:
    void sum_squares(stream_t stream);
    void add_muon_moments();
    void update_adamw(size_t unit, Fp8State* fp8, ShardLayout::Part part, size_t decayed, const StepState* state,
                      stream_t stream);
    void update_unit(size_t unit, stream_t stream);
    void update_rest(size_t unit, stream_t stream);

    Weights<Real>& weights_;
    Gradients& gradients_;
    ScheduleConfig schedule_;
    const AdamWConfig adamw_;
    const double clip_;  // of the norm of all; 0: none
    Clipping clipping_;
    const LossScaleConfig loss_scale_config_;
    const bool skip_spikes_;
    const OptimizerConfig config_;
    OptimizerMoments moments_;
    size_t m_ = 0, v_ = 0, muon_m_ = 0;  // indices of moments
    std::optional<Muon<Real>> muon_;
    StepState* group_states_ = nullptr;  // (kRateGroups), of what Muon leaves to AdamW
    Arena arena_{MemoryKind::workspace};
    double* partials_ = nullptr;  // sums of squares, every unit's blocks after each other
    char* workspace_ = nullptr;   // of their sum over the ranks
    StepState* state_ = nullptr;
    LossScaleState* loss_scale_ = nullptr;
    SpikeState* spikes_ = nullptr;
    size_t partial_count_ = 0;
};

// What the optimizer knows of the steps before, beside its moments; the same on every rank.
struct OptimizerState {
    int64_t applied = 0, skipped = 0;  // see StepState
    int32_t consecutive_skips = 0;
    float loss_scale = 1;
    int32_t clean_steps = 0;
    SpikeState spikes{};
    bool dynamic = false;  // the loss scale
};

// Of a step whose bits were compared (llmc/train/verification.h).
struct VerifiedStep {
    double ms = 0;           // that it took
    std::string difference;  // "rank 1 on node7 (...): output of h.3 had checksum ..."; "": none
};

struct StepResult {
    int64_t step;       // as given to submit()
    double loss;        // mean over the step's targets
    double loss_limit;  // above which it would have been, or was, a spike
    StepState state;    // after the step
    double loss_scale;  // of the step after it
    double ms;          // on the device, from the end of the step before where that was the work before it
    std::optional<VerifiedStep> verified = {};
};

// Copies each step's loss and state to the host when the device gets there. The loop submits step k + 1 before it takes
// the result of step k, so the device never waits for the host.
class StepResults {
public:
    StepResults();
    ~StepResults();
    StepResults(const StepResults&) = delete;
    StepResults& operator=(const StepResults&) = delete;

    // Before a step's first work: `continues` says that nothing but the previous step ran before it.
    void begin(bool continues, stream_t stream);
    // After its last work. At most two results may be waiting.
    void submit(int64_t step, const StepState* state, const int* loss_count, const float* loss_scale, stream_t stream);
    // The oldest result not taken yet, if more than `leave` are waiting. Waits for the device.
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
