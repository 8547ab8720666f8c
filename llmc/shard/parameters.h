// The parameters in memory: FP32 master weights, FP32 gradients, and the working copy that the model's kernels read,
// all laid out by a ParameterTable and spread over the ranks as --zero says (ZeRO, arXiv 1910.02054; stage 3 is FSDP,
// arXiv 2304.11277):
//
//   stage   master, m, v   gradients                    working weights
//     0     everywhere     everywhere, summed           everywhere
//     1     a slice        everywhere, a slice summed   everywhere, gathered after every update
//     2     a slice        a slice, summed every        everywhere
//     3     a slice        micro-step                   a slice; a unit is gathered before each use
//
// The model asks for weights and hands in gradients unit by unit:
//   gather(unit)   the unit's working weights are complete on this rank once the stream gets here, and its gradient
//                  buffer is free
//   weight(...)    a pointer into them, valid until
//   release(unit)  the model needs them no more. Asking for a unit's weights before gather() or after release(), or
//                  gathering two units that share a buffer in stage 3, is an error in every stage
//   reduce(unit)   the unit's gradient of this micro-step is complete on this rank
// On one rank all four cost nothing. With several, weights travel on a stream of their own, one unit ahead of the
// model, and gradients on another, behind it.
//
// With ReduceOrder::rank every stage sums every micro-step's gradients as stages 2 and 3 do, into what stages 0 and 1
// keep: micro-step by micro-step, and within one rank by rank. The loader deals out micro-batches in the same order, so
// the sums of a step, and with them the whole run, have the same bits on any number of ranks, one included, and in any
// stage, as long as each micro-batch has as many rows. (Groups of --shard-within sum on their own first.)
//
// Hybrid sharding (--shard-within n; HSDP, arXiv 2304.11277 section 3.2.2): "all ranks" above are n neighbouring ones,
// and every such group has the same slices. Weights never leave the group; gradients do once a step, after the last
// micro-step, when the groups' sums are summed.
#pragma once
#include <functional>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/table.h"

namespace llmc {

struct Sharding {
    int stage = 0;           // --zero; a world of one rank has no other
    int within = 0;          // --shard-within: so many neighbouring ranks share one set of slices; 0: all ranks
    Wire wire = Wire::fp32;  // --reduce: what gradients travel as
    // By unit and tensor: what the model reads in FP8 alone, made from the master weights with one scale a tensor. It
    // travels as FP8. Empty: nothing.
    std::vector<std::vector<bool>> fp8;
};

template <class Real>  // the working copy's type: bf16, or float, where the master weights themselves may be used
class Parameters {
public:
    // `table` is laid out for comm.world() ranks.
    Parameters(const ParameterTable& table, const Comm& comm, const Sharding& sharding = {});
    ~Parameters();

    // Bytes each kind will need. allocate() takes them.
    size_t weight_bytes() const { return weights_.bytes(); }
    size_t gradient_bytes() const { return gradients_.bytes(); }
    size_t master_bytes() const { return masters_.bytes(); }
    void allocate(stream_t stream);  // gradients start at 0

    const ParameterTable& table() const { return table_; }
    const Comm& comm() const { return comm_; }
    int stage() const { return sharding_.stage; }
    // Whether the model adds up gradients over micro-steps in place; otherwise every micro-step writes its own.
    bool accumulates() const { return sharding_.stage < 2 && comm_.reduce_order() == ReduceOrder::any; }

    // Before each micro-step: whether it is the first or the last of its step.
    void begin_micro_step(bool first, bool last) { first_ = first, last_ = last; }
    void gather(size_t unit, stream_t stream);
    const Real* weight(size_t unit, size_t tensor) const;
    const Real* weight(const ParameterTable::Place& place) const { return weight(place.unit, place.tensor); }
    void release(size_t unit, stream_t stream);
    float* gradient(size_t unit, size_t tensor);
    float* gradient(const ParameterTable::Place& place) { return gradient(place.unit, place.tensor); }
    void reduce(size_t unit, stream_t stream);
    // The stream waits until all gradients are summed.
    void finish_reduce(stream_t stream);

    // This rank's slice of a unit, for the optimizer.
    struct Slice {
        float *master, *gradient;
        Real* working;  // nullptr when the master weights are the working copy
        size_t begin;   // in an array that holds this rank's slices of all units
        size_t count;   // elements
    };
    Slice slice(size_t unit);
    // Elements of this rank's slices of all units, padding included.
    size_t slice_total() const { return table_.count() / slices(); }
    // This rank's share of the summed gradient, for the norm: the same cut in every stage, so that all give one result.
    struct GradientShare {
        const float* values;
        size_t count;
    };
    GradientShare gradient_share(size_t unit) const;
    bool is_sliced() const { return sharding_.stage > 0; }
    // Whether a unit's weights stay whole on this rank after release().
    bool keeps_whole_weights() const { return sharding_.stage < 3; }
    // The slice in the ranges that the optimizer updates one after the other, from what keep_in_fp8() has said.
    struct Range {
        size_t begin, count, decay_count;  // in the slice
        Fp8State* fp8;                     // the optimizer measures these weights; nobody reads their working copy
    };
    const std::vector<Range>& ranges(size_t unit) const { return ranges_[unit]; }

    // The model reads this tensor in FP8 alone, made from the master weights: from now on the optimizer leaves its
    // working copy as it is, and raises state->amax_now to the new weights' largest magnitude. To be repeated at will.
    void keep_in_fp8(size_t unit, size_t tensor, Fp8State* state);
    // The model reads this tensor's working copy again, from the next publish() on. On every rank at the same step.
    void leave_fp8(size_t unit, size_t tensor, stream_t stream);
    // Whether a tensor in FP8 has changed by other hands than the optimizer's, so that it must be measured.
    bool to_be_measured() const { return to_be_measured_; }
    void set_measured() { to_be_measured_ = false; }
    // The whole tensor; not with slices.
    const float* master(size_t unit, size_t tensor) const;

