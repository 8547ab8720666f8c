// The layout of a model's parameters: the table of its tensors, and which rank has which part of them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/kernels/fp8_state.h"
#include "llmc/kernels/state_array.h"

namespace llmc {

// ---- units and tensors ----------------------------------------------------------------------------------------------
// The model's parameters as a list of units (embedding, each block, final norm). A unit's parameters are gathered,
// reduced and updated together. A unit is one flat index space, which master weights, moments and gradients share.
// Working copies leave out the tensors that have none (Unit::copy_index).
//
// Inside a unit the tensors with weight decay come first. In any range of the unit, elements with decay then precede
// those without, and one kernel launch updates the range (Weights::ranges). A unit is padded so that every rank owns an
// equal, aligned slice.

constexpr size_t kSliceAlignment = 64;  // elements: every slice starts on 128 bytes in bf16, 256 in float

// The source of a weight's FP8 codes. If codes come from the masters, the working copy is only read once the layer has
// left FP8.
enum class CodesFrom {
    nothing,  // no codes: its layer is not in FP8, or it belongs to no linear layer
    masters,
    working_copy,
};

struct ParameterTensor {
    std::string name;
    std::vector<int> shape;             // (rows, columns) or (length)
    bool decay;                         // subject to weight decay: true for matrices
    size_t offset = 0;                  // elements from the start of its unit
    std::vector<int> matrix_rows = {};  // rows of each matrix, for a tensor of several below each other; else empty
    std::string layer = {};             // name of the linear layer whose weight this is, such as "h.3.fc"; else ""
    CodesFrom codes = CodesFrom::nothing;
    bool forward_codes = true;  // with codes: forward reads them, too; false: only the gradients' products do
    bool copied = true;         // has a working copy; false if only FP8 codes of it are ever read
    size_t count() const;
};

struct Unit {
    std::string name;
    std::vector<ParameterTensor> tensors;
    size_t begin = 0;        // elements before this unit, in arrays that hold all units
    size_t count = 0;        // with padding
    size_t decay_count = 0;  // number of elements with weight decay, which come first

    // Working copies lie behind each other without the tensors that have none. This is the place of an element there,
    // relative to the unit's first.
    size_t copy_index(size_t element) const;
    size_t copy_begin = 0, copy_count = 0;  // like begin and count, in an array of all working copies
};

class ParameterTable {
public:
    // Lays out the units for `world` ranks. Tensors of a unit keep their order; those with decay must come first. Each
    // begins at a multiple of `alignment` elements. The least is 16 bytes in BF16, which vector loads and cuBLASLt
    // need.
    static constexpr size_t kTensorAlignment = 8;
    ParameterTable(std::vector<Unit> units, int world, size_t alignment = kTensorAlignment);

    const std::vector<Unit>& units() const { return units_; }
    const Unit& unit(size_t i) const { return units_[i]; }
    size_t alignment() const { return alignment_; }    // of tensors, in elements
    size_t count() const { return count_; }            // elements, with padding
    size_t copies() const { return copies_; }          // elements of the working copies, with padding
    size_t parameters() const { return parameters_; }  // elements, without padding

    struct Place {
        size_t unit, tensor;
    };
    // The tensor's place. find() throws for an unknown name, look_up() returns nothing.
    Place find(const std::string& name) const;
    std::optional<Place> look_up(const std::string& name) const;
    const ParameterTensor& tensor(const Place& place) const { return units_[place.unit].tensors[place.tensor]; }

private:
    std::vector<Unit> units_;
    size_t alignment_, count_ = 0, copies_ = 0, parameters_ = 0;
};

// ---- slices ---------------------------------------------------------------------------------------------------------
// Which rank has which parameters, by --zero (ZeRO, arXiv 1910.02054; stage 3 is FSDP, arXiv 2304.11277):
//
//   stage   master, m, v   gradients                    working weights
//     0     everywhere     everywhere, summed           everywhere
//     1     a slice        everywhere, a slice summed   everywhere, gathered after every update
//     2     a slice        a slice, summed every        everywhere
//     3     a slice        micro-step                   a slice; a unit is gathered before each use
//
// Weights (weights.h) and Gradients (gradients.h) hold and move the arrays that are described here.
//
// Hybrid sharding (--shard-within n; HSDP, arXiv 2304.11277 section 3.2.2): the slices above are distributed over n
// neighbouring ranks, and every such group has the same slices. Weights never leave the group. Gradients do once per
// step, after the last micro-step, when the groups' sums are summed.

struct Sharding {
    int stage = 0;                              // --zero; always 0 with one rank
    int within = 0;                             // --shard-within: neighbouring ranks that share slices; 0: all
    Wire wire = Wire::fp32;                     // --reduce: the format in which gradients travel
    StateFormat gradients = StateFormat::fp32;  // --gradients: the format of the sums of a step's gradients
    bool offload_state = false;                 // --offload optimizer: masters and moments are in host memory
};

// Can be copied: Weights and Gradients each have one. The table must outlive them.
class ShardLayout {
public:
    // `table` must be laid out for comm.world() ranks.
    ShardLayout(const ParameterTable& table, const Comm& comm, const Sharding& sharding = {});

