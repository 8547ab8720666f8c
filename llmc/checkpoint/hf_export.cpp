// Writes config.json, weights in three formats, shards and their index for Hugging Face's programs.
#include "llmc/checkpoint/hf_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/model/model_file.h"

namespace llmc {
namespace {

// In the form of compressed-tensors, which decodes layers of the class Linear.
Json quantization_config() {
    const Json weights = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};
    return {{"quant_method", "compressed-tensors"},
            {"format", "float-quantized"},
            {"quantization_status", "compressed"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
            {"ignore", {"lm_head"}}};
}

// The first of the tokens that the model has, or null. A vocabulary of GPT-2's size has GPT-2's <|endoftext|>.
Json token_id(const ModelConfig& model, int token, int otherwise) {
    for (const int id : {token, otherwise})
        if (id >= 0 && id < model.vocab) return id;
    return model.vocab == 50257 ? Json(50256) : Json();
}

Json hf_config(const ModelConfig& config, const HfFormat& format) {
    Json json = hf_model_json(config);
    json["torch_dtype"] = format.type == StateFormat::fp32 ? "float32" : "bfloat16";
    // Written even if null: transformers' default is GPT-2's id, which is outside a smaller vocabulary.
    json["bos_token_id"] = token_id(config, format.begin_token, format.end_token);
    json["eos_token_id"] = token_id(config, format.end_token, format.end_token);
    if (format.end_tokens.size() > 1) json["eos_token_id"] = format.end_tokens;
    if (format.type == StateFormat::fp8) json["quantization_config"] = quantization_config();
    return json;
}

void write_json(const std::string& path, const Json& json) {
    write_synced(system_calls(), path, json_text(json, 2) + "\n");
}

struct Entry {
    HfTensor tensor;
    bool is_fp8() const { return tensor.spec.dtype == "F8_E4M3"; }
    TensorSpec scale() const { return {tensor.spec.name + "_scale", "F32", {1}}; }
    uint64_t bytes() const {
        return tensor.elements() * dtype_bytes(tensor.spec.dtype) + (is_fp8() ? sizeof(float) : 0);
    }
};

std::vector<Entry> entries(const ModelConfig& model, StateFormat type) {
    std::vector<Entry> all;
    for (const HfTensor& tensor : hf_tensors(model)) {
        all.push_back({tensor});
        const bool linear = tensor.row.is_matrix() && tensor.row.block >= 0;
        if (type != StateFormat::fp32)
            all.back().tensor.spec.dtype = type == StateFormat::fp8 && linear ? "F8_E4M3" : "BF16";
    }
    return all;
}

// Splits the entries into files of at most `shard_bytes` bytes each, unless a single tensor is larger.
std::vector<std::vector<Entry>> split(const std::vector<Entry>& all, uint64_t shard_bytes) {
    std::vector<std::vector<Entry>> shards(1);
    uint64_t bytes = 0;
    for (const Entry& entry : all) {
        if (!shards.back().empty() && bytes + entry.bytes() > shard_bytes) {
            shards.emplace_back();
            bytes = 0;
        }
        shards.back().push_back(entry);
        bytes += entry.bytes();
    }
    return shards;
}

template <class T>
std::vector<T> converted(const std::vector<float>& values, float scale) {
    std::vector<T> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), [&](float value) { return to<T>(value / scale); });
    return out;
}

// At least the smallest normal float: the rounding of a subnormal scale would be worse than that of the codes.
float scale_of(const std::vector<float>& values) {
    float amax = 0;
    for (const float value : values) amax = std::max(amax, std::fabs(value));
    return amax == 0 ? 1.0f : std::max(amax / kE4M3Max, std::numeric_limits<float>::min());
}

// Writes one entry. `ours` is the tensor of which the entry is a part or the whole.
void write_entry(SafetensorsWriter& writer, const std::string& path, const Entry& entry,
                 const std::vector<float>& ours) {
    const std::vector<float> values = entry.tensor.to_file(ours);
    const TensorSpec& spec = entry.tensor.spec;
    if (spec.dtype == "F32") {
        writer.write(spec.name, values.data(), values.size() * sizeof(float));
    } else if (spec.dtype == "BF16") {
        writer.write(spec.name, converted<bf16>(values, 1.0f).data(), values.size() * sizeof(bf16));
    } else {
        require_finite(path, spec.name, spec.shape, values);  // a non-finite value would leave no valid scale
        const float scale = scale_of(values);
        writer.write(spec.name, converted<e4m3>(values, scale).data(), values.size() * sizeof(e4m3));
        writer.write(entry.scale().name, &scale, sizeof scale);
    }
}

void write_file(const std::string& path, const std::vector<Entry>& entries, StateFormat type,
                const FetchTensor& fetch) {
    std::vector<TensorSpec> specs;
    for (const Entry& entry : entries) {
        specs.push_back(entry.tensor.spec);
        if (entry.is_fp8()) specs.push_back(entry.scale());
    }
    std::map<std::string, std::string> metadata = {{"format", "pt"}};  // Hugging Face refuses a file without this entry
    if (type == StateFormat::fp8) metadata["fp8"] = "value = weight (F8_E4M3) * weight_scale (F32, one a tensor)";
    SafetensorsWriter writer(path, specs, metadata);
    // Fetched once for all its parts: with several ranks a fetch is a collective.
    std::vector<float> ours;
    for (const Entry& entry : entries) {
        if (entry.tensor.first_row == 0 || ours.empty()) fetch_exactly(path, entry.tensor.row, fetch, ours);
        write_entry(writer, path, entry, ours);
    }
    writer.finish();
}

void write_index(const std::string& folder, const std::vector<std::vector<Entry>>& shards,
                 const std::vector<std::string>& names) {
    uint64_t total = 0;
    Json index = {{"metadata", Json::object()}};
    for (size_t i = 0; i < shards.size(); i++)
        for (const Entry& entry : shards[i]) {
            index["weight_map"][entry.tensor.spec.name] = names[i];
            if (entry.is_fp8()) index["weight_map"][entry.scale().name] = names[i];
            total += entry.bytes();
        }
    index["metadata"]["total_size"] = total;
    write_json(folder + "model.safetensors.index.json", index);
}

}  // namespace

void export_hf(const std::string& path, const ModelConfig& model, int end_token, const FetchTensor& fetch) {
    require_numbers(path, model);
    write_file(path, entries(model, StateFormat::fp32), StateFormat::fp32, fetch);
    write_json(path.substr(0, path.rfind('/') + 1) + "config.json", hf_config(model, {StateFormat::fp32, end_token}));
}

void export_hf_directory(const std::string& directory, const ModelConfig& model, const HfFormat& format,
                         const FetchTensor& fetch) {
    require_numbers(directory, model);
    const std::string folder = directory + "/";
    const std::vector<std::vector<Entry>> shards = split(entries(model, format.type), format.shard_bytes);
    std::vector<std::string> names;
    for (size_t i = 0; i < shards.size(); i++) {
        names.push_back(shards.size() == 1 ? "model.safetensors"
                                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
        write_file(folder + names.back(), shards[i], format.type, fetch);
    }
    if (shards.size() > 1) write_index(folder, shards, names);
    const Json config = hf_config(model, format), begin = config.at("bos_token_id"), end = config.at("eos_token_id");
    if (!end.is_null()) write_json(folder + "generation_config.json", {{"bos_token_id", begin}, {"eos_token_id", end}});
    write_json(folder + "config.json", config);
}

}  // namespace llmc
