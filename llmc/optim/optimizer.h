// The optimizer step over all parameters: global norm, clipping, learning rate schedule, update, loss scale. Everything
// is decided on the device (StepState); nothing here waits for it.
#pragma once
#include <cstdint>
#include <optional>

#include "llmc/optim/config.h"
#include "llmc/optim/muon.h"
#include "llmc/optim/prepare_step.h"
#include "llmc/optim/state.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/gradients.h"
#include "llmc/shard/weights.h"

namespace llmc {

template <class Real>
class Optimizer {
public:
    // Only Muon needs `matmul`.
    Optimizer(const OptimizerSetup& setup, Weights<Real>& weights, Gradients& gradients, Matmul* matmul = nullptr);

    size_t workspace_bytes() const { return arena_.bytes() + ring_.bytes() + (muon_ ? muon_->workspace_bytes() : 0); }
    size_t moment_bytes() const { return moments_.bytes(); }
    size_t second_moment_bytes() const { return muon_ ? muon_->state_bytes() : 0; }  // NorMuon's, always on the device
    const StateRing& ring() const { return ring_; }
    StateRing& ring() { return ring_; }
    const Muon<Real>* muon() const { return muon_ ? &*muon_ : nullptr; }  // nullptr if unused
    void allocate(stream_t stream);                                       // moments start at 0

    // One step. Gradients are loss_scale() times the true ones. The update is skipped if the loss sum or the gradient
    // norm is not finite, if *bad_flag is set (nullptr without FP8), or at a spike with `skip_spikes`. Then the loss
    // scale is updated.
    void update(const double* loss_sum, const int* bad_flag, stream_t stream);
    // Starts the statistics of spikes again: sums of losses over another number of targets say nothing about them.
    void forget_spikes(stream_t stream) { reset_spikes(spikes_, stream); }

    // With --average, adds the weights after a step to the average.
    void average(stream_t stream);
    bool averages() const { return setup_.optimizer.averages(); }

    // Multiplies the schedule's learning rate by `factor` from the next update on.
    void scale_rate(double factor) { setup_.schedule.factor = factor; }
    // The schedule decays from step `from` on, and ends with step `until`.
    void decay(int64_t from, int64_t until) {
        setup_.schedule.decay_from = from;
        setup_.schedule.steps = until;
    }

    // Device pointers.
    const StepState* state() const { return state_; }
    const float* loss_scale() const { return &loss_scale_->scale; }
    const float* loss_scale_change() const { return &loss_scale_->change; }  // last update's factor: 2, 1 or 1/2

    // The optimizer's moments, and "average" like one.
    const OptimizerMoments& moments() const { return moments_; }

    // For checkpoints; both wait for the device. restore() takes over the saved loss scale if it is dynamic in both
    // runs; otherwise the configured loss scale stays.
    OptimizerState read_state(stream_t stream) const;
    void restore(const OptimizerState& state, stream_t stream);

private:
    template <class Visit>
    void for_each_tensor(Visit&& visit) const;
    void sum_squares(stream_t stream);
    // Gradient clipping other than by the norm of all gradients (--clip-kind). It clips the sums that this rank
    // updates, in place, so later work sees clipped gradients. A tensor's norm covers the whole tensor, over all ranks
    // that hold parts of it: squares are added in double, and the norm is rounded to FP32.
    void clip(stream_t stream);
    void clip_tensors(stream_t stream);
    void add_muon_moments();
    void update_part(size_t unit, Fp8State* fp8, ShardLayout::Part part, size_t decayed, const StepState* state,
                     stream_t stream);
    void update_unit(size_t unit, stream_t stream);
    void update_rest(size_t unit, stream_t stream);

    OptimizerSetup setup_;
    Weights<Real>& weights_;
    Gradients& gradients_;
    OptimizerMoments moments_;
    StateRing ring_;
    size_t m_ = 0, v_ = 0, muon_m_ = 0, average_ = 0;  // indices into moments_
    int64_t averaged_ = 0;
    std::optional<Muon<Real>> muon_;
    StepState* group_states_ = nullptr;  // (kRateGroups): for the parameters that Muon leaves to AdamW
    Arena arena_{MemoryKind::workspace};
    double* partials_ = nullptr;  // sums of squares of gradients: one per block, unit after unit, or of one tensor
    double* squares_ = nullptr;   // one per tensor, to clip them
    float* factors_ = nullptr;    // one per tensor
    char* workspace_ = nullptr;   // for the all-reduce of partials_ or squares_
    StepState* state_ = nullptr;
    LossScaleState* loss_scale_ = nullptr;
    SpikeState* spikes_ = nullptr;
    size_t partial_count_ = 0, tensors_ = 0;
};

}  // namespace llmc
