// The fields of models in our own files and in config.json, read and written.
// build: fuzzed
#include "llmc/model/model_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/data/tokenizer.h"

namespace llmc {

using nlohmann::json;

// ---- a file --------------------------------------------------------------------------------------------------------

constexpr int kMostOfField = 100'000'000;         // far above any real model
constexpr int kMostOfProduct = 8 * kMostOfField;  // largest product of fields; an int can hold it

void ModelFields::refuse(const std::string& problem) const {
    throw Error(ExitCode::bad_flags, "model file {}: {}", path_, problem);
}

ModelFields ModelFields::inside(const char* key) const {
    if (writes()) return ModelFields((*written_)[key] = Json::object());
    const json& value = (*read_)[key];
    if (!value.is_object()) refuse(fmt::format("\"{}\" is {}; it must be an object", key, json_text(value)));
    return {value, path_};
}

bool ModelFields::is_there(const char* key) const {
    known_.insert(key);
    return read_ && read_->contains(key);
}

bool ModelFields::has(const char* key) const { return is_there(key) && !(*read_)[key].is_null(); }

void ModelFields::refuse_missing(const char* key) const {
    refuse(fmt::format("\"{}\" is missing, and no value can be assumed for it", key));
}

void ModelFields::refuse_others(std::span<const char* const> harmless) const {
    for (const auto& [key, value] : read_->items())
        if (!value.is_null() && !known_.count(key) && !std::count(harmless.begin(), harmless.end(), key))
            refuse(
                fmt::format("\"{}\" is {}; this key is unknown here and may change what the model computes. If it "
                            "does not, remove it from the file",
                            key, json_text(value)));
}

void ModelFields::set(const char* key, const Json& value) const {
    known_.insert(key);
    if (writes()) (*written_)[key] = value;
}

void ModelFields::positive(const char* key, int& field, int fallback, int null) const {
    if (writes()) return set(key, field);
    field = fallback;
    if (!is_there(key)) return fallback == kRequired ? refuse_missing(key) : void();
    const json& value = (*read_)[key];
    field = null;
    if (value.is_null() && null != kRequired) return;
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > kMostOfField)
        refuse(fmt::format("\"{}\" is {}; it must be a positive whole number", key, json_text(value)));
    field = value.get<int>();
}

void ModelFields::number(const char* key, double& field, double fallback) const {
    if (writes()) return set(key, field);
    field = fallback;
    if (!is_there(key)) return fallback == kRequired ? refuse_missing(key) : void();
    const json& value = (*read_)[key];
    if (!value.is_number() || !(value.get<double>() > 0))
        refuse(fmt::format("\"{}\" is {}; it must be a number above 0", key, json_text(value)));
    field = value.get<double>();
}

void ModelFields::boolean(const char* key, bool& field, bool fallback) const {
    if (writes()) return set(key, field);
    field = fallback;
    if (!is_there(key)) return;
    const json& value = (*read_)[key];
    if (!value.is_boolean()) refuse(fmt::format("\"{}\" is {}; it must be true or false", key, json_text(value)));
    field = value.get<bool>();
}

void ModelFields::text(const char* key, std::string& field, const std::string& fallback) const {
    if (writes()) return set(key, field);
    field = fallback;
    if (!is_there(key)) return;
    const json& value = (*read_)[key];
    if (!value.is_string()) refuse(fmt::format("\"{}\" is {}; it must be a word", key, json_text(value)));
    field = value.get<std::string>();
}

void ModelFields::fixed(const char* key, std::initializer_list<json> allowed, const char* architecture) const {
    set(key, *allowed.begin());
    require(key, allowed, architecture);
}

void ModelFields::require(const char* key, std::initializer_list<json> allowed, const char* architecture) const {
    if (!has(key)) return;
    const json& value = (*read_)[key];
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
        refuse(fmt::format("\"{}\" is {}, which is not the {} architecture ({})", key, json_text(value), architecture,
                           allowed.begin()->dump()));
}

