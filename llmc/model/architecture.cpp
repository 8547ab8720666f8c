// Fills the table of a model's tensors, and says how each is initialised.
#include "llmc/model/architecture.h"

#include <cmath>

#include "llmc/kernels/initial_values.h"
#include "llmc/model/config.h"

namespace llmc {

static uint64_t hash_name(const std::string& name) {
    uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return h;
}

// Tensors with weight decay come first, as ParameterTable requires.
static Unit unit_of(const std::string& name, const std::string& prefix, const std::vector<TensorRow>& rows) {
    Unit unit;
    unit.name = name;
    for (const bool decay : {true, false})
        for (const TensorRow& row : rows) {
            if (row.is_matrix() != decay) continue;
            ParameterTensor tensor{prefix + row.name, {std::max(row.rows, row.padded_rows)}, decay};
            if (row.is_matrix()) tensor.shape.push_back(row.columns);
            tensor.matrix_rows = row.matrices();
            if (!row.layer().empty()) tensor.layer = prefix + row.layer();
            unit.tensors.push_back(tensor);
        }
    return unit;
}

std::string TensorRow::layer() const {
    const std::string ending = ".weight";
    return is_matrix() && name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

std::vector<int> TensorRow::matrices() const {
    std::vector<int> rows_of = matrix_rows;
    if (rows_of.empty() && is_matrix())
        for (const HfPart& part : hf_parts) rows_of.push_back(part.rows);
    return rows_of;
}

int64_t ModelTable::block_matrix_parameters() const {
    int64_t sum = 0;
    for (const TensorRow& row : block) sum += row.is_matrix() ? row.count() : 0;
    return sum;
}

std::string block_prefix(int layer) { return "h." + std::to_string(layer) + "."; }

size_t final_unit(const ModelConfig& config) { return static_cast<size_t>(config.layers) + 1; }

std::vector<Unit> parameter_units(const ModelConfig& config) {
    const ModelTable table = config.table();
    std::vector<Unit> units{unit_of("embedding", "", table.embedding)};
    for (int l = 0; l < config.layers; l++)
        units.push_back(unit_of("block " + std::to_string(l), block_prefix(l), table.block));
    if (config.tied) units.front().tensors.front().layer = kHeadLayer;
    const bool has_head =
        std::any_of(table.final.begin(), table.final.end(), [](const TensorRow& row) { return row.is_matrix(); });
    units.push_back(unit_of(has_head ? "final norm and head" : "final norm", "", table.final));
    return units;
}

void choose_fp8_weights(std::vector<Unit>& units, const Fp8Layers& layers, bool from_copies, bool may_leave) {
    for (Unit& unit : units)
        for (ParameterTensor& tensor : unit.tensors) {
            if (!layers.contains(tensor.layer)) continue;
            tensor.forward_codes = layers.forward && tensor.layer != kHeadLayer;
            const bool copied = !tensor.forward_codes || from_copies;
            tensor.codes = copied ? CodesFrom::working_copy : CodesFrom::masters;
            tensor.copied = copied || may_leave;
        }
}

std::vector<std::string> linear_names(const ModelConfig& config) {
    std::vector<std::string> names;
    for (const TensorRow& row : config.table().block)
        if (row.is_matrix()) names.push_back(row.layer());
    return names;
}

std::vector<TensorRow> all_tensors(const ModelConfig& config) {
    const ModelTable table = config.table();
    std::vector<TensorRow> all = table.embedding;
    for (int l = 0; l < config.layers; l++)
        for (TensorRow row : table.block) {
            row.name = block_prefix(l) + row.name;
            const std::string hf_prefix = table.hf_blocks + std::to_string(l) + ".";
            row.hf_name = hf_prefix + row.hf_name;
            for (HfPart& part : row.hf_parts) part.name = hf_prefix + part.name;
            row.block = l;
            all.push_back(row);
        }
    all.insert(all.end(), table.final.begin(), table.final.end());
    return all;
}

double initial_deviation(const ModelConfig& config, const TensorRow& row) {
    switch (row.init) {
        case Init::zeros:
        case Init::ones:
            return 0;
        case Init::normal:
            return 0.02;
        case Init::residual:
            return 0.02f / std::sqrt(2.0f * static_cast<float>(config.layers));
        case Init::unit:
            return 1;
        case Init::fan_in:
            return std::sqrt(0.33 / row.columns);
        case Init::small:
            return 0.001;
    }
    return 0;
}

InitialValues initial_values(const ModelConfig& config, const TensorRow& row, uint64_t seed) {
    return {.key = mix64((seed ^ hash_name(row.name)) + kGolden64),
            .deviation = static_cast<float>(initial_deviation(config, row)),
            .constant = row.init == Init::ones ? 1.0f : 0.0f,
            .count = static_cast<size_t>(row.count())};
}

}  // namespace llmc
