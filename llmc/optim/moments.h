// What an optimizer keeps of the parameters beside their masters: arrays by name ("m", "v"), each over a region of
// every unit, and on each rank over its slices of these.
#pragma once
#include <deque>
#include <vector>

#include "llmc/shard/arena.h"
#include "llmc/shard/layout.h"

namespace llmc {

class OptimizerMoments {
public:
    explicit OptimizerMoments(const ShardLayout& layout) : layout_(layout) {}

    // `regions`: of each unit, between tensors. Before allocate(). Returns the moment's index.
    size_t add(const char* name, std::vector<ShardLayout::Part> regions);
    size_t add_everywhere(const char* name);

    size_t bytes() const { return arena_.bytes(); }  // the same on every rank
    void allocate(stream_t stream);                  // they start at 0

    // Where a moment of an element is that this rank holds; `position` counts in the unit.
    float* at(size_t moment, size_t unit, size_t position) const;

    struct Moment {
        const char* name;
        float* values;
    };
    // Those that are kept of a tensor, from its element at `position` of the unit on, which this rank holds.
    std::vector<Moment> of(size_t unit, const ParameterTensor& tensor, size_t position) const;
    std::vector<Moment> all() const;

private:
    struct Kept {
        const char* name;
        std::vector<ShardLayout::Part> regions;
        std::vector<size_t> index;  // of units' parts in `values`
        size_t count = 0;
        float* values = nullptr;
    };

    const ShardLayout layout_;
    Arena arena_{MemoryKind::optimizer};
    std::deque<Kept> kept_;  // the arena knows where their pointers are
};

}  // namespace llmc