namespace {

// ---- GPT-2's config.json -------------------------------------------------------------------------------------------

// Hugging Face files hold many settings. Those that would make a different architecture must have GPT-2's value.
void gpt2_fields(const ModelFields& file, ModelConfig& config) {
    const char* const gpt2 = "GPT-2";
    file.positive("n_layer", config.layers);
    file.positive("n_head", config.heads);
    file.positive("n_embd", config.channels);
    file.positive("n_positions", config.context, 0);
    file.set("n_ctx", config.context);
    file.positive("vocab_size", config.vocab, 0);
    file.fixed("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, gpt2);
    file.fixed("layer_norm_epsilon", {1e-5}, gpt2);
    file.fixed("tie_word_embeddings", {true}, gpt2);
    file.require("scale_attn_weights", {true}, gpt2);
    file.require("scale_attn_by_inverse_layer_idx", {false}, gpt2);
    file.require("n_inner", {4 * config.channels}, gpt2);
    for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) file.set(dropout, 0.0);
}

void gpt2_defaults(ModelConfig&) {}

// ---- config.json of Llama and its relatives ------------------------------------------------------------------------

const char *const kFull = "full_attention", *const kSliding = "sliding_attention";

void scaling_fields(const ModelFields& file, RopeConfig& rope) {
    std::string type = rope.factor > 0 ? "llama3" : "default";
    if (!file.writes()) file.text("type", type, "default");  // its older name
    file.text("rope_type", type, type);
    if (type == "default") return;
    if (type != "llama3")
        file.refuse("its rotary positions are of type \"" + type + "\"; supported are \"default\" and \"llama3\"");
    file.number("factor", rope.factor);
    file.number("low_freq_factor", rope.low_freq);
    file.number("high_freq_factor", rope.high_freq);
    file.positive("original_max_position_embeddings", rope.old_context, rope.old_context);
    if (rope.high_freq <= rope.low_freq)
        file.refuse("\"high_freq_factor\" must be above \"low_freq_factor\" in its rotary positions");
}

void write_rope(const ModelFields& file, RopeConfig& rope) {
    file.number("rope_theta", rope.theta);
    file.set("rope_scaling", nullptr);
    if (rope.factor > 0) scaling_fields(file.inside("rope_scaling"), rope);
    const ModelFields parameters = file.inside("rope_parameters");
    scaling_fields(parameters, rope);
    parameters.number("rope_theta", rope.theta);
}

// transformers 5 has rotary positions in rope_parameters, version 4 in rope_theta and rope_scaling. Both are written.
// Each version ignores some of what a file says twice, so a file must say the same thing everywhere.
void rope_fields(const ModelFields& file, RopeConfig& rope, const char* architecture) {
    if (file.writes()) return write_rope(file, rope);
    RopeConfig outside;
    int old_context;
    file.number("rope_theta", outside.theta, outside.theta);
    file.positive("original_max_position_embeddings", old_context, 0, 0);
    file.require("partial_rotary_factor", {1, 1.0}, architecture);
    rope = outside;
    bool is_first = true;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (!file.has(key)) continue;
        const ModelFields parameters = file.inside(key);
        RopeConfig inside = outside;
        inside.old_context = old_context > 0 ? old_context : ModelFields::kRequired;
        scaling_fields(parameters, inside);
        parameters.number("rope_theta", inside.theta, inside.theta);
        parameters.require("partial_rotary_factor", {1, 1.0}, architecture);
        parameters.refuse_others({});
        if (inside.factor == 0) inside.old_context = outside.old_context;
        const bool agrees = (inside.factor == 0 || old_context == 0 || inside.old_context == old_context) &&
                            (!file.has("rope_theta") || inside.theta == outside.theta) && (is_first || inside == rope);
        if (!agrees) file.refuse(fmt::format("\"{}\" contradicts other keys about rotary positions; keep one", key));
        rope = inside;
        is_first = false;
    }
}

void window_field(const ModelFields& file, ModelConfig& config) {
    const char* const key = "sliding_window";
    if (file.writes()) return file.set(key, config.short_layers() > 0 ? Json(config.window) : Json());
    file.positive(key, config.window, 4096, 0);
}

