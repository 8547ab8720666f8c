// The gradients, distributed over the ranks as ShardLayout says. The model works on them unit by unit:
//   acquire(unit)  makes the stream wait until the unit's gradient buffer is free
//   gradient(...)  returns a pointer into it
//   reduce(unit)   sends the unit's gradient of this micro-step, which is complete on this rank. The pointer is now
//                  invalid.
// Where the model writes, and what reduce() does with several ranks:
//
//   stage   gradient(...) points into         reduce()
//     0     the step's sums of all units      in the last micro-step: reduce-scatter, then all-gather
//     1     the step's sums of all units      in the last micro-step: reduce-scatter
//    2, 3   one of four buffers               in every micro-step: reduce-scatter, added to this rank's slice of the
//                                             step's sums
//
// With ReduceOrder::rank, and with sums in BF16, stages 0 and 1 work like 2 and 3; stage 0 gathers after the last
// micro-step. Gradients travel on their own stream, behind the backward pass. On one rank, with sums in FP32, the calls
// cost nothing. It is an error in every stage to ask for a gradient before acquire() or after reduce(), and to acquire
// two units that share a buffer.
//
// With ReduceOrder::rank, every stage sums the gradients of every micro-step: micro-step by micro-step, and within a
// micro-step rank by rank. The loader distributes micro-batches in the same order. So the sums of a step, and the whole
// run, have the same bits on any number of ranks and in any stage, as long as micro-batches have the same number of
// rows. (Groups of --shard-within sum by themselves first.)
//
// The model writes FP32. With --gradients bf16 it writes a micro-step's gradient to one of four buffers for a unit, and
// the sums over micro-steps are BF16 (add_gradients()). In ReduceOrder::rank, unless gradients travel in a narrower
// format, each micro-batch is added by itself and the sum rounded, so that a run has the same bits on any number of
// ranks. Otherwise a micro-step's gradient is first summed over the ranks in FP32.
//
// With Wire::fp8, a rank keeps what its casts lost (Feedback): a BF16 residual for each element of the table in every
// stage, because it sends its whole gradient. Residuals are part of a run's state. A skipped step discards them. If
// every micro-step is sent, it adds to the previous one's residuals. Between groups, gradients travel in BF16 without
// residuals.
#pragma once
#include <functional>

#include "llmc/device/owned.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

class Gradients {
public:
    explicit Gradients(const ShardLayout& layout);

    size_t bytes() const { return arena_.bytes() + residual_arena_.bytes(); }
    void allocate(stream_t stream);  // gradients start at 0
    // Memory that holds nothing between two steps. Call clear() after other use: padding must be 0 in every step.
    Arena& memory() { return arena_; }
    void clear(stream_t stream);

    const ShardLayout& layout() const { return layout_; }

    // Call before a step with sums in BF16: a function of the run's seed and of the step.
    void begin_step(uint64_t rounding_key) { rounding_key_ = rounding_key; }
    // Call before each micro-step. `first`, `last`: its place in the step.
    void begin_micro_step(bool first, bool last) {
        micro_step_ = first ? 0 : micro_step_ + 1;
        first_ = first;
        last_ = last;
    }
    void acquire(size_t unit, stream_t stream);
    float* gradient(size_t unit, size_t tensor);
    float* gradient(const ParameterTable::Place& place) { return gradient(place.unit, place.tensor); }
    void reduce(size_t unit, stream_t stream);
    // reduce() first calls the observer with this rank's own gradient of the unit. An empty observer ends that.
    using Observer = std::function<void(size_t unit, const float* gradient)>;
    void observe(const Observer& observer) { observer_ = observer; }
    // Makes the stream wait until all gradients are summed.
    void finish_reduce(stream_t stream) {
        if (reduced_) comm_.wait_for_peers(stream, reduced_);
    }

    // For Wire::fp8 (see Feedback): the loss scale, and whether the previous step was skipped. Both are on the device.
    void feed_back(const float* loss_scale, const int32_t* skips) {
        loss_scale_ = loss_scale;
        skips_ = skips;
    }
    // With `false`, reduce() leaves residuals unchanged, for a micro-step that will be repeated.
    void keep_residuals(bool keep) { keep_residuals_ = keep; }
    bf16* residuals() const { return residuals_; }  // nullptr without Wire::fp8
    size_t residual_count() const {
        const bool casts = layout_.sharding().wire == Wire::fp8 && layout_.group_size() > 1;
        return casts ? layout_.table().count() : 0;
    }

    // The sums of the part of a unit that this rank updates (ShardLayout::slice()), and of its share
    // (ShardLayout::share()), for the norm. Shares are the same in every stage, so the norm has the same bits.
    StateArray slice(size_t unit) const { return sums(unit, layout_.slice(unit)); }
    StateArray share(size_t unit) const { return sums(unit, layout_.share(unit)); }

    // The stream on which gradients travel (nullptr on one rank), and the communicators within this rank's group and
    // between groups.
    stream_t reduce_stream() const { return reduce_stream_; }
    const Comm& comm() const { return comm_; }
    const Comm& groups_comm() const { return groups_comm_; }

    // A gradient on the host, for tests and tools. A collective that synchronises.
    std::vector<float> get_gradient(size_t unit, size_t tensor, stream_t stream) const;

private:
    struct Slot {  // used if the model does not accumulate in place
        float* memory = nullptr;
        OwnedEvent reduced;
    };

    size_t kept() const { return layout_.accumulates() ? layout_.table().count() : layout_.slice_total(); }
    // The memory to which the model writes a unit's gradient.
    float* whole(size_t unit) const {
        if (!layout_.accumulates()) return slots_[layout_.slot_of(unit)].memory;
        return kept_.as<float>() + layout_.table().unit(unit).begin;
    }
    Feedback feedback(size_t unit) const;
    // The sums of a part of a unit that lies in this rank's slice.
    StateArray sums(size_t unit, const ShardLayout::Part& part) const {
        if (layout_.accumulates()) return whole(unit) + part.begin;
        return kept_.from(layout_.slice_index(unit) + part.begin - layout_.slice(unit).begin);
    }
    bool adds_by_rank() const {
        return layout_.comm().reduce_order() == ReduceOrder::rank && layout_.sharding().wire == Wire::fp32;
    }
    void add_rounded(size_t unit);
    void sum_over_groups(size_t unit);

    const ShardLayout layout_;
    // Within this rank's group, and between the ranks that have the same slice in each group.
    Comm comm_ = Comm::self(), groups_comm_ = Comm::self();
    Arena arena_{MemoryKind::gradients}, residual_arena_{MemoryKind::gradients};
    StateArray kept_;  // all units if the model accumulates in place; otherwise sums of this rank's slices
    std::vector<Slot> slots_;
    std::vector<size_t> acquired_;  // by slot, in every stage: the unit that is acquired and not reduced
    char* workspace_ = nullptr;     // workspace of reduce_scatter
    float* summed_ = nullptr;       // a micro-step's sum over the ranks, if sums are BF16
    uint64_t rounding_key_ = 0;
    int64_t micro_step_ = 0;
    bf16* residuals_ = nullptr;
    const float* loss_scale_ = nullptr;
    const int32_t* skips_ = nullptr;
    bool keep_residuals_ = true;
    bool first_ = true, last_ = true;
    Observer observer_;
    OwnedStream reduce_stream_;
    std::vector<std::string> names_;  // for profiles, by unit
    OwnedEvent computed_, reduced_;
};

}  // namespace llmc
