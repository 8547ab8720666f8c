// Plans, allocates and finds the optimizer's moments, and copies slices of offloaded state to the device and back.
#include "llmc/optim/state.h"

namespace llmc {

size_t OptimizerMoments::add(const char* name, std::vector<ShardLayout::Part> regions, StateFormat format) {
    Kept kept{name, std::move(regions), {}, 0, {nullptr, format}};
    for (size_t u = 0; u < layout_.units(); u++) {
        // Every rank plans for the size on the rank with the most, so that all plan the same.
        const size_t slice = layout_.slice(u).count, all = layout_.table().unit(u).count;  // 0: a unit without tensors
        size_t most = 0;
        for (size_t begin = 0; begin < all; begin += slice)
            most = std::max(most, ShardLayout::overlap(kept.regions[u], {begin, slice}).count);
        kept.index.push_back(kept.count);
        kept.count += most;
    }
    kept_.push_back(std::move(kept));
    arena_.plan(&kept_.back().values, kept_.back().count);
    return kept_.size() - 1;
}

size_t OptimizerMoments::add_everywhere(const char* name, StateFormat format) {
    std::vector<ShardLayout::Part> regions;
    for (const Unit& unit : layout_.table().units()) regions.push_back({0, unit.count});
    return add(name, std::move(regions), format);
}

void OptimizerMoments::allocate(stream_t stream) {
    if (arena_.bytes() == 0) return;
    arena_.allocate();
    for (const Kept& kept : kept_) {
        set_bytes(kept.values.values, 0, kept.count * bytes_of(kept.values.format), stream);
        if (kept.values.scales)
            set_bytes(kept.values.scales, 0, div_up(kept.count, kStateGroup) * sizeof(float), stream);
    }
}

StateArray OptimizerMoments::at(size_t moment, size_t unit, size_t position) const {
    const Kept& kept = kept_[moment];
    const size_t begin = std::max(kept.regions[unit].begin, layout_.slice(unit).begin);
    return kept.values.from(kept.index[unit] + std::max(position, begin) - begin);
}

std::vector<OptimizerMoments::Moment> OptimizerMoments::of(size_t unit, const ParameterTensor& tensor,
                                                           size_t position) const {
    std::vector<Moment> moments;
    for (size_t m = 0; m < kept_.size(); m++)
        if (ShardLayout::overlap(kept_[m].regions[unit], tensor).count > 0)
            moments.push_back({kept_[m].name, at(m, unit, position)});
    return moments;
}

std::vector<OptimizerMoments::Moment> OptimizerMoments::all() const {
    std::vector<Moment> moments;
    for (const Kept& kept : kept_) moments.push_back({kept.name, kept.values});
    return moments;
}

StateRing::StateRing(const ShardLayout& layout, size_t slice_elements) : offloaded_(layout.sharding().offload_state) {
    if (!offloaded_) return;
    size_t most = 0;
    for (size_t u = 0; u < layout.units(); u++) most = std::max(most, layout.slice(u).count);
    slice_elements_ = std::min(slice_elements, round_up(most, size_t{64}));
    for (Slot& slot : slots_) {
        arena_.plan(&slot.memory, kMostArrays * slice_elements_ * sizeof(float));
        arena_.plan(&slot.scales, kMostArrays * slice_elements_ / kStateGroup);
    }
}

void StateRing::allocate(stream_t stream) {
    if (!offloaded_) return;
    arena_.allocate();
    to_device_ = create_stream();
    to_host_ = create_stream();
    complete_ = create_event();
    for (Slot& slot : slots_)
        for (OwnedEvent* event : {&slot.arrived, &slot.updated, &slot.free}) *event = create_event();
    state_is_set(stream);
}

// Copies `count` elements with their scales.
static void copy_state(const StateArray& to, const StateArray& from, size_t count, stream_t stream) {
    if (!from.values) return;
    copy_on_device(to.values, from.values, count * bytes_of(from.format), stream);
    if (from.scales) copy_on_device(to.scales, from.scales, div_up(count, kStateGroup) * sizeof(float), stream);
}

StateRing::Slice StateRing::bring(Arrays arrays, size_t begin, size_t count, stream_t stream) {
    const Slot& slot = slots_[next_ % kSlots];
    if (next_ == 0) wait(to_device_, complete_);
    wait(to_device_, slot.free);
    Slice slice{begin, count, {}};
    {
        const ProfileRange range("state to the device", to_device_);
        size_t i = 0;
        for (const StateArray& array : arrays) {
            StateArray& here = slice.arrays[i];
            if (array.values) here = {slot.memory + i * slice_elements_ * sizeof(float), array.format};
            if (array.scales) here.scales = slot.scales + i * slice_elements_ / kStateGroup;
            copy_state(here, array.from(begin), count, to_device_);
            i++;
        }
    }
    record(slot.arrived, to_device_);
    wait(stream, slot.arrived);
    return slice;
}

void StateRing::send_back(Arrays arrays, const Slice& slice, stream_t stream) {
    const Slot& slot = slots_[next_++ % kSlots];
    record(slot.updated, stream);
    wait(to_host_, slot.updated);
    {
        const ProfileRange range("state to the host", to_host_);
        size_t i = 0;
        for (const StateArray& array : arrays) copy_state(array.from(slice.begin), slice[i++], slice.count, to_host_);
    }
    record(slot.free, to_host_);
}

void StateRing::finish(stream_t stream) {
    if (!offloaded_) return;
    record(complete_, to_host_);
    wait(stream, complete_);
    next_ = 0;
}

}  // namespace llmc