// "layer_types" gives each layer's kind. An older file has the window from layer max_window_layers on.
void layer_windows(const ModelFields& file, ModelConfig& config) {
    bool windows = file.writes() && config.short_layers() > 0;
    file.boolean("use_sliding_window", windows, false);
    window_field(file, config);
    if (file.writes()) {
        std::vector<std::string> types;
        for (int l = 0; l < config.layers; l++) types.push_back(config.window_of(l) > 0 ? kSliding : kFull);
        return file.set("layer_types", types);
    }
    const int window = std::exchange(config.window, 0);
    windows &= window > 0;
    const json first = file.has("max_window_layers") ? file.object()["max_window_layers"] : json(28);
    if (!first.is_number_integer() || first < 0)
        file.refuse("\"max_window_layers\" is " + json_text(first) + "; it counts layers");
    std::string layers;
    if (file.has("layer_types")) {
        for (const json& type : file.object()["layer_types"]) {
            if (type != kFull && type != kSliding)
                file.refuse(fmt::format("\"layer_types\" has {}; there are \"{}\" and \"{}\"", json_text(type), kFull,
                                        kSliding));
            layers += type == kSliding ? 'S' : 'L';
        }
        if (static_cast<int>(layers.size()) != config.layers)
            file.refuse(fmt::format("\"layer_types\" has {} layers of {}", layers.size(), config.layers));
    } else {
        for (int layer = 0; layer < config.layers; layer++) layers += windows && layer >= first ? 'S' : 'L';
    }
    if (layers.find('S') == std::string::npos) return;
    if (!windows)
        file.refuse(fmt::format(
            "\"layer_types\" has \"{}\", but \"use_sliding_window\" and \"sliding_window\" set no window", kSliding));
    config.window = window;
    config.window_layers = layers;
}

// A class of transformers: its name for messages, and the values of fields that a file leaves out.
struct HfClass {
    const char* name;
    const char* activation = "silu";
    int kv_heads = 0;  // 0: one for each head
    int head_dim = 0;  // 0: C / NH
};

// Fields that all of them share.
void common_fields(const ModelFields& file, ModelConfig& config, const HfClass& of) {
    file.positive("num_hidden_layers", config.layers);
    file.positive("num_attention_heads", config.heads);
    file.positive("num_key_value_heads", config.kv_heads, of.kv_heads > 0 ? of.kv_heads : config.heads, config.heads);
    file.positive("head_dim", config.own_head_dim, of.head_dim, of.head_dim > 0 ? ModelFields::kRequired : 0);
    file.positive("hidden_size", config.channels);
    file.positive("intermediate_size", config.hidden);
    file.positive("max_position_embeddings", config.context, 0);
    file.positive("vocab_size", config.vocab, 0);
    file.fixed("hidden_act", {of.activation}, of.name);
    file.number("rms_norm_eps", config.norm_eps, 1e-6);
    file.boolean("tie_word_embeddings", config.tied, false);
    file.set("attention_dropout", 0.0);
    file.require("mlp_bias", {false}, of.name);
    rope_fields(file, config.rope, of.name);
    if (!file.writes() && int64_t{config.own_head_dim} * config.heads == config.channels) config.own_head_dim = 0;
}

// Three matrices of two thirds of the usual width have as many parameters as two, rounded to whole pieces for products.
int swiglu_hidden(int channels) { return (8 * channels / 3 + 255) / 256 * 256; }

void llama_fields(const ModelFields& file, ModelConfig& config) {
    common_fields(file, config, {"Llama"});
    file.fixed("attention_bias", {false}, "Llama");
    file.set("mlp_bias", false);
}

void llama_defaults(ModelConfig& config) {
    config.hidden = swiglu_hidden(config.channels);
    config.tied = false;
    config.rope.theta = 500000;
}

void mistral_fields(const ModelFields& file, ModelConfig& config) {
    common_fields(file, config, {"Mistral", "silu", 8});
    file.require("attention_bias", {false}, "Mistral");
    window_field(file, config);
}

void mistral_defaults(ModelConfig& config) {
    llama_defaults(config);
    config.rope.theta = 10000;
}

void qwen2_fields(const ModelFields& file, ModelConfig& config) {
    common_fields(file, config, {"Qwen2", "silu", 32});
    file.require("attention_bias", {true}, "Qwen2");
    file.require("use_mrope", {false}, "Qwen2");
    layer_windows(file, config);
}

