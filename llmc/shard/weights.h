// The weights: FP32 or BF16 masters, which the optimizer updates, and the working copy that the model's kernels read,
// distributed over the ranks as ShardLayout says. The model asks for them unit by unit:
//   gather(unit)   makes the stream wait until the unit's working weights are complete on this rank
//   weight(...)    returns a pointer into them
//   release(unit)  says that the model no longer needs them. The pointer is now invalid.
// After the optimizer, publish() sends what it changed. What the calls do with several ranks:
//
//   stage   publish()                          gather(unit)                               release(unit)
//     0     nothing                            nothing                                    nothing
//    1, 2   casts this rank's slices, and      waits until the unit has arrived           nothing
//           sends all units one by one
//     3     casts this rank's slices           fetches the unit into its buffer unless    says that its buffer may be
//                                              it is there, and the next one ahead        overwritten
//
// Weights travel on their own stream. On one rank the calls cost nothing. It is an error in every stage to ask for a
// unit's weights before gather() or after release(), and to gather two units that share a buffer in stage 3.
#pragma once
#include <optional>

#include "llmc/device/owned.h"
#include "llmc/device/trace.h"
#include "llmc/kernels/state_array.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

struct InitialValues;

// Real is the working copy's type. Masters of that type that are not sliced are the working copy. Then the table must
// give every tensor one (ParameterTensor::copied).
template <class Real>
class Weights {
public:
    explicit Weights(const ShardLayout& layout, StateFormat masters = StateFormat::fp32)
        : Weights(layout, masters, nullptr, nullptr) {}
    // More working copies of `owner`'s masters, in memory that is free while they are used: from publish_again() to
    // wait_for_gathers(). The layout has the owner's slices. Everything else is the owner's, and must outlive them.
    Weights(const ShardLayout& layout, const Weights& owner, Arena& memory)
        : Weights(layout, owner.master_.format, &owner, &memory) {}

    // Bytes of the working copy with FP8 codes, and of the masters.
    size_t working_bytes() const { return working_arena_.bytes(); }
    size_t master_bytes() const { return master_arena_.bytes(); }
    void allocate(stream_t stream);

    const ShardLayout& layout() const { return layout_; }
    const ParameterTable& table() const { return layout_.table(); }

    void gather(size_t unit, stream_t stream);
    const Real* weight(size_t unit, size_t tensor) const;
    const Real* weight(const ParameterTable::Place& place) const { return weight(place.unit, place.tensor); }
    // The gathered FP8 codes of a tensor, row-major; valid like weight().
    const e4m3* fp8_weight(size_t unit, size_t tensor) const {
        check_resident(unit, tensor);
        return whole(unit).fp8 + table().unit(unit).tensors[tensor].offset;
    }
    void release(size_t unit, stream_t stream);

    // This rank's slice of a unit from its element `at` on, for the optimizer.
    struct Slice {
        StateArray master;
        Real* working;  // nullptr if the masters are the working copy, or if `at` lies in a tensor in FP8
    };
    Slice slice(size_t unit, size_t at = 0) const;
    // The slice cut into the ranges that the optimizer updates one after the other.
    using Range = UnitCuts::Range;
    const std::vector<Range>& ranges(size_t unit) const { return cuts_.ranges(unit); }

    // The model will only read FP8 codes of this tensor, made from the masters. From now on the optimizer leaves its
    // working copy alone, and raises state->amax_now to the largest magnitude of the new weights. May be repeated.
    void keep_in_fp8(size_t unit, size_t tensor, Fp8State* state) {
        if (cuts_.state(unit, tensor) == state) return;
        cuts_.keep_in_fp8(unit, tensor, state);
        to_be_measured_ = true;
    }
    Fp8State* fp8_state(size_t unit, size_t tensor) const { return cuts_.state(unit, tensor); }  // nullptr: not in FP8
    // The model reads this tensor's working copy again, from the next publish() on. Call on every rank in the same
    // step. Throws if the tensor was planned without a working copy (ParameterTensor::copied).
    void leave_fp8(size_t unit, size_t tensor, stream_t stream);
    // True if a tensor in FP8 was changed by anything but the optimizer, so that it must be measured.
    bool to_be_measured() const { return to_be_measured_; }
    void set_measured() { to_be_measured_ = false; }
    // The masters of a whole tensor, if they are not sliced.
    StateArray master(size_t unit, size_t tensor) const {
        if (layout_.is_sliced()) throw Error(ExitCode::failure, "no rank has the whole master weights");
        return master_.from(table().unit(unit).begin + table().unit(unit).tensors[tensor].offset);
    }

    // Call after every change of the master weights, and after writing the codes of this rank's slices. Casts the
    // slices to the working copy, and sends both unless gather() does (stage 3). Does nothing if weights are not
    // sliced.
    void publish(stream_t stream);
    // This rank's slice of a unit's FP8 codes. Only for sliced weights in a unit that has some.
    e4m3* codes_slice(size_t unit) const {
        return layout_.keeps_whole_weights() ? whole(unit).fp8 + layout_.slice(unit).begin
                                             : fp8_ + layout_.slice_index(unit);
    }

