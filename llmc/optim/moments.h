// The optimizer's moments: arrays with names ("m", "v"), each over a region of every unit. A rank holds the part of
// them that belongs to its slices.
#pragma once
#include <deque>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/optim/config.h"
#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

class OptimizerMoments {
public:
    explicit OptimizerMoments(const ShardLayout& layout) : layout_(layout), arena_(layout.state_memory()) {}

    // Adds a moment before allocate() and returns its index. `regions` gives a region of each unit, which begins and
    // ends between tensors. Several moments of one name are the same moment for different regions.
    size_t add(const char* name, std::vector<ShardLayout::Part> regions, StateFormat format = StateFormat::fp32);
    size_t add_everywhere(const char* name, StateFormat format = StateFormat::fp32);

    size_t bytes() const { return arena_.bytes(); }  // the same on every rank
    void allocate(stream_t stream);                  // moments start at 0

    // A moment from the element at `position` in the unit on. If this rank holds none of the unit's region, nobody may
    // read or write there.
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

}  // namespace llmc
