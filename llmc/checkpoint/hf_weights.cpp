// Opens the files of a Hugging Face model and reads them one parameter at a time. Needs memory for twice the largest
// tensor.
#include "llmc/checkpoint/hf_weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace llmc {

namespace fs = std::filesystem;

const char* const kSingle = "model.safetensors";
const char* const kIndex = "model.safetensors.index.json";
const char* const kConfig = "config.json";
constexpr InputKind kIndexFile = {"index of weights", "a Hugging Face directory", ExitCode::checkpoint, 256};

// Reads an index: {tensor: file name}.
static std::map<std::string, std::string> read_index(const std::string& path) {
    const std::string content = read_input(path, kIndexFile);
    const Json index = parse_json_or_null(content);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
        refuse_file(path, "is not an index of weights: a JSON object with weight_map is needed");
    std::map<std::string, std::string> files;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
        const std::string name = file.is_string() ? file.get<std::string>() : "";
        if (name.empty() || name == ".." || fs::path(name).filename() != name)
            refuse_file(path, "says that tensor {} is in {}, which is not the name of a file next to it", tensor,
                        json_text(file));
        files[tensor] = name;
    }
    return files;
}

[[noreturn]] static void fail_without_weights(const std::string& directory) {
    const bool older = path_exists(fs::path(directory) / "pytorch_model.bin") ||
                       path_exists(fs::path(directory) / "pytorch_model.bin.index.json");
    refuse_file(directory, "holds neither {} nor {}{}", kSingle, kIndex,
                older ? "; pytorch_model.bin is not read: save the model again with "
                        "save_pretrained(DIR, safe_serialization=True)"
                      : "");
}

WeightFiles::WeightFiles(const std::string& file_or_directory) : path_(file_or_directory) {
    const bool directory = directory_exists(path_);
    const fs::path folder = directory ? fs::path(path_) : fs::path(path_).parent_path();
    if (!directory)
        add_file(path_);
    else if (path_exists(folder / kSingle))
        add_file((folder / kSingle).string());
    else if (path_exists(folder / kIndex))
        open_shards((folder / kIndex).string());
    else
        fail_without_weights(path_);
    if ((directory || fs::path(path_).filename() == kSingle) && path_exists(folder / kConfig))
        config_path_ = (folder / kConfig).string();
}

void WeightFiles::open_shards(const std::string& index_path) {
    const std::map<std::string, std::string> placed = read_index(index_path);
    const fs::path folder = fs::path(index_path).parent_path();
    std::set<std::string> names;
    for (const auto& [tensor, file] : placed) names.insert(file);
    for (const std::string& name : names)
        if (!path_exists(folder / name)) refuse_file(index_path, "names {}, which does not exist", name);
    for (const std::string& name : names) add_file((folder / name).string());
    for (const auto& [tensor, file] : placed)
        if (!contains(tensor) || file_with(tensor).path() != (folder / file).string())
            refuse_file(index_path, "says that tensor {} is in {}, which does not hold it", tensor, file);
}

void WeightFiles::add_file(const std::string& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const TensorInfo& tensor : files_.back()->tensors()) {
        const auto [found, added] = tensors_.emplace(tensor.name, files_.back().get());
        if (!added) refuse_file(path, "holds tensor {}, which {} holds too", tensor.name, found->second->path());
    }
}

const SafetensorsFile& WeightFiles::file_with(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) refuse_file(path_, "has no tensor {}", name);
    return *found->second;
}

// The name in the file for a Hugging Face name: with the prefix, without it, or "" if neither is present.
static std::string name_in_file(const WeightFiles& file, const std::string& full_name) {
    if (file.contains(full_name)) return full_name;
    const std::string bare = full_name.substr(full_name.find('.') + 1);
    return !full_name.starts_with("lm_head") && file.contains(bare) ? bare : "";
}

// The scale of an FP8 tensor, as export_hf_directory() and compressed-tensors store it.
static std::string scale_name(const std::string& name) { return name + "_scale"; }