    // The working copies by tensor, and the FP8 codes that travel: whole or this rank's slices. publish_again() makes
    // the working copies again from the masters. Their bits stay the same unless memory was corrupted.
    std::vector<NamedMemory> working_copies() const;
    // After the codes were written again.
    void publish_again(stream_t stream) {
        cast_slices(stream);
        to_be_cast_ = false;
        publish(stream);
    }
    // Makes the stream wait until no gather uses memory any more.
    void wait_for_gathers(stream_t stream) {
        if (!gather_stream_) return;
        record(gathered_all_, gather_stream_);
        wait(stream, gathered_all_);
    }

    // The stream on which weights travel (nullptr on one rank), and the communicator of this rank's group.
    stream_t gather_stream() const { return gather_stream_; }
    const Comm& comm() const { return comm_; }

    // Draws a tensor's initial values, those that this rank holds. Call on every rank.
    void initialize(size_t unit, size_t tensor, const InitialValues& values, stream_t stream);
    // Host access for import and export; synchronises. set_tensor() needs the same values on every
    // rank. get_tensor() is a collective.
    void set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream);
    // Sets those of the unit's masters [begin, begin + count) that this rank holds.
    void set_master(size_t unit, size_t begin, const float* values, size_t count, stream_t stream);
    std::vector<float> get_tensor(size_t unit, size_t tensor, stream_t stream) const;

private:
    // Memory of a unit's whole working weights.
    struct Whole {
        Real* working = nullptr;
        e4m3* fp8 = nullptr;
    };
    struct Slot {  // stage 3
        Whole memory;
        size_t unit = ShardLayout::kNoUnit;
        OwnedEvent ready, free;
    };
    struct Published {  // a unit, stages 1 and 2
        OwnedEvent sent;
        bool awaited = false;  // the model has waited for the last publish()
    };

    Weights(const ShardLayout& layout, StateFormat masters, const Weights* owner, Arena* memory);
    void plan();
    void check_resident(size_t unit, size_t tensor) const;
    bool master_is_working() const {
        return !layout_.is_sliced() && !layout_.sharding().offload_state && bytes_of(master_.format) == sizeof(Real);
    }
    // Elements of a unit were set from outside. Call on all ranks, whichever holds them.
    void mark_changed(size_t unit, size_t from, size_t count);
    StateArray master_part(size_t unit, const ShardLayout::Part& part) const {
        return master_slice(unit).from(part.begin - layout_.slice(unit).begin);
    }
    // Casts masters to the working copy, if there is one.
    void cast_part(size_t unit, const ShardLayout::Part& part, stream_t stream);
    StateArray master_slice(size_t unit) const { return master_.from(layout_.slice_index(unit)); }
    Whole whole(size_t unit) const;
    Real* working_at(size_t unit, size_t element) const;
    void cut_working_copy();
    size_t working_count() const { return layout_.keeps_whole_weights() ? table().copies() : working_slices_.back(); }
    size_t code_count() const { return layout_.keeps_whole_weights() ? table().count() : layout_.slice_total(); }
    // Casts this rank's slices of the masters to the working copy, except what the model reads as FP8 codes.
    void cast_slices(stream_t stream) {
        for (size_t u = 0; u < layout_.units(); u++) cast_part(u, layout_.slice(u), stream);
    }
    void bring(size_t unit);
    void send(size_t unit, const Whole& to);

    const ShardLayout layout_;
    UnitCuts cuts_;
    Comm comm_ = Comm::self();    // this rank's group
    const Weights* const owner_;  // of the masters, or nullptr
    Arena working_arena_, master_arena_;
    StateArray master_;
    // All units, or this rank's slices of them in stage 3, without tensors that have no working copy.
    Real* working_ = nullptr;
    std::vector<size_t> working_slices_;  // stage 3, by unit: where its slice begins; the last entry is the length
    e4m3* fp8_ = nullptr;                 // FP8 codes of the same elements; only if masters are sliced
    std::vector<Slot> slots_;
    std::vector<size_t> gathered_;  // by slot, in every stage: the unit that is gathered and not released
    size_t last_gathered_ = 0;      // tells whether the model goes forward or backward
    OwnedStream own_stream_;
    stream_t gather_stream_ = nullptr;  // own_stream_, or the owner's
    std::vector<std::string> names_;    // for profiles, by unit
    OwnedEvent slices_cast_, gathered_all_;
    std::vector<Published> published_;
    bool to_be_measured_ = true, to_be_cast_ = true;
};

// Gathers a unit's weights, and releases them at the end of the scope.
template <class Real>
class UnitInUse {
public:
    // Profiles show the work of this scope, without the wait for the weights, under `name` if it is not nullptr.
    UnitInUse(Weights<Real>& weights, size_t unit, stream_t stream, const char* name = nullptr)
        : weights_(weights), unit_(unit), stream_(stream) {
        weights_.gather(unit_, stream_);
        if (name) range_.emplace(name, stream_);
    }
    ~UnitInUse() {
        range_.reset();
        tear_down([this] { weights_.release(unit_, stream_); });
    }
    UnitInUse(UnitInUse&&) = delete;

private:
    Weights<Real>& weights_;
    const size_t unit_;
    const stream_t stream_;
    std::optional<ProfileRange> range_;
};

}  // namespace llmc