void qwen3_fields(const ModelFields& file, ModelConfig& config) {
    common_fields(file, config, {"Qwen3", "silu", 32, 128});
    file.fixed("attention_bias", {false}, "Qwen3");
    layer_windows(file, config);
}

void qwen_defaults(ModelConfig& config) {
    llama_defaults(config);
    config.norm_eps = 1e-6;
    config.rope.theta = 1000000;
}

void nano_fields(const ModelFields& file, ModelConfig& config) {
    common_fields(file, config, {"NanoChat", "relu2"});
    file.fixed("attention_bias", {false}, "NanoChat");
    file.require("tie_word_embeddings", {false}, "NanoChat");
    const char* const cap = "final_logit_softcapping";
    const bool is_off = file.writes() ? config.logit_cap == 0 : file.object().contains(cap) && !file.has(cap);
    if (!is_off) return file.number(cap, config.logit_cap, 15);
    file.set(cap, nullptr);
    config.logit_cap = 0;
}

void nano_defaults(ModelConfig& config) {
    config.hidden = 4 * config.channels;
    config.tied = false;
    config.norm_eps = 1e-6;
    config.rope.theta = 100000;
    config.logit_cap = 15;
}

// ---- our own files -------------------------------------------------------------------------------------------------

const char* const kCommonFields[] = {"architecture", "name", "layers", "heads", "channels", "vocab", "context"};
const char* const kNotInGpt2[] = {"kv_heads",   "head_dim",     "hidden",    "tied",   "norm_eps",
                                  "rope_theta", "rope_scaling", "logit_cap", "window", "window_layers"};

void gpt2_own_fields(const ModelFields& file, ModelConfig& config) {
    file.positive("layers", config.layers);
    file.positive("heads", config.heads);
    file.positive("channels", config.channels);
    file.positive("vocab", config.vocab, 0);
    file.positive("context", config.context, 0);
}

void other_own_fields(const ModelFields& file, ModelConfig& config) {
    file.positive("kv_heads", config.kv_heads, config.kv_heads);
    file.positive("head_dim", config.own_head_dim, config.own_head_dim);
    file.positive("hidden", config.hidden, config.hidden);
    file.boolean("tied", config.tied, config.tied);
    file.number("norm_eps", config.norm_eps, config.norm_eps);
    file.number("rope_theta", config.rope.theta, config.rope.theta);
    if (file.writes() ? config.rope.factor > 0 : file.has("rope_scaling")) {
        const ModelFields scaling = file.inside("rope_scaling");
        scaling.number("factor", config.rope.factor, 8);
        scaling.number("low_freq", config.rope.low_freq, 1);
        scaling.number("high_freq", config.rope.high_freq, 4);
        scaling.positive("old_context", config.rope.old_context, 8192);
    }
    if (!file.writes() || config.logit_cap > 0) file.number("logit_cap", config.logit_cap, config.logit_cap);
    if (!file.writes() || config.window > 0) file.positive("window", config.window, config.window);
    if (!file.writes() || !config.window_layers.empty())
        file.text("window_layers", config.window_layers, config.window_layers);
}

bool is_one_of(const std::string& key, const auto& keys) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

std::string fields_of(const Architecture& architecture) {
    std::vector<std::string> fields(std::begin(kCommonFields), std::end(kCommonFields));
    if (&architecture != &kGpt2) fields.insert(fields.end(), std::begin(kNotInGpt2), std::end(kNotInGpt2));
    return joined(fields);
}

using NameOf = const char* (*)(const Architecture&);
const char* own_name(const Architecture& a) { return a.name; }
const char* hf_name(const Architecture& a) { return a.description->hf_type; }

const Architecture* architecture_by(const std::string& word, NameOf name_of) {
    for (const Architecture* architecture : kArchitectures)
        if (name_of(*architecture) == word) return architecture;
    return nullptr;
}

std::string names(NameOf name_of) {
    std::vector<std::string> all;
    for (const Architecture* architecture : kArchitectures) all.push_back(name_of(*architecture));
    return joined(all);
}