static bool is_float(const std::string& dtype) {
    return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

// True if the file has the tensor as FP8 codes with one scale.
static bool is_scaled_fp8(const WeightFiles& file, const std::string& name) {
    if (file.info(name).dtype != "F8_E4M3" || !file.contains(scale_name(name))) return false;
    const TensorInfo& scale = file.info(scale_name(name));
    return is_float(scale.dtype) && scale.elements() == 1;
}

static bool is_ignored(const std::string& name) {
    return name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq");
}

// The names in the file, in the order of `tensors`. Throws unless the file has each of them in the right shape and
// type, and no others.
static std::vector<std::string> match_tensors(const WeightFiles& file, const std::vector<HfTensor>& tensors) {
    std::vector<std::string> names;
    std::set<std::string> known;
    for (const HfTensor& tensor : tensors) {
        const TensorSpec& spec = tensor.spec;
        const std::string name = name_in_file(file, spec.name);
        const std::string wanted = shape_text(spec.shape);
        if (name.empty())
            refuse_file(file.path(),
                        "has no tensor {} {}, which this model needs; choose the model that the file holds (-e, or "
                        "--layers --heads --channels)",
                        spec.name, wanted);
        const TensorInfo& info = file.info(name);
        if (info.shape != spec.shape)
            refuse_file(file.file_with(name).path(),
                        "tensor {} is {}, this model needs {}; choose the model that the file holds", name,
                        shape_text(info.shape), wanted);
        const bool is_fp8 = is_scaled_fp8(file, name);
        if (!is_fp8 && !is_float(info.dtype))
            refuse_file(file.file_with(name).path(),
                        "tensor {} is {}; F32, BF16, F16 or F64 is needed, or F8_E4M3 with a tensor {} of one scale",
                        name, info.dtype, scale_name(name));
        names.push_back(name);
        known.insert(name);
        if (is_fp8) known.insert(scale_name(name));
    }
    for (const auto& [name, where] : file.tensors()) {
        if (known.count(name) || is_ignored(name)) continue;
        refuse_file(where->path(), "tensor {} {} has no place in this model; choose the model that the file holds",
                    name, shape_text(file.info(name).shape));
    }
    return names;
}

// Our head is wte. A file with a different head would silently load as a different model.
static void check_tied(const WeightFiles& file, const std::vector<float>& wte) {
    if (!file.contains("lm_head.weight")) return;
    const std::vector<float> head = file.read_floats("lm_head.weight");
    if (head.size() == wte.size() && std::memcmp(head.data(), wte.data(), wte.size() * sizeof(float)) == 0) return;
    refuse_file(file.path(), "lm_head.weight differs from wte; the model's head is tied to it");
}

// See the constructor. Shapes of wte and wpe fill in what config.json leaves open, before `expected` does.
static ModelConfig described_model(const WeightFiles& file, const ModelConfig* expected) {
    if (file.config_path().empty() && expected) return *expected;
    if (file.config_path().empty())
        refuse_file(file.path(),
                    "there is no config.json next to the weights, which says how many heads the model has");
    ModelConfig model = described_by([&] { return find_model(file.config_path()); });
    // Rows of the i-th tensor of the embedding, in the table's order.
    const auto rows = [&](size_t i) {
        const std::vector<TensorRow> embedding = model.table().embedding;
        const std::string name = i < embedding.size() ? name_in_file(file, embedding[i].hf_name) : "";
        const std::vector<int64_t> shape = name.empty() ? std::vector<int64_t>{} : file.info(name).shape;
        return shape.empty() || shape[0] > std::numeric_limits<int>::max() ? 0 : static_cast<int>(shape[0]);
    };
    if (model.vocab == 0) model.vocab = rows(0);
    if (model.context == 0) model.context = rows(1);
    if (!expected || model.architecture != expected->architecture) return model;
    if (model.context == 0) model.context = expected->context;
    return model;
}

// (rows, columns) -> (columns, rows), in tiles so that neither side strides through memory.
std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t columns) {
    constexpr int64_t kTile = 32;
    std::vector<float> out(in.size());
    for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
        for (int64_t column0 = 0; column0 < columns; column0 += kTile) {
            for (int64_t row = row0; row < std::min(rows, row0 + kTile); ++row) {
                for (int64_t column = column0; column < std::min(columns, column0 + kTile); ++column) {
                    out[column * rows + row] = in[row * columns + column];
                }
            }
        }
    }
    return out;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& config) {
    const bool transposes = config.table().hf_transposed;
    std::vector<HfTensor> tensors;
    for (const TensorRow& row : all_tensors(config)) {
        int first = 0;
        const std::vector<HfPart> whole = {{row.hf_name, row.rows}};
        for (const HfPart& part : row.hf_parts.empty() ? whole : row.hf_parts) {
            HfTensor tensor{row, {part.name, "F32", {part.rows}}, false, first, part.rows, part.swapped_halves};
            if (row.is_matrix()) tensor.spec.shape.push_back(row.columns);
            tensor.transposed = transposes && row.is_matrix() && row.block >= 0;
            if (tensor.transposed) std::swap(tensor.spec.shape[0], tensor.spec.shape[1]);
            tensors.push_back(tensor);
            first += part.rows;
        }
    }
    return tensors;
}

