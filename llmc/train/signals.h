// Norms by tensor, for --signals-every: of the gradient, of the weights, and of what an optimizer step added to them.
// They tell which tensor a loss spike began in, and whether rates suit: updates of about 1e-3 of the weights do. The
// weights that make queries and keys also have attention's largest logit. The norm of each rank's first micro-batch
// gives the gradient noise scale, which tells whether batches suit: in every ZeRO stage, that gradient is on its own.
//
// Nothing waits: sums are taken on the training stream and read with the step's record. Other steps cost nothing. The
// memory is 4 bytes per parameter, for the weights before the update, divided by the ranks that share the state.
#pragma once
#include <cstdint>

#include "llmc/device/owned.h"
#include "llmc/shard/arena.h"
#include "llmc/train/step_results.h"

namespace llmc {

template <class Real>
class Trainer;

template <class Real>
class Signals {
public:
    explicit Signals(Trainer<Real>& trainer);

    size_t bytes() const { return arena_.bytes(); }
    void allocate();

    bool is_due(int64_t step) const { return step % trainer_.config().signals_every == 0; }
    // Around the first of a step's micro-steps. They do nothing in a verified step, whose observer sees the gradients.
    void before_micro_step(int64_t step, int micro_steps, bool verified);
    void after_micro_step() { trainer_.gradients().observe({}); }
    // Around the optimizer of `step`, when its gradients are complete. They do nothing if no signals are due.
    void before_optimizer(int64_t step);
    void after_optimizer(int64_t step);
    // Adds the norms of the step over all ranks, if it has some. A collective; call when the step's work is done.
    void take(StepRecord& record);

private:
    enum Norm { gradient, weight, update, kNorms };
    // This rank's part of a tensor. The parts of all ranks together are the tensor, in every stage.
    struct Share {
        size_t tensor, unit;  // numbers
        size_t begin, count;  // elements of the unit
        StateArray weights;   // the masters
        float* before;        // their place in weights_
    };
    template <class Visit>
    void for_each_share(const Visit& visit) const;
    // Adds the squares of the share of a tensor.
    void add_squares(Norm norm, size_t tensor, const StateArray& values, size_t count);

    Trainer<Real>& trainer_;
    Arena arena_{MemoryKind::workspace};
    size_t tensors_ = 0;
    size_t elements_ = 0;          // all elements of a rank's shares
    float* weights_ = nullptr;     // (elements): as they were before the update; then the update
    double* partials_ = nullptr;   // partial sums of one tensor's squares
    double* squares_ = nullptr;    // (kNorms, tensors); then (units): of the gradient of this rank's first micro-batch
    float* loss_scale_ = nullptr;  // the factor in this step's gradients
    struct Slot {
        Pinned<double> squares;  // as on the device
        Pinned<float> loss_scale;
        Pinned<float> max_logits;  // of Transformer::max_logits()
        int64_t step = 0;
        int64_t parts = 0;  // micro-batches of the step over all ranks; 0 if the first one was not measured
    };
    Slot slots_[2];  // for the step in flight and the one before it
    Slot& slot_of(int64_t step) { return slots_[step / trainer_.config().signals_every % 2]; }
    size_t squares() const { return kNorms * tensors_ + trainer_.table().units().size(); }
};

}  // namespace llmc
