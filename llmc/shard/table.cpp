// Offsets and padding of the parameters in their units. See table.h.
#include "llmc/shard/table.h"

#include "llmc/base/error.h"

namespace llmc {
namespace {
constexpr size_t kSliceAlignment = 64;  // elements: every slice starts on 128 bytes in bf16, 256 in float
constexpr size_t kTensorAlignment = 8;  // elements: 16 bytes in bf16, which vector loads and cuBLASLt need

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
}  // namespace

size_t ParameterTensor::count() const {
    size_t n = 1;
    for (int extent : shape) n *= static_cast<size_t>(extent);
    return n;
}

ParameterTable::ParameterTable(std::vector<Unit> units, int world) : units_(std::move(units)) {
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
            at += round_up(tensor.count(), kTensorAlignment);
            parameters_ += tensor.count();
        }
        if (decaying) unit.decay_count = at;
        unit.count = round_up(at, kSliceAlignment * world);
        count_ += unit.count;
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
