#include "llmc/shard/parameters.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "llmc/comm/comm_range.h"
#include "llmc/device/transfer.h"
#include "llmc/kernels/elementwise.h"
#include "llmc/kernels/quantize_flat.h"

namespace llmc {
namespace {

int stage_of(const Sharding& sharding, const Comm& comm) {
    if (sharding.stage < 0 || sharding.stage > 3)
        throw Error(ExitCode::bad_flags, strprintf("--zero %d: expected 0, 1, 2 or 3", sharding.stage));
    return comm.world() > 1 ? sharding.stage : 0;
}

int group_size_of(const Sharding& sharding, int world) {
    if (sharding.within == 0) return world;
    if (sharding.within < 1 || world % sharding.within != 0)
        throw Error(ExitCode::bad_flags,
                    strprintf("--shard-within %d: %d %s cannot be divided into groups of that size", sharding.within,
                              world, world == 1 ? "rank" : "ranks"));
    if (sharding.stage == 0 && world > 1)
        throw Error(ExitCode::bad_flags,
                    strprintf("--shard-within %d: --zero 0 shards nothing; use --zero 1, 2 or 3", sharding.within));
    return sharding.within;
}

}  // namespace

// ---- what there is, and where --------------------------------------------------------------------------------------

template <class Real>
Parameters<Real>::Parameters(const ParameterTable& table, const Comm& comm, const Sharding& sharding)
    : table_(table), comm_(comm), sharding_(sharding) {
    sharding_.stage = stage_of(sharding, comm);
    group_size_ = group_size_of(sharding, comm.world());
    const size_t units = table.units().size();
    for (const Unit& unit : table.units()) {
        fp8_states_.emplace_back(unit.tensors.size(), nullptr);
        gather_names_.push_back("gather " + unit.name);
        reduce_names_.push_back("reduce " + unit.name);
    }
    ranges_.resize(units);
    pieces_.resize(units);
    for (size_t u = 0; u < units; u++) {
        if (table.unit(u).count % static_cast<size_t>(comm.world()) != 0)
            throw Error(ExitCode::failure, "the parameter table was made for another number of ranks");
        cut_into_ranges(u);
        cut_into_pieces(u);
    }
    plan();
}

template <class Real>
void Parameters<Real>::plan() {
    const int stage = sharding_.stage;
    const size_t group = static_cast<size_t>(group_size_), all = table_.count(), shard = all / slices();
    masters_.plan(&master_, shard);
    gradients_.plan(&gradient_, accumulates() ? all : shard);
    bool any_fp8 = false;
    size_t largest_slice = 0;
    for (size_t u = 0; u < table_.units().size(); u++) {
        any_fp8 |= has_fp8(u);
        largest_slice = std::max(largest_slice, table_.unit(u).count / group);
    }
    if (!master_is_working()) weights_.plan(&working_, stage == 3 ? shard : all);
    if (any_fp8) weights_.plan(&fp8_, stage == 3 ? shard : all);
    if (stage == 3) weight_slots_.resize(kSlots);
    if (!accumulates()) gradient_slots_.resize(kSlots);
    for (size_t s = 0; s < kSlots; s++) {
        if (stage == 3) weights_.plan(&weight_slots_[s].memory.working, slot_count(s));
        if (stage == 3 && any_fp8 && s >= 2) weights_.plan(&weight_slots_[s].memory.fp8, slot_count(s));
        if (!accumulates()) gradients_.plan(&gradient_slots_[s].memory, slot_count(s));
    }
    const auto workspace = [&](size_t ranks, size_t count, bool accumulate) {
        const Comm part = Comm::planned(static_cast<int>(ranks), comm_.name(), comm_.reduce_order());
        return part.reduce_scatter_workspace(count, sharding_.wire, accumulate);
    };
    if (comm_.world() > 1)
        gradients_.plan(&workspace_, std::max(workspace(group, largest_slice, !accumulates()),
                                              workspace(groups(), largest_slice / groups(), false)));
}

template <class Real>
void Parameters<Real>::allocate(stream_t stream) {
    for (Arena* arena : {&weights_, &gradients_, &masters_})
        if (arena->bytes() > 0) arena->allocate();
    const size_t shard = slice_total();
    set_bytes(master_, 0, shard * sizeof(float), stream);  // padding stays 0
    set_bytes(gradient_, 0, (accumulates() ? table_.count() : shard) * sizeof(float), stream);
    const size_t working = sharding_.stage == 3 ? shard : table_.count();
    if (working_) set_bytes(working_, 0, working * sizeof(Real), stream);
    if (fp8_) set_bytes(fp8_, 0, working, stream);
    if (comm_.world() == 1 && accumulates()) return;
    gather_comm_ = comm_.neighbours(group_size_, "weights");
    reduce_comm_ = comm_.neighbours(group_size_, "gradients");
    if (groups() > 1) groups_comm_ = comm_.counterparts(group_size_, "gradients of all groups");
    gather_stream_ = create_stream(StreamPriority::communication);
    reduce_stream_ = create_stream(StreamPriority::communication);
    computed_ = create_event();
    reduced_ = create_event();
    for (size_t s = 0; s < weight_slots_.size(); s++) {
        weight_slots_[s].ready = create_event();
        weight_slots_[s].free = create_event();
    }
    for (size_t s = 0; s < gradient_slots_.size(); s++) {
        set_bytes(gradient_slots_[s].memory, 0, slot_count(s) * sizeof(float), stream);
        gradient_slots_[s].reduced = create_event();
    }
    if (sharding_.stage == 1 || sharding_.stage == 2)
        for (size_t u = 0; u < table_.units().size(); u++) published_.push_back(create_event());
    record(computed_, stream);  // what is set above comes before what the other streams do
    wait(gather_stream_, computed_);
    wait(reduce_stream_, computed_);
}

template <class Real>
Parameters<Real>::~Parameters() {
    if (!computed_) return;
    for (const stream_t stream : {gather_stream_, reduce_stream_}) {
        tear_down([&] { synchronize(stream); });
        tear_down([&] { destroy_stream(stream); });
    }
    const auto destroy = [](event_t event) { tear_down([&] { destroy_event(event); }); };
    for (const event_t event : {computed_, reduced_}) destroy(event);
    for (const event_t event : published_) destroy(event);
    for (const WeightSlot& slot : weight_slots_) destroy(slot.ready), destroy(slot.free);
    for (const GradientSlot& slot : gradient_slots_) destroy(slot.reduced);
}

template <class Real>
bool Parameters<Real>::master_is_working() const {
    return std::is_same_v<Real, float> && !is_sliced();
}

template <class Real>
bool Parameters<Real>::has_fp8(size_t unit) const {
    if (!is_sliced() || sharding_.fp8.empty()) return false;
    const std::vector<bool>& tensors = sharding_.fp8[unit];
    return std::find(tensors.begin(), tensors.end(), true) != tensors.end();
}

template <class Real>
size_t Parameters<Real>::slot_of(size_t unit) const {
    return unit == 0 ? 0 : unit + 1 == table_.units().size() ? 1 : 2 + unit % 2;
}
template <class Real>
size_t Parameters<Real>::slot_count(size_t slot) const {
    size_t count = 0;
    for (size_t u = 0; u < table_.units().size(); u++)
        if (slot_of(u) == slot) count = std::max(count, table_.unit(u).count);
    return count;
}

template <class Real>
size_t Parameters<Real>::slice_count(size_t unit) const {
    return table_.unit(unit).count / slices();
}
template <class Real>
size_t Parameters<Real>::slice_begin(size_t unit) const {
    return is_sliced() ? slice_count(unit) * place_in_group() : 0;
}
template <class Real>
size_t Parameters<Real>::shard_index(size_t unit) const {
    return table_.unit(unit).begin / slices();
}

template <class Real>
typename Parameters<Real>::Whole Parameters<Real>::whole(size_t unit) const {
    if (sharding_.stage == 3) return weight_slots_[slot_of(unit)].memory;
    const size_t begin = table_.unit(unit).begin;
    if constexpr (std::is_same_v<Real, float>)
        if (!working_) return {master_ + begin, nullptr};
    return {working_ + begin, fp8_ ? fp8_ + begin : nullptr};
}
template <class Real>
Real* Parameters<Real>::working_slice(size_t unit) const {
    return sharding_.stage == 3 ? working_ + shard_index(unit) : whole(unit).working + slice_begin(unit);
}
template <class Real>
e4m3* Parameters<Real>::fp8_slice(size_t unit) const {
    return sharding_.stage == 3 ? fp8_ + shard_index(unit) : whole(unit).fp8 + slice_begin(unit);
}
template <class Real>
float* Parameters<Real>::whole_gradient(size_t unit) const {
    return accumulates() ? gradient_ + table_.unit(unit).begin : gradient_slots_[slot_of(unit)].memory;
}

template <class Real>
void Parameters<Real>::check_resident(size_t unit, size_t tensor) const {
    const size_t slot = slot_of(unit), gathered = gathered_[slot];
    const size_t present = sharding_.stage == 3 ? weight_slots_[slot].unit : gathered;
    if (gathered == unit && present == unit) return;
    throw Error(ExitCode::failure, strprintf("weights of %s were asked for (%s), which %s; its slot has %s",
                                             name_of(unit).c_str(), table_.unit(unit).tensors[tensor].name.c_str(),
                                             gathered == unit ? "have been replaced since they were gathered"
                                                              : "are not gathered, or have been released",
                                             name_of(present).c_str()));
}

template <class Real>
const Real* Parameters<Real>::weight(size_t unit, size_t tensor) const {
    check_resident(unit, tensor);
    return whole(unit).working + table_.unit(unit).tensors[tensor].offset;
}
template <class Real>
const e4m3* Parameters<Real>::fp8_weight(size_t unit, size_t tensor) const {
    check_resident(unit, tensor);
    return whole(unit).fp8 + table_.unit(unit).tensors[tensor].offset;
}
template <class Real>
float* Parameters<Real>::gradient(size_t unit, size_t tensor) {
    return whole_gradient(unit) + table_.unit(unit).tensors[tensor].offset;
}
template <class Real>
const float* Parameters<Real>::master(size_t unit, size_t tensor) const {
    if (is_sliced()) throw Error(ExitCode::failure, "no rank has the whole master weights");
    return master_ + table_.unit(unit).begin + table_.unit(unit).tensors[tensor].offset;
}

template <class Real>
typename Parameters<Real>::Slice Parameters<Real>::slice(size_t unit) {
    const size_t shard = shard_index(unit), begin = slice_begin(unit), count = slice_count(unit);
    float* gradient = accumulates() ? whole_gradient(unit) + begin : gradient_ + shard;
    return {master_ + shard, gradient, master_is_working() ? nullptr : working_slice(unit), shard, count};
}

template <class Real>
typename Parameters<Real>::GradientShare Parameters<Real>::gradient_share(size_t unit) const {
    const size_t count = reduced_count(unit) / groups();
    return {reduced_slice(unit) + count * group_index(), count};
}

// ---- weights -------------------------------------------------------------------------------------------------------

template <class Real>
void Parameters<Real>::gather(size_t unit, stream_t stream) {
    size_t& gathered = gathered_[slot_of(unit)];
    if (gathered != kNoUnit && gathered != unit)
        throw Error(ExitCode::failure, strprintf("%s cannot be gathered: its slot has %s, which has not been released",
                                                 name_of(unit).c_str(), name_of(gathered).c_str()));
    gathered = unit;
    if (!gradient_slots_.empty()) wait(stream, gradient_slots_[slot_of(unit)].reduced);
    if (!published_.empty()) wait(stream, published_[unit]);
    if (sharding_.stage < 3) return;
    bring(unit);
    wait(stream, weight_slots_[slot_of(unit)].ready);
    // One unit ahead, up or down; the embedding and the final norm stay where they are.
    const bool down = unit < last_gathered_;
    last_gathered_ = unit;
    const size_t last = table_.units().size() - 1, next = down ? unit - 1 : unit + 1;
    if (unit > 0 && unit < last && next > 0 && next < last) bring(next);
}

template <class Real>
void Parameters<Real>::release(size_t unit, stream_t stream) {
    size_t& gathered = gathered_[slot_of(unit)];
    if (gathered != unit)
        throw Error(ExitCode::failure, strprintf("%s cannot be released: its slot has %s", name_of(unit).c_str(),
                                                 name_of(gathered).c_str()));
    gathered = kNoUnit;
    if (sharding_.stage == 3) record(weight_slots_[slot_of(unit)].free, stream);
}

// Into its slot, if it is not there.
template <class Real>
void Parameters<Real>::bring(size_t unit) {
    WeightSlot& slot = weight_slots_[slot_of(unit)];
    if (slot.unit == unit) return;
    wait(gather_stream_, slot.free);
    send(unit, slot.memory);
    record(slot.ready, gather_stream_);
    slot.unit = unit;
}

// Every rank's slice to every rank. In a unit with FP8 tensors the codes travel, of the whole slice, and the few others
// one by one.
template <class Real>
void Parameters<Real>::send(size_t unit, const Whole& to) {
    const CommRange range(gather_names_[unit].c_str(), gather_comm_, gather_stream_);
    const size_t count = slice_count(unit);
    if (!has_fp8(unit)) {
        gather_comm_.all_gather(to.working, working_slice(unit), count * sizeof(Real), gather_stream_);
        return;
    }
    for (const Piece& piece : pieces_[unit]) {
        const Real* mine = working_slice(unit) + piece.begin - slice_begin(unit);
        if (piece.rank == gather_comm_.rank() && mine != to.working + piece.begin)
            copy_on_device(to.working + piece.begin, mine, piece.count * sizeof(Real), gather_stream_);
    }
    const Comm::Group group(gather_comm_);
    gather_comm_.all_gather(to.fp8, fp8_slice(unit), count, gather_stream_);
    for (const Piece& piece : pieces_[unit])
        gather_comm_.broadcast(to.working + piece.begin, piece.count * sizeof(Real), piece.rank, gather_stream_);
}

template <class Real>
void Parameters<Real>::measure_slices([[maybe_unused]] stream_t stream) {
#if LLMC_ENABLE_FP8
    const ProfileRange profile("measure FP8 weights", stream);
    for (size_t u = 0; u < table_.units().size(); u++)
        for (const Range& range : ranges_[u])
            if (range.fp8)
                quantize_flat(nullptr, master_slice(u) + range.begin, range.count, range.fp8, QuantizePass::measure,
                              stream);
#endif
}

template <class Real>
void Parameters<Real>::publish(stream_t stream, [[maybe_unused]] QuantizePass pass) {
    if (!is_sliced()) return;
    std::optional<ProfileRange> profile(std::in_place, "cast weights", stream);
    for (size_t u = 0; u < table_.units().size(); u++) {
        for (const Range& range : ranges_[u]) {
            const float* master = master_slice(u) + range.begin;
#if LLMC_ENABLE_FP8
            if (range.fp8) {
                quantize_flat(fp8_slice(u) + range.begin, master, range.count, range.fp8, pass, stream);
                continue;
            }
#endif
            if (!to_be_cast_) continue;  // the optimizer has done it
            if constexpr (std::is_same_v<Real, float>)
                copy_on_device(working_slice(u) + range.begin, master, range.count * sizeof(float), stream);
            else
                cast(working_slice(u) + range.begin, master, range.count, stream);
        }
    }
    to_be_cast_ = false;
    profile.reset();
    record(computed_, stream);
    wait(gather_stream_, computed_);
    for (WeightSlot& slot : weight_slots_) slot.unit = kNoUnit;
    for (size_t u = 0; u < published_.size(); u++) {
        send(u, whole(u));
        record(published_[u], gather_stream_);
    }
}

// ---- gradients -----------------------------------------------------------------------------------------------------

// The part of a unit's gradient that this rank's group sums up on this rank.
template <class Real>
size_t Parameters<Real>::reduced_count(size_t unit) const {
    return table_.unit(unit).count / static_cast<size_t>(group_size_);
}
template <class Real>
float* Parameters<Real>::reduced_slice(size_t unit) const {
    if (!accumulates() && is_sliced()) return gradient_ + shard_index(unit);
    return gradient_ + table_.unit(unit).begin + reduced_count(unit) * place_in_group();
}

template <class Real>
void Parameters<Real>::reduce(size_t unit, stream_t stream) {
    if (accumulates() && (comm_.world() == 1 || !last_)) return;
    const size_t count = reduced_count(unit);
    float *whole = whole_gradient(unit), *sum = reduced_slice(unit);
    record(computed_, stream);
    wait(reduce_stream_, computed_);
    const CommRange range(reduce_names_[unit].c_str(), reduce_comm_, reduce_stream_);
    reduce_comm_.reduce_scatter(sum, whole, count, sharding_.wire, !accumulates() && !first_, workspace_,
                                reduce_stream_);
    if (!accumulates()) record(gradient_slots_[slot_of(unit)].reduced, reduce_stream_);
    if (groups() > 1 && last_) sum_over_groups(unit);
    if (sharding_.stage == 0 && last_)
        reduce_comm_.all_gather(gradient_ + table_.unit(unit).begin, sum, count * sizeof(float), reduce_stream_);
    record(reduced_, reduce_stream_);
}

// Every group's sum of the slice: each rank sums the share that the norm takes from it, and all gather.
template <class Real>
void Parameters<Real>::sum_over_groups(size_t unit) {
    const CommRange range("sum over groups", groups_comm_, reduce_stream_);
    const size_t count = reduced_count(unit) / groups();
    float *sum = reduced_slice(unit), *mine = sum + count * group_index();
    groups_comm_.reduce_scatter(mine, sum, count, sharding_.wire, false, workspace_, reduce_stream_);
    groups_comm_.all_gather(sum, mine, count * sizeof(float), reduce_stream_);
}

template <class Real>
void Parameters<Real>::finish_reduce(stream_t stream) {
    if (reduced_) wait(stream, reduced_);
}

// ---- ranges and pieces ---------------------------------------------------------------------------------------------

// Every tensor in FP8, as far as it lies in the slice, is a range, and so is everything between two of them.
template <class Real>
void Parameters<Real>::cut_into_ranges(size_t unit) {
    const Unit& u = table_.unit(unit);
    std::vector<Range>& ranges = ranges_[unit];
    ranges.clear();
    const size_t first = slice_begin(unit), last = first + slice_count(unit);
    const auto add = [&](size_t from, size_t to, Fp8State* fp8) {
        const size_t begin = std::clamp(from, first, last), end = std::clamp(to, first, last);
        if (begin == end) return;
        const size_t decayed = std::clamp(u.decay_count, begin, end) - begin;
        ranges.push_back({begin - first, end - begin, decayed, fp8});
    };
    size_t at = 0;
    for (size_t t = 0; t < u.tensors.size(); t++) {
        if (!fp8_states_[unit][t]) continue;
        const size_t begin = u.tensors[t].offset, end = begin + u.tensors[t].count();
        add(at, begin, nullptr);
        add(begin, end, fp8_states_[unit][t]);
        at = end;
    }
    add(at, u.count, nullptr);
}

template <class Real>
void Parameters<Real>::cut_into_pieces(size_t unit) {
    if (!has_fp8(unit)) return;
    const Unit& u = table_.unit(unit);
    const size_t count = slice_count(unit);
    const auto add = [&](size_t from, size_t to) {  // without FP8, cut where slices end
        for (size_t at = from; at < to;) {
            const size_t end = std::min(to, (at / count + 1) * count);
            pieces_[unit].push_back({static_cast<int>(at / count), at, end - at});
            at = end;
        }
    };
    size_t at = 0;
    for (size_t t = 0; t < u.tensors.size(); t++) {
        if (!sharding_.fp8[unit][t]) continue;
        add(at, u.tensors[t].offset);
        at = u.tensors[t].offset + u.tensors[t].count();
    }
    add(at, u.count);
}

template <class Real>
void Parameters<Real>::keep_in_fp8(size_t unit, size_t tensor, Fp8State* state) {
    if (fp8_states_[unit][tensor] == state) return;
    if (is_sliced() && (sharding_.fp8.empty() || !sharding_.fp8[unit][tensor]))
        throw Error(ExitCode::failure,
                    "tensor " + table_.unit(unit).tensors[tensor].name + " was not planned to travel as FP8");
    fp8_states_[unit][tensor] = state;
    to_be_measured_ = true;
    cut_into_ranges(unit);
}

template <class Real>
void Parameters<Real>::leave_fp8(size_t unit, size_t tensor, stream_t stream) {
    fp8_states_[unit][tensor] = nullptr;
    if (!sharding_.fp8.empty()) sharding_.fp8[unit][tensor] = false;
    cut_into_ranges(unit);
    pieces_[unit].clear();
    cut_into_pieces(unit);
    if (is_sliced()) {
        to_be_cast_ = true;
        return;
    }
    if constexpr (!std::is_same_v<Real, float>)
        cast(whole(unit).working + table_.unit(unit).tensors[tensor].offset, master(unit, tensor),
             table_.unit(unit).tensors[tensor].count(), stream);
}

// ---- host access ---------------------------------------------------------------------------------------------------

template <class Real>
void Parameters<Real>::set_tensor(size_t unit, size_t tensor, const std::vector<float>& values, stream_t stream) {
    const ParameterTensor& info = table_.unit(unit).tensors[tensor];
    if (values.size() != info.count())
        throw Error(ExitCode::failure,
                    strprintf("tensor %s has %zu elements, not %zu", info.name.c_str(), info.count(), values.size()));
    if (fp8_states_[unit][tensor]) to_be_measured_ = true;
    to_be_cast_ = true;
    const size_t first = slice_begin(unit), last = first + slice_count(unit);
    const size_t begin = std::clamp(info.offset, first, last),
                 end = std::clamp(info.offset + info.count(), first, last);
    if (begin == end) return;
    float* master = master_slice(unit) + begin - first;
    write_through(master, values.data() + begin - info.offset, end - begin, stream);
    if constexpr (!std::is_same_v<Real, float>)
        if (!is_sliced()) cast(whole(unit).working + begin, master, end - begin, stream);
}

// A tensor from every slice of its unit.
template <class Real>
std::vector<float> Parameters<Real>::download_slices(const float* slice, size_t unit, size_t tensor,
                                                     stream_t stream) const {
    const std::vector<float> mine = read_back(slice, slice_count(unit), stream);
    std::vector<float> all(table_.unit(unit).count);
    gather_comm_.host_all_gather(all.data(), mine.data(), mine.size() * sizeof(float));
    const ParameterTensor& info = table_.unit(unit).tensors[tensor];
    const auto begin = all.begin() + static_cast<ptrdiff_t>(info.offset);
    return {begin, begin + static_cast<ptrdiff_t>(info.count())};
}

template <class Real>
std::vector<float> Parameters<Real>::get_tensor(size_t unit, size_t tensor, stream_t stream) const {
    if (is_sliced()) return download_slices(master_slice(unit), unit, tensor, stream);
    const ParameterTensor& info = table_.unit(unit).tensors[tensor];
    return read_back(master_ + table_.unit(unit).begin + info.offset, info.count(), stream);
}
template <class Real>
std::vector<float> Parameters<Real>::get_gradient(size_t unit, size_t tensor, stream_t stream) const {
    if (reduced_) wait(stream, reduced_);
    if (is_sliced()) return download_slices(reduced_slice(unit), unit, tensor, stream);
    const ParameterTensor& info = table_.unit(unit).tensors[tensor];
    return read_back(gradient_ + table_.unit(unit).begin + info.offset, info.count(), stream);
}

template class Parameters<float>;
template class Parameters<bf16>;

}  // namespace llmc
