// Slices, shares and buffers of units, and the checks of --zero and --shard-within. See layout.h.
#include "llmc/shard/layout.h"

#include <algorithm>

#include "llmc/shard/state_values.h"

namespace llmc {
namespace {

int stage_of(const Sharding& sharding, const Comm& comm) {
    if (sharding.stage < 0 || sharding.stage > 3)
        throw Error(ExitCode::bad_flags, "--zero {}: expected 0, 1, 2 or 3", sharding.stage);
    return comm.world() > 1 ? sharding.stage : 0;
}

int group_size_of(const Sharding& sharding, int world) {
    if (sharding.within == 0) return world;
    if (sharding.within < 1 || world % sharding.within != 0)
        throw Error(ExitCode::bad_flags, "--shard-within {}: {} {} cannot be divided into groups of that size",
                    sharding.within, world, world == 1 ? "rank" : "ranks");
    if (sharding.stage == 0 && world > 1)
        throw Error(ExitCode::bad_flags, "--shard-within {}: --zero 0 shards nothing; use --zero 1, 2 or 3",
                    sharding.within);
    if (sharding.gradients != StateFormat::fp32 && sharding.within < world)
        throw Error(ExitCode::bad_flags,
                    "--shard-within {} sums the sums of groups, and --gradients bf16 would round them once more; leave "
                    "one of them out",
                    sharding.within);
    return sharding.within;
}

}  // namespace

ShardLayout::ShardLayout(const ParameterTable& table, const Comm& comm, const Sharding& sharding)
    : table_(&table), comm_(comm), sharding_(sharding) {
    sharding_.stage = stage_of(sharding, comm);
    group_size_ = static_cast<size_t>(group_size_of(sharding_, comm.world()));
    for (const Unit& unit : table.units())
        if (unit.count % static_cast<size_t>(comm.world()) != 0)
            throw Error(ExitCode::failure, "the parameter table was made for another number of ranks");
}

ShardLayout::Part ShardLayout::slice(size_t unit) const {
    if (!is_sliced()) return {0, table().unit(unit).count};
    return summed(unit);
}

ShardLayout::Part ShardLayout::summed(size_t unit) const {
    const size_t count = table().unit(unit).count / group_size_;
    return {count * (static_cast<size_t>(comm_.rank()) % group_size_), count};
}

ShardLayout::Part ShardLayout::share(size_t unit) const {
    const Part whole = summed(unit);
    const size_t count = whole.count / groups();
    return {whole.begin + count * (static_cast<size_t>(comm_.rank()) / group_size_), count};
}

ShardLayout::Part ShardLayout::overlap(const Part& part, const Part& other) {
    const size_t begin = std::clamp(other.begin, part.begin, part.end());
    return {begin, std::clamp(other.end(), part.begin, part.end()) - begin};
}

ShardLayout::Part ShardLayout::overlap(const Part& part, const ParameterTensor& tensor) {
    return overlap(part, Part{tensor.offset, tensor.count()});
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
    const size_t count = table().unit(unit).count;
    const std::vector<float> mine = read_state(part, count / static_cast<size_t>(group.world()), stream);
    std::vector<float> all(count);
    group.host_all_gather(all.data(), mine.data(), mine.size() * sizeof(float));
    const ParameterTensor& info = table().unit(unit).tensors[tensor];
    const auto begin = all.begin() + static_cast<ptrdiff_t>(info.offset);
    return {begin, begin + static_cast<ptrdiff_t>(info.count())};
}

}  // namespace llmc
