// build: fuzzed
#include "llmc/model/model_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json.h"
#include "llmc/data/tokenizer.h"
#include "llmc/model/model_fields.h"

namespace llmc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const char* const kOfAll[] = {"architecture", "name", "layers", "heads", "channels", "vocab", "context"};
const char* const kBeyondGpt2[] = {"kv_heads",   "head_dim",     "hidden",    "tied",   "norm_eps",
                                   "rope_theta", "rope_scaling", "logit_cap", "window", "window_layers"};

constexpr InputKind kModelFile = {"model file", "a JSON file that describes a model, such as config.json",
                                  ExitCode::bad_flags, 16};

bool is_one_of(const std::string& key, const auto& keys) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

std::string fields_of(const Architecture& architecture) {
    std::vector<const char*> fields(std::begin(kOfAll), std::end(kOfAll));
    if (&architecture != &kGpt2) fields.insert(fields.end(), std::begin(kBeyondGpt2), std::end(kBeyondGpt2));
    std::string text;
    for (const char* field : fields) text += (text.empty() ? "" : ", ") + std::string(field);
    return text;
}

const Architecture* architecture_by(const std::string& word, const char* (*name_of)(const Architecture&)) {
    for (const Architecture* architecture : architectures())
        if (name_of(*architecture) == word) return architecture;
    return nullptr;
}

const char* own_name(const Architecture& a) { return a.name; }
const char* hf_name(const Architecture& a) { return a.description->hf_type; }

std::string names(const char* (*name_of)(const Architecture&)) {
    std::string text;
    for (const Architecture* a : architectures()) text += (text.empty() ? "" : ", ") + std::string(name_of(*a));
    return text;
}

void read_own_fields(const ModelFields& file, ModelConfig& config) {
    const std::string name = file.text("architecture", kGpt2.name);
    config.architecture = architecture_by(name, own_name);
    if (!config.architecture)
        file.refuse(strprintf("unknown architecture \"%s\"; there are %s", name.c_str(), names(own_name).c_str()));
    for (const auto& item : file.json().items()) {
        if (is_one_of(item.key(), kOfAll)) continue;
        if (config.architecture != &kGpt2 && is_one_of(item.key(), kBeyondGpt2)) continue;
        if (is_one_of(item.key(), kBeyondGpt2))
            file.refuse(strprintf("\"%s\" is not for the architecture gpt2; add \"architecture\", one of %s",
                                  item.key().c_str(), names(own_name).c_str()));
        file.refuse(strprintf("unknown field \"%s\"; the fields are %s", item.key().c_str(),
                              fields_of(*config.architecture).c_str()));
    }
    config.layers = file.positive({"layers"});
    config.heads = file.positive({"heads"});
    config.channels = file.positive({"channels"});
    config.vocab = file.positive({"vocab"}, 0);
    config.context = file.positive({"context"}, 0);
    config.architecture->description->set_defaults(config);
    config.kv_heads = file.positive({"kv_heads"}, config.kv_heads);
    config.own_head_dim = file.positive({"head_dim"}, config.own_head_dim);
    config.hidden = file.positive({"hidden"}, config.hidden);
    config.tied = file.boolean("tied", config.tied);
    config.norm_eps = file.number("norm_eps", config.norm_eps);
    config.rope.theta = file.number("rope_theta", config.rope.theta);
    config.logit_cap = file.number("logit_cap", config.logit_cap);
    config.window = file.positive({"window"}, config.window);
    config.window_layers = file.text("window_layers", config.window_layers);
    if (!file.has("rope_scaling")) return;
    const ModelFields scaling = file.inside("rope_scaling");
    config.rope.factor = scaling.number("factor", 8);
    config.rope.low_freq = scaling.number("low_freq", 1);
    config.rope.high_freq = scaling.number("high_freq", 4);
    config.rope.old_context = scaling.positive({"old_context"}, 8192);
}

void read_hf_fields(const ModelFields& file, ModelConfig& config) {
    const std::string type = file.text("model_type", kGpt2.description->hf_type);
    config.architecture = architecture_by(type, hf_name);
    if (!config.architecture)
        file.refuse(strprintf("\"model_type\" is \"%s\", which is not one of the supported architectures (%s)",
                              type.c_str(), names(hf_name).c_str()));
    config.architecture->description->read_hf(file, config);
}

}  // namespace

ModelConfig model_from_json(const json& json, const std::string& path) {
    const ModelFields file(json, path);
    ModelConfig config;
    if (json.contains("model_type") || json.contains("n_layer") || json.contains("n_embd"))
        read_hf_fields(file, config);
    else
        read_own_fields(file, config);
    return config;
}

ModelConfig read_model_file(const std::string& path) {
    const std::string content = read_input(path, kModelFile);
    json file;
    try {
        file = parse_json<json>(content);
    } catch (const JsonError& error) {
        throw Error(ExitCode::bad_flags, strprintf("model file %s is not JSON: %s", path.c_str(), error.what()));
    }
    if (!file.is_object())
        throw Error(ExitCode::bad_flags, strprintf("model file %s is not a JSON object", path.c_str()));
    ModelConfig config = model_from_json(file, path);
    const std::filesystem::path as_path(path);
    const bool in_model_folder = as_path.filename() == "config.json" && as_path.has_parent_path();
    config.name = in_model_folder ? as_path.parent_path().filename().string() : as_path.stem().string();
    if (file.contains("name") && file["name"].is_string()) config.name = file["name"].get<std::string>();
    config.name = sanitize(config.name);  // runs print it
    return config;
}

ordered_json model_json(const ModelConfig& config) {
    ordered_json file = {{"layers", config.layers},
                         {"heads", config.heads},
                         {"channels", config.channels},
                         {"vocab", config.vocab},
                         {"context", config.context}};
    if (config.architecture == &kGpt2) return file;
    file["architecture"] = config.architecture->name;
    file.update({{"kv_heads", config.key_value_heads()},
                 {"head_dim", config.head_dim()},
                 {"hidden", config.mlp_channels()},
                 {"tied", config.tied},
                 {"norm_eps", config.norm_eps},
                 {"rope_theta", config.rope.theta}});
    if (config.rope.factor > 0)
        file["rope_scaling"] = {{"factor", config.rope.factor},
                                {"low_freq", config.rope.low_freq},
                                {"high_freq", config.rope.high_freq},
                                {"old_context", config.rope.old_context}};
    if (config.logit_cap > 0) file["logit_cap"] = config.logit_cap;
    if (config.window > 0) file["window"] = config.window;
    if (!config.window_layers.empty()) file["window_layers"] = config.window_layers;
    return file;
}

ordered_json hf_model_json(const ModelConfig& config) {
    const ModelDescription& description = *config.architecture->description;
    ordered_json file = {{"architectures", {description.hf_class}}, {"model_type", description.hf_type}};
    description.write_hf(file, config);
    return file;
}

}  // namespace llmc
