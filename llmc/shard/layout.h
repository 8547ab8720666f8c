// Where the parameters are on the ranks, as --zero says (ZeRO, arXiv 1910.02054; stage 3 is FSDP, arXiv 2304.11277):
//
//   stage   master, m, v   gradients                    working weights
//     0     everywhere     everywhere, summed           everywhere
//     1     a slice        everywhere, a slice summed   everywhere, gathered after every update
//     2     a slice        a slice, summed every        everywhere
//     3     a slice        micro-step                   a slice; a unit is gathered before each use
//
// Weights (weights.h) and Gradients (gradients.h) hold what this describes, and move it.
//
// Hybrid sharding (--shard-within n; HSDP, arXiv 2304.11277 section 3.2.2): "all ranks" above are n neighbouring ones,
// and every such group has the same slices. Weights never leave the group; gradients do once a step, after the last
// micro-step, when the groups' sums are summed.
#pragma once
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/shard/table.h"

namespace llmc {

struct Sharding {
    int stage = 0;           // --zero; always 0 with one rank
    int within = 0;          // --shard-within: number of neighbouring ranks that share a set of slices; 0: all
    Wire wire = Wire::fp32;  // --reduce: the format in which gradients travel
};

// A value: Weights and Gradients each have a copy. The table has to outlive them.
class ShardLayout {
public:
    // `table` is laid out for comm.world() ranks.
    ShardLayout(const ParameterTable& table, const Comm& comm, const Sharding& sharding = {});

    const ParameterTable& table() const { return *table_; }
    const Comm& comm() const { return comm_; }
    const Sharding& sharding() const { return sharding_; }
    int stage() const { return sharding_.stage; }  // 0 on one rank
    bool is_sliced() const { return stage() > 0; }
    // Whether a unit's weights stay whole on this rank after Weights::release().
    bool keeps_whole_weights() const { return stage() < 3; }
    // Whether the model adds up gradients over micro-steps in place; otherwise every micro-step writes its own.
    bool accumulates() const { return stage() < 2 && comm_.reduce_order() == ReduceOrder::any; }

    size_t units() const { return table().units().size(); }
    // Ranks that share one set of slices (where everything is everywhere, all ranks), and how many such groups there
    // are.
    size_t group_size() const { return group_size_; }
    size_t groups() const { return static_cast<size_t>(comm_.world()) / group_size_; }
    // What groups' sums travel as: a cast to FP8 would need residuals of its own.
    Wire wire_between_groups() const { return sharding_.wire == Wire::fp8 ? Wire::bf16 : sharding_.wire; }

    struct Part {
        size_t begin, count;  // elements, in the unit
        size_t end() const { return begin + count; }
    };
    // What this rank keeps of a unit and updates: its slice, or all of it.
    Part slice(size_t unit) const;
    // What it sums up of a unit's gradient for its group.
    Part summed(size_t unit) const;
    // What it alone answers for, in every stage and with groups too: the shares of all ranks are the unit.
    Part share(size_t unit) const;
    // What of another part, or of a tensor, lies in a part of the same unit; a count of 0 where nothing does.
    static Part overlap(const Part& part, const Part& other);
    static Part overlap(const Part& part, const ParameterTensor& tensor);
    // Arrays that hold this rank's slices of all units: where a unit's begins, and elements of all, padding included.
    size_t slice_index(size_t unit) const { return table().unit(unit).begin / slices(); }
    size_t slice_total() const { return table().count() / slices(); }

    // Buffers for whole units where ranks keep slices: the first unit and the last have one each, because the model
    // comes back to them (the embedding is also the head), and the blocks between them take turns in two.
    static constexpr size_t kSlots = 4;
    size_t slot_of(size_t unit) const;
    size_t slot_count(size_t slot) const;  // elements
    static constexpr size_t kNoUnit = ~size_t{0};
    std::string name_of(size_t unit) const { return unit == kNoUnit ? "nothing" : table().unit(unit).name; }

    // A tensor from the parts of its unit that the ranks of `group` have: `part` is this rank's, on the device. A
    // collective.
    std::vector<float> download(const Comm& group, const float* part, size_t unit, size_t tensor,
                                stream_t stream) const;

private:
    size_t slices() const { return is_sliced() ? group_size_ : 1; }  // of a unit

    const ParameterTable* table_;
    Comm comm_;
    Sharding sharding_;
    size_t group_size_;
};

}  // namespace llmc
