// Plans, allocates and finds the optimizer's moments.
#include "llmc/optim/moments.h"

#include <algorithm>

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

}  // namespace llmc
