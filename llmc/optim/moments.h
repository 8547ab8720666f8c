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
    size_t add(const char* name, std::vector<ShardLayout::Part> regions, MomentFormat format = MomentFormat::fp32);
    size_t add_everywhere(const char* name, MomentFormat format = MomentFormat::fp32);

    size_t bytes() const { return arena_.bytes(); }  // the same on every rank
    void allocate(stream_t stream);                  // moments start at 0

    // Address of the moment of the element at `position` in the unit; this rank must hold it. T is float or bf16,
    // matching the moment's format.
    template <class T>
    T* at(size_t moment, size_t unit, size_t position) const {
        if (sizeof(T) != bytes_of(kept_[moment].format))
            throw Error(ExitCode::failure, "moment {} has another format", kept_[moment].name);
        return reinterpret_cast<T*>(place(moment, unit, position));
    }

    struct Moment {
        const char* name;
        void* values;
        MomentFormat format;
    };
    // The moments of a tensor from `position` of the unit on, which this rank must hold.
    std::vector<Moment> of(size_t unit, const ParameterTensor& tensor, size_t position) const;
    std::vector<Moment> all() const;

private:
    struct Kept {
        const char* name;
        std::vector<ShardLayout::Part> regions;
        std::vector<size_t> index;  // where each unit's part begins in `values`
        MomentFormat format;
        size_t count = 0;
        char* values = nullptr;
    };
    char* place(size_t moment, size_t unit, size_t position) const;

    const ShardLayout layout_;
    Arena arena_;
    std::deque<Kept> kept_;  // a deque, because the arena knows the addresses of its pointers
};

}  // namespace llmc