    // With slices. measure: every FP8 tensor's part raises its state->amax_now. publish: after every change of the
    // master weights (and of their scales), casts the slices to what travels, and sends it unless that is gather()'s;
    // `pass`, write or write_counted, is how to FP8.
    void measure_slices(stream_t stream);
    void publish(stream_t stream, QuantizePass pass = QuantizePass::write);
    // The gathered FP8 bytes of a tensor, row-major; valid like weight().
    const e4m3* fp8_weight(size_t unit, size_t tensor) const;

    // The streams that weights and gradients travel on; null on one rank.
    stream_t gather_stream() const { return gather_stream_; }
    stream_t reduce_stream() const { return reduce_stream_; }
    // What went to other ranks, by operation.
    const Traffic& gather_traffic() const { return gather_comm_.traffic(); }
    const Traffic& reduce_traffic() const { return reduce_comm_.traffic(); }
    const Traffic& group_traffic() const { return groups_comm_.traffic(); }

    // Host access for initialisation, import and export; synchronises. set_tensor() wants the same values on every
    // rank; the two others are collectives.
    void set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream);
    std::vector<float> get_tensor(size_t unit, size_t tensor, stream_t stream) const;
    std::vector<float> get_gradient(size_t unit, size_t tensor, stream_t stream) const;

private:
    // Where a unit's working weights are whole.
    struct Whole {
        Real* working = nullptr;
        e4m3* fp8 = nullptr;
    };
    struct WeightSlot {  // stage 3
        Whole memory;
        size_t unit = kNoUnit;
        event_t ready = nullptr, free = nullptr;
    };
    struct GradientSlot {  // where the model does not accumulate
        float* memory = nullptr;
        event_t reduced = nullptr;
    };
    struct Piece {  // of a unit with FP8 tensors: what is not FP8 and on one rank
        int rank;
        size_t begin, count;  // in the unit
    };
    static constexpr size_t kNoUnit = ~size_t{0};
    // Slots for whole units where ranks keep slices: the first unit and the last have one each, because the model comes
    // back to them (the embedding is also the head), and the blocks between them take turns in two.
    static constexpr size_t kSlots = 4;

    void plan();
    void check_resident(size_t unit, size_t tensor) const;
    std::string name_of(size_t unit) const { return unit == kNoUnit ? "nothing" : table_.unit(unit).name; }
    size_t slot_of(size_t unit) const;
    size_t slot_count(size_t slot) const;
    bool has_fp8(size_t unit) const;
    size_t slice_count(size_t unit) const;
    size_t slice_begin(size_t unit) const;  // in the unit
    size_t shard_index(size_t unit) const;  // of the slice, in arrays that hold this rank's slices of all units
    size_t slices() const { return is_sliced() ? static_cast<size_t>(group_size_) : 1; }  // of a unit
    size_t groups() const { return static_cast<size_t>(comm_.world() / group_size_); }
    size_t group_index() const { return static_cast<size_t>(comm_.rank() / group_size_); }
    size_t place_in_group() const { return static_cast<size_t>(comm_.rank() % group_size_); }
    size_t reduced_count(size_t unit) const;
    float* reduced_slice(size_t unit) const;
    void sum_over_groups(size_t unit);
    float* master_slice(size_t unit) const { return master_ + shard_index(unit); }
    Whole whole(size_t unit) const;
    Real* working_slice(size_t unit) const;
    e4m3* fp8_slice(size_t unit) const;
    float* whole_gradient(size_t unit) const;
    bool master_is_working() const;
    void bring(size_t unit);
    void send(size_t unit, const Whole& to);
    void cut_into_ranges(size_t unit);
    void cut_into_pieces(size_t unit);
    std::vector<float> download_slices(const float* slice, size_t unit, size_t tensor, stream_t stream) const;

    const ParameterTable& table_;
    const Comm comm_;
    Sharding sharding_;
    int group_size_ = 1;  // ranks that share one set of slices; where everything is everywhere, all ranks
    // Two of this rank's group, and one of the ranks that have the same slice in every group.
    Comm gather_comm_ = Comm::self(), reduce_comm_ = Comm::self(), groups_comm_ = Comm::self();
    Arena weights_{MemoryKind::weights}, gradients_{MemoryKind::gradients}, masters_{MemoryKind::optimizer};
    float *master_ = nullptr, *gradient_ = nullptr;
    Real* working_ = nullptr;  // all units, or this rank's slices of them in stage 3
    e4m3* fp8_ = nullptr;      // the same, of units with FP8 tensors; with slices alone
    std::vector<WeightSlot> weight_slots_;
    size_t gathered_[kSlots] = {kNoUnit, kNoUnit, kNoUnit, kNoUnit};  // and not released, by slot, in every stage
    std::vector<GradientSlot> gradient_slots_;
    char* workspace_ = nullptr;  // of reduce_scatter
    size_t last_gathered_ = 0;   // which way the model goes
    bool first_ = true, last_ = true;
    stream_t gather_stream_{}, reduce_stream_{};
    std::vector<std::string> gather_names_, reduce_names_;  // for profiles, by unit
    event_t computed_ = nullptr, reduced_ = nullptr;
    std::vector<event_t> published_;  // stages 1 and 2, by unit

    std::vector<std::vector<Fp8State*>> fp8_states_;  // by unit and tensor; nullptr: not in FP8
    std::vector<std::vector<Range>> ranges_;          // by unit
    std::vector<std::vector<Piece>> pieces_;          // by unit
    bool to_be_measured_ = true, to_be_cast_ = true;
};

}  // namespace llmc
