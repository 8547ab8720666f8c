// build: fuzzed
#include "llmc/model/llama_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/model/model_fields.h"

namespace llmc {
namespace {

using nlohmann::json;

const char *const kFull = "full_attention", *const kSliding = "sliding_attention";

// ---- rotary positions: transformers 5 has them in rope_parameters, 4 in rope_theta and rope_scaling -----------------

void read_scaling(const ModelFields& file, RopeConfig& rope) {
    const std::string type = file.text("rope_type", file.text("type", "default"));
    if (type == "default") return;
    if (type != "llama3")
        file.refuse("its rotary positions are of type \"" + type + "\"; supported are \"default\" and \"llama3\"");
    rope.factor = file.number("factor", 8);
    rope.low_freq = file.number("low_freq_factor", 1);
    rope.high_freq = file.number("high_freq_factor", 4);
    rope.old_context = file.positive({"original_max_position_embeddings"}, 8192);
    if (rope.high_freq <= rope.low_freq)
        file.refuse("\"high_freq_factor\" must be above \"low_freq_factor\" in its rotary positions");
}

void read_rope(const ModelFields& file, RopeConfig& rope) {
    rope = {};
    rope.theta = file.number("rope_theta", rope.theta);
    if (file.has("rope_scaling")) read_scaling(file.inside("rope_scaling"), rope);
    if (!file.has("rope_parameters")) return;
    const ModelFields parameters = file.inside("rope_parameters");
    rope.theta = parameters.number("rope_theta", rope.theta);
    read_scaling(parameters, rope);
}

void write_rope(nlohmann::ordered_json& file, const RopeConfig& rope) {
    nlohmann::ordered_json scaling = nullptr, parameters = {{"rope_type", "default"}};
    if (rope.factor > 0)
        parameters = scaling = {{"rope_type", "llama3"},
                                {"factor", rope.factor},
                                {"low_freq_factor", rope.low_freq},
                                {"high_freq_factor", rope.high_freq},
                                {"original_max_position_embeddings", rope.old_context}};
    parameters["rope_theta"] = rope.theta;
    file["rope_theta"] = rope.theta;
    file["rope_scaling"] = scaling;
    file["rope_parameters"] = parameters;
}

// ---- what all have in common ----------------------------------------------------------------------------------------

// "layer_types" has a layer's kind; an older file has the window from layer max_window_layers on.
void read_windows(const ModelFields& file, ModelConfig& config) {
    const bool windows = file.boolean("use_sliding_window", false) && file.has("sliding_window");
    std::string layers;
    if (file.has("layer_types")) {
        for (const json& type : file.json()["layer_types"]) {
            if (type != kFull && type != kSliding)
                file.refuse(strprintf("\"layer_types\" has %s; there are \"%s\" and \"%s\"", json_text(type).c_str(),
                                      kFull, kSliding));
            layers += type == kSliding ? 'S' : 'L';
        }
        if (static_cast<int>(layers.size()) != config.layers)
            file.refuse(strprintf("\"layer_types\" has %zu layers of %d", layers.size(), config.layers));
    } else if (windows) {
        const json first = file.json().value("max_window_layers", json(28));
        if (!first.is_number_integer() || first < 0)
            file.refuse("\"max_window_layers\" is " + json_text(first) + "; it counts layers");
        for (size_t layer = 0; layer < static_cast<size_t>(config.layers); layer++) layers += layer < first ? 'L' : 'S';
    }
    if (layers.find('S') == std::string::npos) return;
    if (!windows)
        file.refuse(strprintf(
            "\"layer_types\" has \"%s\", but \"use_sliding_window\" and \"sliding_window\" set no window", kSliding));
    config.window = file.positive({"sliding_window"});
    config.window_layers = layers;
}

void read_common(const ModelFields& file, const char* architecture, ModelConfig& config) {
    file.require("attention_bias", {false}, architecture);
    file.require("mlp_bias", {false}, architecture);
    file.require("partial_rotary_factor", {1, 1.0}, architecture);
    config.layers = file.positive({"num_hidden_layers"});
    config.heads = file.positive({"num_attention_heads"});
    config.channels = file.positive({"hidden_size"});
    config.hidden = file.positive({"intermediate_size"});
    config.kv_heads = file.positive({"num_key_value_heads"}, config.heads);
    config.vocab = file.positive({"vocab_size"}, 0);
    config.context = file.positive({"max_position_embeddings"}, 0);
    config.norm_eps = file.number("rms_norm_eps", 1e-6);
    config.tied = file.boolean("tie_word_embeddings", false);
    read_rope(file, config.rope);
    read_windows(file, config);
}

// 0 where heads share the channels.
int own_head_dim(const ModelFields& file, const ModelConfig& config, int usual) {
    const int head_dim = file.positive({"head_dim"}, usual);
    return head_dim * config.heads == config.channels ? 0 : head_dim;
}

void write_common(nlohmann::ordered_json& file, const ModelConfig& config, const char* activation) {
    file.update({{"num_hidden_layers", config.layers},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.key_value_heads()},
                 {"head_dim", config.head_dim()},
                 {"hidden_size", config.channels},
                 {"intermediate_size", config.mlp_channels()},
                 {"max_position_embeddings", config.context},
                 {"vocab_size", config.vocab},
                 {"hidden_act", activation},
                 {"rms_norm_eps", config.norm_eps},
                 {"tie_word_embeddings", config.tied},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0}});
    write_rope(file, config.rope);
}

