// Offsets and padding of the parameters in their units; slices, shares, buffers and cuts of units; and the checks of
// --zero and --shard-within (layout.h).
#include "llmc/shard/layout.h"

#include "llmc/shard/state_values.h"

namespace llmc {

size_t ParameterTensor::count() const {
    size_t n = 1;
    for (int extent : shape) n *= static_cast<size_t>(extent);
    return n;
}

size_t Unit::copy_index(size_t element) const {
    size_t without = 0;
    for (const ParameterTensor& tensor : tensors)
        if (!tensor.copied)
            without += std::clamp(element, tensor.offset, tensor.offset + tensor.count()) - tensor.offset;
    return element - without;
}

ParameterTable::ParameterTable(std::vector<Unit> units, int world, size_t alignment)
    : units_(std::move(units)), alignment_(alignment) {
    for (Unit& unit : units_) {
        unit.begin = count_;
        size_t at = 0;
        bool decaying = true;
        for (ParameterTensor& tensor : unit.tensors) {
            if (tensor.decay && !decaying)
                throw Error(ExitCode::failure, "unit " + unit.name + ": tensor " + tensor.name +
                                                   " has weight decay but stands behind one that has none");
            if (!tensor.decay && decaying) unit.decay_count = at;
            decaying = tensor.decay;
            tensor.offset = at;
            at += round_up(tensor.count(), alignment);
            parameters_ += tensor.count();
        }
        if (decaying) unit.decay_count = at;
        unit.count = round_up(at, kSliceAlignment * static_cast<size_t>(world));
        count_ += unit.count;
        unit.copy_begin = copies_;
        unit.copy_count = round_up(unit.copy_index(unit.count), kSliceAlignment);
        copies_ += unit.copy_count;
    }
}

std::optional<ParameterTable::Place> ParameterTable::look_up(const std::string& name) const {
    for (size_t u = 0; u < units_.size(); u++)
        for (size_t t = 0; t < units_[u].tensors.size(); t++)
            if (units_[u].tensors[t].name == name) return Place{u, t};
    return std::nullopt;
}

ParameterTable::Place ParameterTable::find(const std::string& name) const {
    if (const std::optional<Place> place = look_up(name)) return *place;
    throw Error(ExitCode::failure, "no parameter tensor is called " + name);
}

static int stage_of(const Sharding& sharding, const Comm& comm) {
    if (sharding.stage < 0 || sharding.stage > 3) refuse("--zero {}: expected 0, 1, 2 or 3", sharding.stage);
    return comm.world() > 1 ? sharding.stage : 0;
}

static int group_size_of(const Sharding& sharding, int world) {
    if (sharding.within == 0) return world;
    if (sharding.within < 1 || world % sharding.within != 0)
        refuse("--shard-within {}: {} {} cannot be divided into groups of that size", sharding.within, world,
               world == 1 ? "rank" : "ranks");
    if (sharding.stage == 0 && world > 1)
        refuse("--shard-within {}: --zero 0 shards nothing; use --zero 1, 2 or 3", sharding.within);
    if (sharding.gradients != StateFormat::fp32 && sharding.within < world)
        refuse(
            "--shard-within {} sums the sums of groups, and --gradients bf16 would round them once more; leave "
            "one of them out",
            sharding.within);
    return sharding.within;
}

ShardLayout::ShardLayout(const ParameterTable& table, const Comm& comm, const Sharding& sharding)
    : table_(&table), comm_(comm), sharding_(sharding) {
    sharding_.stage = stage_of(sharding, comm);
    group_size_ = static_cast<size_t>(group_size_of(sharding_, comm.world()));
    for (const Unit& unit : table.units())
        if (unit.count % static_cast<size_t>(comm.world()) != 0)
            throw Error(ExitCode::failure, "the parameter table was made for another number of ranks");
}

size_t ShardLayout::slot_of(size_t unit) const { return unit == 0 ? 0 : unit + 1 == units() ? 1 : 2 + unit % 2; }

size_t ShardLayout::slot_count(size_t slot) const {
    size_t count = 0;
    for (size_t u = 0; u < units(); u++)
        if (slot_of(u) == slot) count = std::max(count, table().unit(u).count);
    return count;
}

std::vector<float> ShardLayout::download(const Comm& group, const StateArray& part, size_t unit, size_t tensor,
                                         stream_t stream) const {
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    const size_t count = table().unit(unit).count / static_cast<size_t>(group.world());
    std::vector<float> values(info.count());
    for (int r = 0; r < group.world(); r++) {
        const size_t first = count * static_cast<size_t>(r);
        const Part share = overlap(Part{first, count}, info);
        if (share.count == 0) continue;
        float* const to = values.data() + share.begin - info.offset;
        if (r == group.rank()) std::ranges::copy(read_state(part.from(share.begin - first), share.count, stream), to);
        group.host_broadcast(to, share.count * sizeof(float), r);
    }
    return values;
}

UnitCuts::UnitCuts(const ShardLayout& layout) : layout_(layout), units_(layout.units()) {
    for (size_t u = 0; u < layout.units(); u++) {
        for (const ParameterTensor& tensor : layout.table().unit(u).tensors)
            units_[u].tensors.push_back({layout.is_sliced() && tensor.codes == CodesFrom::masters});
        cut_into_ranges(u);
        cut_into_pieces(u);
    }
}

void UnitCuts::keep_in_fp8(size_t unit, size_t tensor, Fp8State* state) {
    Tensor& kept = units_[unit].tensors[tensor];
    if (layout_.is_sliced() && !kept.travels)
        throw Error(ExitCode::failure, "tensor {} was not planned to travel as FP8",
                    layout_.table().unit(unit).tensors[tensor].name);
    kept.state = state;
    cut_into_ranges(unit);
}

void UnitCuts::leave_fp8(size_t unit, size_t tensor) {
    units_[unit].tensors[tensor].state = nullptr;
    units_[unit].tensors[tensor].travels = false;
    cut_into_ranges(unit);
    cut_into_pieces(unit);
}

void UnitCuts::cut_into_ranges(size_t unit) {
    const Unit& u = layout_.table().unit(unit);
    const std::vector<Tensor>& tensors = units_[unit].tensors;
    std::vector<Range>& ranges = units_[unit].ranges;
    ranges.clear();
    const ShardLayout::Part slice = layout_.slice(unit);
    // Adds those of the unit's elements [from, to) that are in the slice.
    const auto add = [&](size_t from, size_t to, Fp8State* fp8) {
        const ShardLayout::Part part = ShardLayout::overlap(slice, {from, to - from});
        if (part.count == 0) return;
        const size_t decayed = std::clamp(u.decay_count, part.begin, part.end()) - part.begin;
        ranges.push_back({part.begin - slice.begin, part.count, decayed, fp8});
    };
    size_t at = 0;
    for (size_t t = 0; t < tensors.size(); t++) {
        if (!tensors[t].state) continue;
        const ParameterTensor& info = u.tensors[t];
        add(at, info.offset, nullptr);
        at = info.offset + info.count();
        add(info.offset, at, tensors[t].state);
    }
    add(at, u.count, nullptr);
}

void UnitCuts::cut_into_pieces(size_t unit) {
    const Unit& u = layout_.table().unit(unit);
    const std::vector<Tensor>& tensors = units_[unit].tensors;
    std::vector<Piece>& pieces = units_[unit].pieces;
    pieces.clear();
    if (!codes_travel(unit)) return;
    const size_t count = layout_.slice(unit).count;
    const auto add = [&](size_t from, size_t to) {  // cut where slices end
        for (size_t at = from; at < to;) {
            const size_t end = std::min(to, (at / count + 1) * count);
            pieces.push_back({static_cast<int>(at / count), at, end - at});
            at = end;
        }
    };
    size_t at = 0;
    for (size_t t = 0; t < tensors.size(); t++) {
        if (!tensors[t].travels) continue;
        add(at, u.tensors[t].offset);
        at = u.tensors[t].offset + u.tensors[t].count();
    }
    add(at, u.count);
}

}  // namespace llmc
