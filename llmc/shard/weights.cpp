// Memory, travel and host access of the weights. See weights.h.
#include "llmc/shard/weights.h"

#include <algorithm>
#include <type_traits>

#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/initial_values.h"
#include "llmc/shard/state_values.h"

namespace llmc {

// out[i] = inp[i], rounded to nearest if the formats differ.
template <class To, class From>
static void copy_values(To* out, const From* inp, size_t count, stream_t stream) {
    if constexpr (std::is_same_v<To, From>)
        copy_on_device(out, inp, count * sizeof(To), stream);
    else
        cast(out, inp, count, stream);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

template <class Real>
Weights<Real>::Weights(const ShardLayout& layout, StateFormat masters, const Weights* owner, Arena* memory)
    : layout_(layout),
      cuts_(layout_),
      owner_(owner),
      working_arena_(MemoryKind::weights, memory),
      master_arena_(layout.state_memory()),
      master_(nullptr, masters),
      gathered_(ShardLayout::kSlots, ShardLayout::kNoUnit) {
    for (const Unit& unit : table().units()) names_.push_back("gather " + unit.name);
    plan();
}

template <class Real>
void Weights<Real>::plan() {
    const bool whole = layout_.keeps_whole_weights();
    if (!whole) cut_working_copy();
    if (!owner_) master_arena_.plan(&master_, layout_.slice_total());
    if (!master_is_working()) working_arena_.plan(&working_, working_count());
    if (cuts_.codes_travel()) working_arena_.plan(&fp8_, code_count());
    if (whole) return;
    slots_.resize(ShardLayout::kSlots);
    for (size_t s = 0; s < slots_.size(); s++) {
        size_t copies = 0;
        for (size_t u = 0; u < layout_.units(); u++)
            if (layout_.slot_of(u) == s) copies = std::max(copies, table().unit(u).copy_count);
        working_arena_.plan(&slots_[s].memory.working, copies);
        if (cuts_.codes_travel() && s >= 2) working_arena_.plan(&slots_[s].memory.fp8, layout_.slot_count(s));
    }
}

// All ranks plan the same memory, although some slices have fewer working copies than others.
template <class Real>
void Weights<Real>::cut_working_copy() {
    working_slices_ = {0};
    for (size_t u = 0; u < layout_.units(); u++) {
        const size_t count = layout_.slice(u).count;
        size_t most = 0;
        for (size_t begin = 0; begin < table().unit(u).count; begin += count)
            most = std::max(most, table().unit(u).copy_index(begin + count) - table().unit(u).copy_index(begin));
        working_slices_.push_back(working_slices_.back() + round_up(most, kSliceAlignment));
    }
}

template <class Real>
void Weights<Real>::allocate(stream_t stream) {
    for (Arena* arena : {&working_arena_, &master_arena_}) arena->allocate();
    if (owner_)
        master_ = owner_->master_;
    else
        set_bytes(master_.values, 0, layout_.slice_total() * bytes_of(master_.format), stream);  // padding stays 0
    if (working_) set_bytes(working_, 0, working_count() * sizeof(Real), stream);
    if (fp8_) set_bytes(fp8_, 0, code_count(), stream);
    if (layout_.comm().world() == 1) return;
    if (owner_) {
        comm_ = owner_->comm_;
        gather_stream_ = owner_->gather_stream_;
    } else {
        comm_ = layout_.comm().neighbours(static_cast<int>(layout_.group_size()), "weights");
        gather_stream_ = own_stream_ = create_stream(StreamPriority::communication);
    }
    slices_cast_ = create_event();
    gathered_all_ = create_event();
    for (Slot& slot : slots_) {
        slot.ready = create_event();
        slot.free = create_event();
    }
    if (layout_.is_sliced() && layout_.keeps_whole_weights())
        for (size_t u = 0; u < layout_.units(); u++) published_.push_back({create_event()});
}

template <class Real>
typename Weights<Real>::Whole Weights<Real>::whole(size_t unit) const {
    if (!layout_.keeps_whole_weights()) return slots_[layout_.slot_of(unit)].memory;
    const Unit& u = table().unit(unit);
    if (master_is_working()) return {master_.as<Real>() + u.begin, nullptr};
    return {working_ + u.copy_begin, fp8_ ? fp8_ + u.begin : nullptr};
}
// The working copy of an element that this rank keeps.
template <class Real>
Real* Weights<Real>::working_at(size_t unit, size_t element) const {
    const size_t at = table().unit(unit).copy_index(element);
    return layout_.keeps_whole_weights()
               ? whole(unit).working + at
               : working_ + working_slices_[unit] + at - table().unit(unit).copy_index(layout_.slice(unit).begin);
}

template <class Real>
void Weights<Real>::check_resident(size_t unit, size_t tensor) const {
    const size_t slot = layout_.slot_of(unit), gathered = gathered_[slot];
    const size_t present = layout_.keeps_whole_weights() ? gathered : slots_[slot].unit;
    if (gathered == unit && present == unit) return;
    throw Error(
        ExitCode::failure, "weights of {} were asked for ({}), which {}; its slot has {}", layout_.name_of(unit),
        table().unit(unit).tensors[tensor].name,
        gathered == unit ? "have been replaced since they were gathered" : "are not gathered, or have been released",
        layout_.name_of(present));
}

template <class Real>
const Real* Weights<Real>::weight(size_t unit, size_t tensor) const {
    check_resident(unit, tensor);
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    if (!info.copied) throw Error(ExitCode::failure, info.name + " exists in FP8 alone");
    return whole(unit).working + table().unit(unit).copy_index(info.offset);
}

template <class Real>
typename Weights<Real>::Slice Weights<Real>::slice(size_t unit, size_t at) const {
    const size_t element = layout_.slice(unit).begin + at;
    bool copied = !master_is_working();
    for (const Range& range : ranges(unit))
        if (range.fp8 && range.begin <= at && at < range.begin + range.count) copied = false;
    return {master_slice(unit).from(at), copied ? working_at(unit, element) : nullptr};
}

// ---- gathered and sent ----------------------------------------------------------------------------------------------

template <class Real>
void Weights<Real>::gather(size_t unit, stream_t stream) {
    size_t& gathered = gathered_[layout_.slot_of(unit)];
    if (gathered != ShardLayout::kNoUnit && gathered != unit)
        throw Error(ExitCode::failure, "{} cannot be gathered: its slot has {}, which has not been released",
                    layout_.name_of(unit), layout_.name_of(gathered));
    gathered = unit;
    if (!published_.empty()) {  // stages 1 and 2
        Published& published = published_[unit];
        if (published.awaited)
            wait(stream, published.sent);
        else
            comm_.wait_for_peers(stream, published.sent);  // counts the time, if there is any
        published.awaited = true;
    }
    if (layout_.keeps_whole_weights()) return;
    bring(unit);  // stage 3
    comm_.wait_for_peers(stream, slots_[layout_.slot_of(unit)].ready);
    // Fetch the next block ahead of time, up or down. The embedding and the final norm stay in their buffers.
    const bool down = unit < last_gathered_;
    last_gathered_ = unit;
    const size_t last = layout_.units() - 1, next = down ? unit - 1 : unit + 1;
    if (unit > 0 && unit < last && next > 0 && next < last) bring(next);
}

template <class Real>
void Weights<Real>::release(size_t unit, stream_t stream) {
    size_t& gathered = gathered_[layout_.slot_of(unit)];
    if (gathered != unit)
        throw Error(ExitCode::failure, "{} cannot be released: its slot has {}", layout_.name_of(unit),
                    layout_.name_of(gathered));
    gathered = ShardLayout::kNoUnit;
    if (!layout_.keeps_whole_weights()) record(slots_[layout_.slot_of(unit)].free, stream);
}

// Fetches a unit into its slot, if it is not there.
template <class Real>
void Weights<Real>::bring(size_t unit) {
    Slot& slot = slots_[layout_.slot_of(unit)];
    if (slot.unit == unit) return;
    wait(gather_stream_, slot.free);
    send(unit, slot.memory);
    record(slot.ready, gather_stream_);
    slot.unit = unit;
}

// Sends every rank's slice to every rank. In a unit with FP8 tensors, codes of the whole slice travel, and the few
// other tensors piece by piece.
template <class Real>
void Weights<Real>::send(size_t unit, const Whole& to) {
    const CommRange range(names_[unit].c_str(), comm_, gather_stream_);
    const size_t count = layout_.slice(unit).count;
    if (!cuts_.codes_travel(unit)) {
        comm_.all_gather(to.working, working_at(unit, layout_.slice(unit).begin), count * sizeof(Real), gather_stream_);
        return;
    }
    const auto place = [&](const UnitCuts::Piece& piece) {
        return to.working + table().unit(unit).copy_index(piece.begin);
    };
    for (const UnitCuts::Piece& piece : cuts_.pieces(unit)) {
        if (piece.rank != comm_.rank()) continue;
        const Real* mine = working_at(unit, piece.begin);
        if (mine != place(piece)) copy_on_device(place(piece), mine, piece.count * sizeof(Real), gather_stream_);
    }
    const Comm::Group group(comm_);
    comm_.all_gather(to.fp8, codes_slice(unit), count, gather_stream_);
    for (const UnitCuts::Piece& piece : cuts_.pieces(unit))
        comm_.broadcast(place(piece), piece.count * sizeof(Real), piece.rank, gather_stream_);
}

template <class Real>
void Weights<Real>::publish(stream_t stream) {
    if (!layout_.is_sliced()) return;
    if (to_be_cast_) {  // otherwise the optimizer has done it
        const ProfileRange profile("cast weights", stream);
        cast_slices(stream);
    }
    to_be_cast_ = false;
    record(slices_cast_, stream);
    wait(gather_stream_, slices_cast_);
    for (Slot& slot : slots_) slot.unit = ShardLayout::kNoUnit;
    for (size_t u = 0; u < published_.size(); u++) {
        send(u, whole(u));
        record(published_[u].sent, gather_stream_);
        published_[u].awaited = false;
    }
}

template <class Real>
std::vector<NamedMemory> Weights<Real>::working_copies() const {
    std::vector<NamedMemory> copies;
    if (master_is_working()) return copies;
    const bool all = layout_.keeps_whole_weights();
    for (size_t u = 0; u < layout_.units(); u++) {
        const ShardLayout::Part kept = all ? ShardLayout::Part{0, table().unit(u).count} : layout_.slice(u);
        const size_t begin = all ? table().unit(u).begin : layout_.slice_index(u);
        for (size_t t = 0; t < table().unit(u).tensors.size(); t++) {
            const ParameterTensor& tensor = table().unit(u).tensors[t];
            const ShardLayout::Part part = ShardLayout::overlap(kept, tensor);
            const size_t at = begin + part.begin - kept.begin;
            if (!cuts_.state(u, t))
                copies.push_back({tensor.name, working_at(u, part.begin), part.count * sizeof(Real)});
            else if (layout_.is_sliced())
                copies.push_back({tensor.name + " in FP8", fp8_ + at, part.count});
        }
    }
    return copies;
}

// Does cast_slices() for a part of a unit's slice.
template <class Real>
void Weights<Real>::cast_part(size_t unit, const ShardLayout::Part& part, stream_t stream) {
    if (master_is_working()) return;
    for (const Range& range : ranges(unit)) {
        const size_t begin = layout_.slice(unit).begin + range.begin;
        const ShardLayout::Part copied = ShardLayout::overlap(part, {begin, range.count});
        if (range.fp8 || copied.count == 0) continue;
        master_part(unit, copied).typed([&](const auto* masters) {
            copy_values(working_at(unit, copied.begin), masters, copied.count, stream);
        });
    }
}

// ---- in and out of FP8 ----------------------------------------------------------------------------------------------

template <class Real>
void Weights<Real>::leave_fp8(size_t unit, size_t tensor, stream_t stream) {
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    if (!info.copied)
        refuse(
            "layer {} has left FP8, but this run keeps no BF16 copy of its weight; resume with the "
            "--fp8-fallback or --fp8-until of that run, or leave the layer out of --fp8-layers",
            info.layer);
    cuts_.leave_fp8(unit, tensor);
    to_be_cast_ = true;
    if (!layout_.is_sliced()) cast_part(unit, {info.offset, info.count()}, stream);
}

// ---- host access ----------------------------------------------------------------------------------------------------

template <class Real>
void Weights<Real>::set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream) {
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    if (values.size() != info.count())
        throw Error(ExitCode::failure, "tensor {} has {} elements, not {}", info.name, info.count(), values.size());
    set_master(unit, info.offset, values.data(), values.size(), stream);
}

template <class Real>
void Weights<Real>::initialize(size_t unit, size_t tensor, const InitialValues& values, stream_t stream) {
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    mark_changed(unit, info.offset, info.count());
    const ShardLayout::Part part = ShardLayout::overlap(layout_.slice(unit), info);
    draw_initial_values(master_part(unit, part), values, part.begin - info.offset, part.count, stream);
    if (!layout_.is_sliced()) cast_part(unit, part, stream);
}

template <class Real>
void Weights<Real>::set_master(size_t unit, size_t from, const float* values, size_t count, stream_t stream) {
    mark_changed(unit, from, count);
    const ShardLayout::Part part = ShardLayout::overlap(layout_.slice(unit), {from, count});
    if (part.count == 0) return;
    write_state(master_part(unit, part), values + part.begin - from, part.count, stream);
    if (!layout_.is_sliced()) cast_part(unit, part, stream);
}

template <class Real>
void Weights<Real>::mark_changed(size_t unit, size_t from, size_t count) {
    for (size_t t = 0; t < table().unit(unit).tensors.size(); t++) {
        const ParameterTensor& info = table().unit(unit).tensors[t];
        const bool changes = from < info.offset + info.count() && info.offset < from + count;
        to_be_measured_ |= changes && cuts_.state(unit, t);
    }
    to_be_cast_ = true;
}

template <class Real>
std::vector<float> Weights<Real>::get_tensor(size_t unit, size_t tensor, stream_t stream) const {
    if (layout_.is_sliced()) return layout_.download(comm_, master_slice(unit), unit, tensor, stream);
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    return read_state(master(unit, tensor), info.count(), stream);
}

template class Weights<float>;
template class Weights<bf16>;

}  // namespace llmc