// Two thirds of the width that two matrices would have, as three share the parameters; whole pieces for products.
int swiglu_hidden(int channels) { return (8 * channels / 3 + 255) / 256 * 256; }

// ---- one by one -----------------------------------------------------------------------------------------------------

void read_llama(const ModelFields& file, ModelConfig& config) {
    read_common(file, "Llama", config);
    file.require("hidden_act", {"silu"}, "Llama");
    config.own_head_dim = own_head_dim(file, config, 0);
}

void write_llama(nlohmann::ordered_json& file, const ModelConfig& config) {
    write_common(file, config, "silu");
    file["mlp_bias"] = false;
}

void default_llama(ModelConfig& config) {
    config.hidden = swiglu_hidden(config.channels);
    config.tied = false;
    config.rope.theta = 500000;
}

void read_qwen3(const ModelFields& file, ModelConfig& config) {
    read_common(file, "Qwen3", config);
    file.require("hidden_act", {"silu"}, "Qwen3");
    config.own_head_dim = own_head_dim(file, config, 128);
}

void write_qwen3(nlohmann::ordered_json& file, const ModelConfig& config) {
    write_common(file, config, "silu");
    std::vector<std::string> types;
    for (int layer = 0; layer < config.layers; layer++) types.push_back(config.window_of(layer) > 0 ? kSliding : kFull);
    file["use_sliding_window"] = config.window > 0;
    file["sliding_window"] =
        config.window > 0 ? nlohmann::ordered_json(config.window) : nlohmann::ordered_json(nullptr);
    file["layer_types"] = types;
}

void default_qwen3(ModelConfig& config) {
    config.hidden = swiglu_hidden(config.channels);
    config.tied = false;
    config.norm_eps = 1e-6;
    config.rope.theta = 1000000;
}

void read_nano(const ModelFields& file, ModelConfig& config) {
    read_common(file, "NanoChat", config);
    file.require("hidden_act", {"relu2"}, "NanoChat");
    file.require("tie_word_embeddings", {false}, "NanoChat");
    config.own_head_dim = own_head_dim(file, config, 0);
    const bool given = file.json().contains("final_logit_softcapping");
    config.logit_cap = given && !file.has("final_logit_softcapping") ? 0 : file.number("final_logit_softcapping", 15);
}

void write_nano(nlohmann::ordered_json& file, const ModelConfig& config) {
    write_common(file, config, "relu2");
    file["final_logit_softcapping"] =
        config.logit_cap > 0 ? nlohmann::ordered_json(config.logit_cap) : nlohmann::ordered_json(nullptr);
}

void default_nano(ModelConfig& config) {
    config.hidden = 4 * config.channels;
    config.tied = false;
    config.norm_eps = 1e-6;
    config.rope.theta = 100000;
    config.logit_cap = 15;
}

}  // namespace

constinit const ModelDescription kLlamaDescription = {"llama", "LlamaForCausalLM", read_llama, write_llama,
                                                      default_llama};
constinit const ModelDescription kQwen3Description = {"qwen3", "Qwen3ForCausalLM", read_qwen3, write_qwen3,
                                                      default_qwen3};
constinit const ModelDescription kNanoDescription = {"nanochat", "NanoChatForCausalLM", read_nano, write_nano,
                                                     default_nano};

}  // namespace llmc
