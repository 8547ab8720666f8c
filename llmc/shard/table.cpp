// Offsets and padding of the parameters in their units. See table.h.
#include "llmc/shard/table.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/device/math.cuh"

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

ParameterTable::ParameterTable(std::vector<Unit> units, int world, size_t alignment) : units_(std::move(units)) {
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

}  // namespace llmc
