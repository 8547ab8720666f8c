// The model's parameters as a list of units (embedding, each block, final norm). A unit's parameters are gathered,
// reduced and updated together. A unit is one flat index space, which master weights, moments and gradients share.
// Working copies leave out the tensors that have none (Unit::copy_index).
//
// Inside a unit the tensors with weight decay come first. In any range of the unit, elements with decay then precede
// those without, and one kernel launch updates the range (Weights::ranges). A unit is padded so that every rank owns an
// equal, aligned slice.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace llmc {

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
    bool copied = true;  // has a working copy; false if only FP8 codes of it are ever read
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
    size_t count_ = 0, copies_ = 0, parameters_ = 0;
};

}  // namespace llmc