// Exchanges the two halves of every group of `group` rows.
static void swap_halves(std::vector<float>& values, int group, int64_t columns) {
    const int64_t half = group / 2 * columns;
    for (auto at = values.begin(); at != values.end(); at += 2 * half) std::swap_ranges(at, at + half, at + half);
}

std::vector<float> HfTensor::to_file(const std::vector<float>& ours) const {
    const int64_t columns = row.count() / row.rows;
    std::vector<float> part(ours.begin() + first_row * columns, ours.begin() + (first_row + rows) * columns);
    if (swapped_halves > 0) swap_halves(part, swapped_halves, columns);
    return transposed ? transpose(part, rows, columns) : part;
}

void HfTensor::from_file(const std::vector<float>& values, std::vector<float>& ours) const {
    const int64_t columns = row.count() / row.rows;
    std::vector<float> part = transposed ? transpose(values, columns, rows) : values;
    if (swapped_halves > 0) swap_halves(part, swapped_halves, columns);
    std::copy(part.begin(), part.end(), ours.begin() + first_row * columns);
}

// The tokens that config.json has under a key, as a number or a list.
static std::vector<int> token_ids(const Json& config, const char* key, int vocab) {
    const Json value = config.is_object() ? config.value(key, Json()) : Json();
    std::vector<int> ids;
    for (const Json& id : value.is_array() ? value : Json::array({value}))
        if (id.is_number_unsigned() && id < vocab) ids.push_back(id.get<int>());
    return ids;
}

HfWeights::HfWeights(const std::string& path, const ModelConfig* expected) : WeightSource(path), files_(path) {
    model = described_model(files_, expected);
    require_numbers(path, model);
    const std::vector<HfTensor> tensors = hf_tensors(model);
    const std::vector<std::string> names = match_tensors(files_, tensors);
    for (size_t i = 0; i < names.size(); ++i) tensors_[tensors[i].row.name].emplace_back(names[i], tensors[i]);
    describes_model = !files_.config_path().empty();
    if (!describes_model) return;
    constexpr InputKind kind = {"model file", "the config.json of a Hugging Face model", ExitCode::checkpoint, 16};
    const Json config = read_json_or_null(files_.config_path(), kind);
    const std::vector<int> begin = token_ids(config, "bos_token_id", model.vocab);
    end_tokens = token_ids(config, "eos_token_id", model.vocab);
    if (!begin.empty()) begin_token = begin[0];
    if (!end_tokens.empty()) end_token = end_tokens[0];
}

std::vector<float> HfWeights::fetch(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) refuse_file(files_.path(), "has no tensor {}", name);
    std::vector<float> ours(static_cast<size_t>(found->second.front().second.row.count()));
    for (const auto& [name_there, tensor] : found->second) {
        std::vector<float> values = files_.read_floats(name_there);
        if (is_scaled_fp8(files_, name_there)) {
            const float scale = files_.read_floats(scale_name(name_there))[0];
            for (float& value : values) value *= scale;
        }
        require_finite(files_.file_with(name_there).path(), name_there, tensor.spec.shape, values);
        if (name == "wte" && model.tied) check_tied(files_, values);
        tensor.from_file(values, ours);
    }
    return ours;
}

}  // namespace llmc