    const ParameterTable& table() const { return *table_; }
    const Comm& comm() const { return comm_; }
    const Sharding& sharding() const { return sharding_; }
    int stage() const { return sharding_.stage; }  // 0 on one rank
    bool is_sliced() const { return stage() > 0; }
    // The memory of masters and moments.
    MemoryKind state_memory() const { return sharding_.offload_state ? MemoryKind::offloaded : MemoryKind::optimizer; }
    // True if a unit's weights stay whole on this rank after Weights::release().
    bool keeps_whole_weights() const { return stage() < 3; }
    // True if the model adds gradients over micro-steps in place. Otherwise every micro-step writes its own.
    bool accumulates() const {
        return stage() < 2 && comm_.reduce_order() == ReduceOrder::any && sharding_.gradients == StateFormat::fp32;
    }

    size_t units() const { return table().units().size(); }
    // Number of ranks that share one set of slices (all ranks in stage 0), and number of such groups.
    size_t group_size() const { return group_size_; }
    size_t groups() const { return static_cast<size_t>(comm_.world()) / group_size_; }
    // The format in which sums travel between groups. It is never FP8, because those casts would need residuals too.
    Wire wire_between_groups() const { return sharding_.wire == Wire::fp8 ? Wire::bf16 : sharding_.wire; }

    struct Part {
        size_t begin, count;  // elements of the unit
        size_t end() const { return begin + count; }
    };
    // The part of a unit that this rank keeps and updates: its slice, or the whole unit.
    Part slice(size_t unit) const {
        if (!is_sliced()) return {0, table().unit(unit).count};
        return summed(unit);
    }
    // The part of a unit's gradient that this rank sums for its group.
    Part summed(size_t unit) const {
        const size_t count = table().unit(unit).count / group_size_;
        return {count * (static_cast<size_t>(comm_.rank()) % group_size_), count};
    }
    // This rank's part of a unit in every stage, with groups too: the shares of all ranks together are the unit.
    Part share(size_t unit) const {
        const Part whole = summed(unit);
        const size_t count = whole.count / groups();
        return {whole.begin + count * (static_cast<size_t>(comm_.rank()) / group_size_), count};
    }
    // The overlap of a part with another part, or with a tensor, of the same unit. The count is 0 if there is none.
    static Part overlap(const Part& part, const Part& other) {
        const size_t begin = std::clamp(other.begin, part.begin, part.end());
        return {begin, std::clamp(other.end(), part.begin, part.end()) - begin};
    }
    static Part overlap(const Part& part, const ParameterTensor& tensor) {
        return overlap(part, Part{tensor.offset, tensor.count()});
    }
    // For arrays of this rank's slices of all units: where a unit's slice begins, and the length with padding.
    size_t slice_index(size_t unit) const { return table().unit(unit).begin / slices(); }
    size_t slice_total() const { return table().count() / slices(); }

    // If ranks keep slices, whole units live in four buffers. The first and the last unit have one each, because the
    // model returns to them (the embedding may also be the head). The blocks in between alternate between the other
    // two.
    static constexpr size_t kSlots = 4;
    size_t slot_of(size_t unit) const;
    size_t slot_count(size_t slot) const;  // elements
    static constexpr size_t kNoUnit = ~size_t{0};
    std::string name_of(size_t unit) const { return unit == kNoUnit ? "nothing" : table().unit(unit).name; }

    // A whole tensor on the host, from the parts of its unit on the ranks of `group`. `part` is this rank's, on the
    // device. Ranks send only what they have of this tensor. A collective.
    std::vector<float> download(const Comm& group, const StateArray& part, size_t unit, size_t tensor,
                                stream_t stream) const;

private:
    size_t slices() const { return is_sliced() ? group_size_ : 1; }  // number of slices of a unit

    const ParameterTable* table_;
    Comm comm_;
    Sharding sharding_;
    size_t group_size_;
};

// Which weights are only read as FP8 codes, and how they cut the units: this rank's slice of a unit into ranges that
// the optimizer updates one after the other, and the unit into pieces that travel next to the codes.
class UnitCuts {
public:
    explicit UnitCuts(const ShardLayout& layout);  // the layout must outlive it

    // Each tensor in FP8 is one range, and so are the elements between two such tensors.
    struct Range {
        size_t begin, count, decay_count;  // elements of the slice
        Fp8State* fp8;                     // if set, the optimizer raises its amax and writes no working copy
    };
    const std::vector<Range>& ranges(size_t unit) const { return units_[unit].ranges; }
    // Part of a unit with FP8 codes that is not in FP8 and lies on one rank.
    struct Piece {
        int rank;
        size_t begin, count;  // elements of the unit
    };
    const std::vector<Piece>& pieces(size_t unit) const { return units_[unit].pieces; }

    // True if FP8 codes travel: for some tensor of the unit, or of any unit. Only for sliced weights.
    bool codes_travel(size_t unit) const {
        const std::vector<Tensor>& tensors = units_[unit].tensors;
        return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.travels; });
    }
    bool codes_travel() const {
        bool any = false;
        for (size_t u = 0; u < units_.size(); u++) any |= codes_travel(u);
        return any;
    }
    Fp8State* state(size_t unit, size_t tensor) const { return units_[unit].tensors[tensor].state; }  // nullptr: BF16

    // See Weights.
    void keep_in_fp8(size_t unit, size_t tensor, Fp8State* state);
    void leave_fp8(size_t unit, size_t tensor);

private:
    struct Tensor {
        bool travels;               // as FP8 codes
        Fp8State* state = nullptr;  // set while the tensor is in FP8
    };
    struct Cut {
        std::vector<Tensor> tensors;
        std::vector<Range> ranges;
        std::vector<Piece> pieces;
    };
    void cut_into_ranges(size_t unit);
    void cut_into_pieces(size_t unit);

    const ShardLayout& layout_;
    std::vector<Cut> units_;
};

}  // namespace llmc