void read_own_fields(const ModelFields& file, ModelConfig& config) {
    std::string name;
    file.text("architecture", name, kGpt2.name);
    config.architecture = architecture_by(name, own_name);
    if (!config.architecture)
        file.refuse(fmt::format("unknown architecture \"{}\"; there are {}", name, names(own_name)));
    const bool is_gpt2 = config.architecture == &kGpt2;
    for (const auto& item : file.object().items()) {
        if (is_one_of(item.key(), kCommonFields) || (!is_gpt2 && is_one_of(item.key(), kNotInGpt2))) continue;
        if (is_one_of(item.key(), kNotInGpt2))
            file.refuse(fmt::format("\"{}\" is not for the architecture gpt2; add \"architecture\", one of {}",
                                    item.key(), names(own_name)));
        file.refuse(
            fmt::format("unknown field \"{}\"; the fields are {}", item.key(), fields_of(*config.architecture)));
    }
    gpt2_own_fields(file, config);
    config.architecture->description->set_defaults(config);
    if (!is_gpt2) other_own_fields(file, config);
}

// Keys that change nothing that the program computes from the weights. Initial values are its own, and it has no
// dropout.
const char* const kHarmless[] = {
    // of every model
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels",
    "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "dtype",
    "eos_token_id", "finetuning_task", "id2label", "initializer_range", "is_decoder", "label2id", "model_max_length",
    "name", "num_labels", "output_attentions", "output_hidden_states", "pad_token_id", "prefix", "problem_type",
    "return_dict", "sep_token_id", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder",
    "tie_last_hidden_states", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
    // of some
    "gradient_checkpointing", "n_special", "predict_special_tokens", "pretraining_tp", "reorder_and_upcast_attn",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    // for generating text
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k",
    "top_p", "typical_p"};

// FP8 weights are read in the form that `export` writes. Other forms, or quantized activations, are another model.
void check_quantization(const ModelFields& file) {
    if (!file.has("quantization_config")) return;
    const ModelFields config = file.inside("quantization_config");
    const char* const what = "weights of compressed-tensors with one FP8 scale a tensor";
    config.fixed("quant_method", {"compressed-tensors"}, what);
    config.fixed("format", {"float-quantized"}, what);
    config.require("kv_cache_scheme", {nullptr}, what);
    for (const json& group : config.object().value("config_groups", json::object()))
        for (const char* key : {"input_activations", "output_activations"})
            if (group.is_object() && !group.value(key, json()).is_null())
                config.refuse(fmt::format("\"quantization_config\" has \"{}\"; only weights may be quantized", key));
}

// Refuses variants of a class that its own fields do not tell apart.
void check_variant(const ModelFields& file, const std::string& hf_class) {
    const std::string base = hf_class.substr(0, hf_class.find(hf_class.ends_with("LMHeadModel") ? "LMHead" : "For"));
    if (file.has("architectures"))
        for (const json& name : file.object()["architectures"])
            if (name != hf_class && name != base + "Model")
                file.refuse(fmt::format("\"architectures\" has {}; it must be \"{}\"", json_text(name), hf_class));
    for (const char* key : {"is_encoder_decoder", "add_cross_attention"}) file.require(key, {false}, hf_class.c_str());
    file.require("pruned_heads", {json::object()}, hf_class.c_str());
    check_quantization(file);
}

void read_hf_fields(const ModelFields& file, ModelConfig& config) {
    std::string type;
    file.text("model_type", type, kGpt2.description->hf_type);
    config.architecture = architecture_by(type, hf_name);
    if (!config.architecture)
        file.refuse(fmt::format("\"model_type\" is \"{}\", which is not one of the supported architectures ({})", type,
                                names(hf_name)));
    const ModelDescription& description = *config.architecture->description;
    description.fields(file, config);
    check_variant(file, description.hf_class);
    file.refuse_others(kHarmless);
}

// The configuration with every value spelled out, as files have it.
ModelConfig spelled_out(ModelConfig config) {
    const int kv_heads = config.key_value_heads(), head_dim = config.head_dim(), hidden = config.mlp_channels();
    config.kv_heads = kv_heads, config.own_head_dim = head_dim, config.hidden = hidden;
    return config;
}

constexpr InputKind kModelFile = {"model file", "a JSON file that describes a model, such as config.json",
                                  ExitCode::bad_flags, 16};

}  // namespace

