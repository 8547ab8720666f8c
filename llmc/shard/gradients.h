// The FP32 gradients in memory, over the ranks as ShardLayout says. The model hands them in unit by unit:
//   acquire(unit)  the unit's gradient buffer is free once the stream gets here
//   gradient(...)  a pointer into it, valid until
//   reduce(unit)   the unit's gradient of this micro-step is complete on this rank. Asking for a gradient before
//                  acquire() or after reduce(), or acquiring two units that share a buffer in stages 2 and 3, is an
//                  error in every stage
// On one rank all three cost nothing. With several, gradients travel on a stream of their own, behind the model.
//
// With ReduceOrder::rank every stage sums every micro-step's gradients as stages 2 and 3 do, into what stages 0 and 1
// keep: micro-step by micro-step, and within one rank by rank. The loader deals out micro-batches in the same order, so
// the sums of a step, and with them the whole run, have the same bits on any number of ranks, one included, and in any
// stage, as long as each micro-batch has as many rows. (Groups of --shard-within sum on their own first.)
//
// With Wire::fp8 a rank keeps what its casts have lost (Feedback): residuals in BF16, one for each element of the table
// whatever the stage, because it sends all of its gradient. They are part of a run's state. A skipped step leaves none;
// a micro-step adds to those of the one before where each is sent. Between groups gradients travel in BF16, for which
// nothing is kept.
#pragma once
#include <functional>

#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

class Gradients {
public:
    explicit Gradients(const ShardLayout& layout);
    ~Gradients();
    Gradients(const Gradients&) = delete;
    Gradients& operator=(const Gradients&) = delete;

    size_t bytes() const { return arena_.bytes(); }
    void allocate(stream_t stream);  // they start at 0

    const ShardLayout& layout() const { return layout_; }

    // Before each micro-step: whether it is the first or the last of its step.
    void begin_micro_step(bool first, bool last) { first_ = first, last_ = last; }
    void acquire(size_t unit, stream_t stream);
    float* gradient(size_t unit, size_t tensor);
    float* gradient(const ParameterTable::Place& place) { return gradient(place.unit, place.tensor); }
    void reduce(size_t unit, stream_t stream);
    // Until it is set again, reduce() first shows what this rank has computed of the unit. Empty: nobody looks.
    using Observer = std::function<void(size_t unit, const float* gradient)>;
    void observe(const Observer& observer) { observer_ = observer; }
    // The stream waits until all gradients are summed.
    void finish_reduce(stream_t stream);

    // Of Wire::fp8 (see Feedback): what the model's gradients are multiples of, and whether the step before was
    // skipped; both on the device.
    void feed_back(const float* loss_scale, const int32_t* skips) { loss_scale_ = loss_scale, skips_ = skips; }
    // Whether what is reduced changes residuals: not where it is only tried.
    void keep_residuals(bool keep) { keep_residuals_ = keep; }
    bf16* residuals() const { return residuals_; }  // nullptr: none
    size_t residual_count() const;

    // The sums of what this rank updates of a unit, ShardLayout::slice(); and of its ShardLayout::share(), for the
    // norm: the same cut in every stage, so that all give one result.
    const float* slice(size_t unit) const { return sums(unit, layout_.slice(unit)); }
    float* slice(size_t unit) { return sums(unit, layout_.slice(unit)); }
    const float* share(size_t unit) const { return sums(unit, layout_.share(unit)); }

    // The stream that gradients travel on, null on one rank, and what went to other ranks, by operation: within this
    // rank's group, and between groups.
    stream_t reduce_stream() const { return reduce_stream_; }
    const Comm& comm() const { return comm_; }
    const Comm& groups_comm() const { return groups_comm_; }
    const Traffic& traffic() const { return comm_.traffic(); }
    const Traffic& group_traffic() const { return groups_comm_.traffic(); }

    // On the host, for tests and tools: a collective that synchronises.
    std::vector<float> get_gradient(size_t unit, size_t tensor, stream_t stream) const;

private:
    struct Slot {  // where the model does not accumulate
        float* memory = nullptr;
        event_t reduced = nullptr;
    };

    void plan();
    size_t kept() const { return layout_.accumulates() ? layout_.table().count() : layout_.slice_total(); }
    float* whole(size_t unit) const;
    Feedback feedback(size_t unit) const;
    float* sums(size_t unit, const ShardLayout::Part& part) const;
    void sum_over_groups(size_t unit);

    const ShardLayout layout_;
    // This rank's group, and the ranks that have the same slice in every group.
    Comm comm_ = Comm::self(), groups_comm_ = Comm::self();
    Arena arena_{MemoryKind::gradients};
    float* kept_ = nullptr;  // all units where the model accumulates; otherwise the sums of this rank's slices
    std::vector<Slot> slots_;
    std::vector<size_t> acquired_;  // and not reduced, by slot, in every stage
    char* workspace_ = nullptr;     // of reduce_scatter
    bf16* residuals_ = nullptr;
    const float* loss_scale_ = nullptr;
    const int32_t* skips_ = nullptr;
    bool keep_residuals_ = true;
    bool first_ = true, last_ = true;
    Observer observer_;
    stream_t reduce_stream_{};
    std::vector<std::string> names_;  // for profiles, by unit
    event_t computed_ = nullptr, reduced_ = nullptr;
};

}  // namespace llmc
