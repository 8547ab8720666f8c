// The optimizer's state: numbers, its moments, and the ring through which state in host memory passes on its way to an
// update.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <vector>

#include "llmc/device/owned.h"
#include "llmc/kernels/state_array.h"
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

// The optimizer's state between steps, besides its moments. Checkpoints save it; it is the same on every rank.
struct OptimizerState {
    StepState step{};
    LossScaleState loss_scale{1, 1, 0, 0};
    bool dynamic = false;  // the loss scale is dynamic
    SpikeState spikes{};
    int64_t averaged = 0;  // number of weights in the average; 0: there is none
};

// ---- moments --------------------------------------------------------------------------------------------------------

// Arrays with names ("m", "v"), each over a region of every unit. A rank holds the part of them that belongs to its
// slices.
class OptimizerMoments {
public:
    explicit OptimizerMoments(const ShardLayout& layout) : layout_(layout), arena_(layout.state_memory()) {}

    // Adds a moment before allocate() and returns its index. `regions` gives a region of each unit, which begins and
    // ends between tensors. Several moments of one name are the same moment for different regions.
    size_t add(const char* name, std::vector<ShardLayout::Part> regions, StateFormat format = StateFormat::fp32);
    size_t add_everywhere(const char* name, StateFormat format = StateFormat::fp32);

    size_t bytes() const { return arena_.bytes(); }  // the same on every rank
    void allocate(stream_t stream);                  // moments start at 0

    // A moment, starting at element `position` of the unit. If this rank holds none of the unit's region, it must not
    // be read or written.
    StateArray at(size_t moment, size_t unit, size_t position) const;

    struct Moment {
        const char* name;
        StateArray values;
    };
    // The moments of a tensor from `position` of the unit on; see at().
    std::vector<Moment> of(size_t unit, const ParameterTensor& tensor, size_t position) const;
    std::vector<Moment> all() const;

private:
    struct Kept {
        const char* name;
        std::vector<ShardLayout::Part> regions;
        std::vector<size_t> index;  // where each unit's part begins in `values`
        size_t count = 0;
        StateArray values = {};
    };

    const ShardLayout layout_;
    Arena arena_;
    std::deque<Kept> kept_;  // a deque, because the arena knows the addresses of its pointers
};

// ---- offloaded state ------------------------------------------------------------------------------------------------

// Passes masters and moments to the optimizer. With --offload optimizer they are in host memory, and slices of them
// pass through a ring of device memory. Three streams work at the same time, each on a different slice:
//
//   copy in     slice 2   slice 3   slice 4
//   update      slice 1   slice 2   slice 3
//   copy back   slice 0   slice 1   slice 2
//
// Copies in wait only for room in the ring, so the first slices arrive during the last backward pass. All others follow
// the norm of the gradients, without which no weight can be updated.
class StateRing {
public:
    static constexpr size_t kSlots = 3, kMostArrays = 3;
    static constexpr size_t kSliceElements = size_t{4} << 20;

    // Slices have at most this many elements, a multiple of 64.
    explicit StateRing(const ShardLayout& layout, size_t slice_elements = kSliceElements);

    size_t bytes() const { return arena_.bytes(); }  // 0 if the state is in device memory
    void allocate(stream_t stream);
    // Call after work on `stream` that sets masters or moments in host memory: the next step's copies wait for it.
    void state_is_set(stream_t stream) {
        if (complete_) record(complete_, stream);
    }

    // Elements [begin, begin + count) of a range, with the device addresses of its arrays there.
    struct Slice {
        size_t begin, count;
        std::array<StateArray, kMostArrays> arrays;
        const StateArray& operator[](size_t array) const { return arrays[array]; }
        // How many of the range's first `n` elements are here.
        size_t of_first(size_t n) const { return std::clamp(n, begin, begin + count) - begin; }
    };
    // Calls update(slice) for consecutive slices of `count` elements of the arrays, of which one may be empty. Its work
    // on `stream` may read and write the slice's arrays.
    using Arrays = std::initializer_list<StateArray>;
    template <class Update>
    void update(Arrays arrays, size_t count, stream_t stream, Update&& update);
    // Call at the end of a step: later work of the stream sees the updated state.
    void finish(stream_t stream);

    // The streams of copies, for profiles; nullptr if the state is in device memory.
    stream_t to_device() const { return to_device_; }
    stream_t to_host() const { return to_host_; }

private:
    struct Slot {
        char* memory = nullptr;   // for the values of kMostArrays arrays
        float* scales = nullptr;  // for their scales
        OwnedEvent arrived, updated, free;
    };
    Slice bring(Arrays arrays, size_t begin, size_t count, stream_t stream);
    void send_back(Arrays arrays, const Slice& slice, stream_t stream);

    const bool offloaded_;
    size_t slice_elements_ = 0;
    Arena arena_{MemoryKind::workspace};
    std::array<Slot, kSlots> slots_;
    size_t next_ = 0;  // slices of this step so far
    OwnedStream to_device_, to_host_;
    OwnedEvent complete_;  // the state in host memory is that of the previous step, or was set since
};

template <class Update>
void StateRing::update(Arrays arrays, size_t count, stream_t stream, Update&& update) {
    if (!offloaded_) {
        Slice all{0, count, {}};
        std::copy(arrays.begin(), arrays.end(), all.arrays.begin());
        return update(all);
    }
    for (size_t begin = 0; begin < count; begin += slice_elements_) {
        const Slice slice = bring(arrays, begin, std::min(slice_elements_, count - begin), stream);
        update(slice);
        send_back(arrays, slice, stream);
    }
}

}  // namespace llmc