constinit const ModelDescription kGpt2Description = {"gpt2", "GPT2LMHeadModel", gpt2_fields, gpt2_defaults};
constinit const ModelDescription kLlamaDescription = {"llama", "LlamaForCausalLM", llama_fields, llama_defaults};
constinit const ModelDescription kMistralDescription = {"mistral", "MistralForCausalLM", mistral_fields,
                                                        mistral_defaults};
constinit const ModelDescription kQwen2Description = {"qwen2", "Qwen2ForCausalLM", qwen2_fields, qwen_defaults};
constinit const ModelDescription kQwen3Description = {"qwen3", "Qwen3ForCausalLM", qwen3_fields, qwen_defaults};
// nanochat as of October 2025.
constinit const ModelDescription kNanoDescription = {"nanochat", "NanoChatForCausalLM", nano_fields, nano_defaults};

ModelConfig model_from_json(const json& json, const std::string& path) {
    const ModelFields file(json, path);
    ModelConfig config;
    if (json.contains("model_type") || json.contains("n_layer") || json.contains("n_embd"))
        read_hf_fields(file, config);
    else
        read_own_fields(file, config);
    const int64_t heads = int64_t{config.heads} + 2 * int64_t{config.key_value_heads()};
    if (heads * config.head_dim() > kMostOfProduct)
        file.refuse(fmt::format("{} heads of queries and {} of keys and values, with {} channels each, are too many",
                                config.heads, config.key_value_heads(), config.head_dim()));
    return config;
}

ModelConfig read_model_file(const std::string& path) {
    const std::string content = read_input(path, kModelFile);
    json file;
    try {
        file = parse_json(content);
    } catch (const JsonError& error) {
        refuse("model file {} is not JSON: {}", path, error.what());
    }
    if (!file.is_object()) refuse("model file {} is not a JSON object", path);
    ModelConfig config = model_from_json(file, path);
    const std::filesystem::path as_path(path);
    const bool in_model_folder = as_path.filename() == "config.json" && as_path.has_parent_path();
    config.name = in_model_folder ? as_path.parent_path().filename().string() : as_path.stem().string();
    if (file.contains("name") && file["name"].is_string()) config.name = file["name"].get<std::string>();
    config.name = sanitize(config.name);  // runs print it
    return config;
}

Json model_json(const ModelConfig& config) {
    Json file = Json::object();
    ModelConfig model = spelled_out(config);
    gpt2_own_fields(ModelFields(file), model);
    if (config.architecture == &kGpt2) return file;
    file["architecture"] = config.architecture->name;
    other_own_fields(ModelFields(file), model);
    return file;
}

Json hf_model_json(const ModelConfig& config) {
    const ModelDescription& description = *config.architecture->description;
    Json file = {{"architectures", {description.hf_class}}, {"model_type", description.hf_type}};
    ModelConfig model = spelled_out(config);
    description.fields(ModelFields(file), model);
    return file;
}

// The fields of the model's own file, with windows spelled out layer by layer, as Hugging Face's files have them.
static Json comparable(ModelConfig model) {
    std::string layers;
    for (int layer = 0; layer < model.layers; layer++) layers += model.window_of(layer) > 0 ? 'S' : 'L';
    const bool has_windows = layers.find('S') != std::string::npos;
    if (!has_windows) model.window = 0;
    model.window_layers = has_windows ? layers : "";
    return model_json(model);
}

std::string differences(const ModelConfig& there, const ModelConfig& here) {
    if (there.architecture != here.architecture)
        return fmt::format("the architecture is {}, this model has {}", there.architecture->name,
                           here.architecture->name);
    Json theirs = comparable(there), ours = comparable(here);
    for (const auto& [name, value] : ours.items()) theirs.emplace(name, nullptr);  // if it has no such field
    std::string text;
    for (const auto& [name, value] : theirs.items()) {
        const Json mine = ours.value(name, Json());
        if (value == mine) continue;
        text += fmt::format("{}{} is {}, this model has {}", text.empty() ? "" : "; ", name, json_text(value),
                            json_text(mine));
    }
    return text;
}

}  // namespace llmc
