// Fills the table of a model's tensors, and writes their first values.
// build: per device, optimized
#include "llmc/model/model_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "llmc/device/math.cuh"
#include "llmc/model/config.h"

namespace llmc {
namespace {

uint64_t mix(uint64_t z) { return mix64(z + kGolden64); }

uint64_t hash_name(const std::string& name) {
    uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return h;
}

// Logarithm and cosine from additions and multiplications alone, so that every C library gives the same bits and loops
// vectorise. Their errors are a few units in the last place of a double, which rounding to float hides.
inline double logarithm(double u) {  // u is positive and normal
    constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcdull;
    const uint64_t bits = std::bit_cast<uint64_t>(u);
    const int64_t exponent = static_cast<int64_t>(bits - kRootOfHalf) >> 52;
    const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));  // 0.71 to 1.41
    const double s = (m - 1.0) / (m + 1.0), square = s * s;                                  // log(m) = 2 atanh(s)
    constexpr double c[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                            1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    double series = c[10] * square + c[9];
    series = (series * square + c[8]) * square + c[7];
    series = (series * square + c[6]) * square + c[5];
    series = (series * square + c[4]) * square + c[3];
    series = ((series * square + c[2]) * square + c[1]) * square + c[0];
    return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * series;
}
inline double cosine(uint32_t turn) {  // a full turn is 2^32
    const uint32_t quarter = (turn + (1u << 29)) >> 30;
    const double x = static_cast<double>(static_cast<int32_t>(turn - (quarter << 30))) * (0x1p-32 * 6.283185307179586);
    const double square = x * x;
    // Taylor's series: c[n] = 1 / n!.
    constexpr double c[] = {1.0,
                            1.0,
                            1.0 / 2,
                            1.0 / 6,
                            1.0 / 24,
                            1.0 / 120,
                            1.0 / 720,
                            1.0 / 5040,
                            1.0 / 40320,
                            1.0 / 362880,
                            1.0 / 3628800,
                            1.0 / 39916800,
                            1.0 / 479001600,
                            1.0 / 6227020800,
                            1.0 / 87178291200,
                            1.0 / 1307674368000,
                            1.0 / 20922789888000,
                            1.0 / 355687428096000};
    double cos = c[14] - c[16] * square, sin = c[15] - c[17] * square;
    cos = (c[10] - (c[12] - cos * square) * square), sin = (c[11] - (c[13] - sin * square) * square);
    cos = (c[6] - (c[8] - cos * square) * square), sin = (c[7] - (c[9] - sin * square) * square);
    cos = (c[2] - (c[4] - cos * square) * square), sin = (c[3] - (c[5] - sin * square) * square);
    cos = c[0] - cos * square, sin = c[1] - sin * square;
    // Selects and negates by bits, without a branch, so that the loop around it vectorises.
    const uint64_t odd = 0 - static_cast<uint64_t>(quarter & 1u);
    const uint64_t negative = static_cast<uint64_t>((quarter + 1u) >> 1 & 1u) << 63;
    const uint64_t value = (std::bit_cast<uint64_t>(sin * x) & odd) | (std::bit_cast<uint64_t>(cos) & ~odd);
    return std::bit_cast<double>(value ^ negative);
}

// A standard normal number for counter `i` of the stream `key` (Box-Muller on two 32-bit halves).
inline float normal(uint64_t key, uint64_t i) {
    const uint64_t bits = mix(key ^ mix(i));
    const double u = (static_cast<double>(static_cast<uint32_t>(bits >> 32)) + 0.5) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * logarithm(u)) * cosine(static_cast<uint32_t>(bits)));
}

// values[i] = the number of counter first + i, times deviation.
void fill_normal(float* values, uint64_t key, uint64_t first, size_t count, float deviation) {
    for (size_t i = 0; i < count; i++) values[i] = deviation * normal(key, first + i);
}

// Tensors with weight decay come first, as ParameterTable requires.
Unit unit_of(const std::string& name, const std::string& prefix, const std::vector<TensorRow>& rows) {
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

}  // namespace

std::string TensorRow::layer() const {
    const std::string ending = ".weight";
    return is_matrix() && name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

std::vector<int> TensorRow::matrices() const {
    std::vector<int> rows_of = matrix_rows;
    if (rows_of.empty())
        for (const HfPart& part : hf_parts) rows_of.push_back(part.rows);
    return rows_of;
}

int64_t ModelTable::block_parameters() const {
    int64_t sum = 0;
    for (const TensorRow& row : block) sum += row.count();
    return sum;
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
            if (!layers.is_fp8(tensor.layer)) continue;
            const bool copied = tensor.layer == kHeadLayer || from_copies;
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

std::vector<float> initial_values(const ModelConfig& config, const TensorRow& row, uint64_t seed, size_t begin,
                                  size_t end) {
    std::vector<float> values(end - begin, 0.0f);
    const size_t used_end = std::clamp(static_cast<size_t>(row.count()), begin, end);  // behind it: padding
    if (row.init == Init::ones) std::fill_n(values.begin(), used_end - begin, 1.0f);
    if (row.init == Init::zeros || row.init == Init::ones) return values;
    const float deviation = static_cast<float>(initial_deviation(config, row));
    const uint64_t key = mix(seed ^ hash_name(row.name));
    constexpr size_t kTask = 1 << 14;
#pragma omp parallel for
    for (size_t first = begin; first < used_end; first += kTask)
        fill_normal(values.data() + (first - begin), key, first, std::min(kTask, used_end - first), deviation);
    return values;
}

std::vector<float> initial_values(const ModelConfig& config, const TensorRow& row, uint64_t seed) {
    return initial_values(config, row, seed, 0, static_cast<size_t>(row.padded_count()));
}

}  // namespace llmc
