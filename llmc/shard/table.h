// The model's parameters as a list of units (embedding, each block, final norm): what is gathered, reduced and updated
// together. A unit is one flat index space; master weights, moments, gradients and working copies all use its indices.
//
// Inside a unit the tensors with weight decay come first, so that any range of it has them in front, and one kernel
// launch updates it (Weights::ranges: a slice is one range, but for its tensors in FP8). A unit is padded so that
// every rank owns an equal, aligned slice.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace llmc {

struct ParameterTensor {
    std::string name;
    std::vector<int> shape;             // (rows, columns) or (length)
    bool decay;                         // subject to weight decay: matrices
    size_t offset = 0;                  // elements from the start of its unit
    std::vector<int> matrix_rows = {};  // of the matrices that it consists of, one below the other; empty: it is one
    size_t count() const;
};

struct Unit {
    std::string name;
    std::vector<ParameterTensor> tensors;
    size_t begin = 0;        // elements before this unit, in arrays that hold all units
    size_t count = 0;        // with padding
    size_t decay_count = 0;  // the first so many have weight decay
};

class ParameterTable {
public:
    // Lays out the units for `world` ranks. Tensors of a unit keep their order; those with decay must come first.
    ParameterTable(std::vector<Unit> units, int world);

    const std::vector<Unit>& units() const { return units_; }
    const Unit& unit(size_t i) const { return units_[i]; }
    size_t count() const { return count_; }            // elements with padding
    size_t parameters() const { return parameters_; }  // without

    struct Place {
        size_t unit, tensor;
    };
    // Where the tensor of this name is; throws for an unknown name.
    Place find(const std::string& name) const;
    std::optional<Place> look_up(const std::string& name) const;  // nothing for an unknown name
    const ParameterTensor& tensor(const Place& place) const { return units_[place.unit].tensors[place.tensor]; }

private:
    std::vector<Unit> units_;
    size_t count_ = 0, parameters_ = 0;
};

}  // namespace llmc
