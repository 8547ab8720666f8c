// What an optimizer keeps of the parameters beside their masters: arrays by name ("m", "v"), each over a region of
// every unit, and on each rank over its slices of these.
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
    explicit OptimizerMoments(const ShardLayout& layout) : layout_(layout) {}

    // `regions`: of each unit, between tensors. Before allocate(). Returns the moment's index. Several of one name are
    // that moment of different regions.
    size_t add(const char* name, std::vector<ShardLayout::Part> regions, MomentFormat format = MomentFormat::fp32);
    size_t add_everywhere(const char* name, MomentFormat format = MomentFormat::fp32);

    size_t bytes() const { return arena_.bytes(); }  // the same on every rank
    void allocate(stream_t stream);                  // they start at 0

    // Where a moment of an element is that this rank holds; `position` counts in the unit. T: float or bf16, as its
    // format is.
    template <class T>
    T* at(size_t moment, size_t unit, size_t position) const {
        if (sizeof(T) != bytes_of(kept_[moment].format))
            throw Error(ExitCode::failure, strprintf("moment %s has another format", kept_[moment].name));
        return reinterpret_cast<T*>(place(moment, unit, position));
    }

    struct Moment {
        const char* name;
        void* values;
        MomentFormat format;
    };
    // Those that are kept of a tensor, from its element at `position` of the unit on, which this rank holds.
    std::vector<Moment> of(size_t unit, const ParameterTensor& tensor, size_t position) const;
    std::vector<Moment> all() const;

private:
    struct Kept {
        const char* name;
        std::vector<ShardLayout::Part> regions;
        std::vector<size_t> index;  // of units' parts in `values`
        MomentFormat format;
        size_t count = 0;
        char* values = nullptr;
    };
    char* place(size_t moment, size_t unit, size_t position) const;

    const ShardLayout layout_;
    Arena arena_{MemoryKind::optimizer};
    std::deque<Kept> kept_;  // the arena knows where their pointers are
};

}  // namespace llmc
