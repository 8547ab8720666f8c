// Copies slices of offloaded state to the device and back. See state_ring.h.
#include "llmc/optim/state_ring.h"

#include "llmc/device/trace.h"

namespace llmc {

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
    all_back_ = create_event();
    for (Slot& slot : slots_)
        for (OwnedEvent* event : {&slot.arrived, &slot.updated, &slot.free}) *event = create_event();
    record(all_back_, stream);
}

// Copies `count` elements with their scales.
static void copy_state(const StateArray& to, const StateArray& from, size_t count, stream_t stream) {
    if (!from.values) return;
    copy_on_device(to.values, from.values, count * bytes_of(from.format), stream);
    if (from.scales) copy_on_device(to.scales, from.scales, div_up(count, kStateGroup) * sizeof(float), stream);
}

StateRing::Slice StateRing::bring(Arrays arrays, size_t begin, size_t count, stream_t stream) {
    const Slot& slot = slots_[next_ % kSlots];
    if (next_ == 0) wait(to_device_, all_back_);
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
    record(all_back_, to_host_);
    wait(stream, all_back_);
    next_ = 0;
}

}  // namespace llmc
