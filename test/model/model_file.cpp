// Every key of Hugging Face's config.json is read, known to change nothing, or refused by name.
#include "llmc/model/model_file.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;
using nlohmann::json;

namespace {

// A file of each class with every key that its class has no harmless default for.
json file_of(const std::string& type) {
    if (type == "gpt2") return {{"model_type", "gpt2"}, {"n_layer", 2}, {"n_head", 4}, {"n_embd", 128}};
    json file = {
        {"model_type", type}, {"num_hidden_layers", 2},  {"num_attention_heads", 4},      {"num_key_value_heads", 2},
        {"hidden_size", 128}, {"intermediate_size", 96}, {"max_position_embeddings", 64}, {"vocab_size", 101}};
    if (type == "mistral") file["sliding_window"] = nullptr;
    if (type == "qwen3") file["head_dim"] = 32;
    return file;
}

// Keys with null are removed from `file` if the patch says so with the text "-".
ModelConfig read(const std::string& type, const json& patch) {
    json file = file_of(type);
    for (const auto& [key, value] : patch.items())
        if (value == "-")
            file.erase(key);
        else
            file[key] = value;
    return model_from_json(file, "config.json");
}

json llama3(json more = json::object()) {
    json scaling = {{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 32}};
    for (const auto& [key, value] : more.items())
        if (value == "-")
            scaling.erase(key);
        else
            scaling[key] = value;
    return scaling;
}

json quantized(const char* key, const json& value) {
    json config = {{"quant_method", "compressed-tensors"},
                   {"format", "float-quantized"},
                   {"kv_cache_scheme", nullptr},
                   {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"input_activations", nullptr}}}}}};
    config[json::json_pointer(key)] = value;
    return {{"quantization_config", config}};
}

const char* const kScaled =
    "rope_scaling is {\"factor\":8.0,\"low_freq\":1.0,\"high_freq\":4.0,\"old_context\":32}, this model has null";

}  // namespace

TEST_CASE("config.json: keys that change the model, against a file without them") {
    const struct {
        const char* type;
        json patch;
        std::string change;  // from the file without the patch
    } cases[] = {
        // Defaults of the classes, and null.
        {"llama", {{"num_key_value_heads", "-"}}, "kv_heads is 4, this model has 2"},
        {"llama", {{"num_key_value_heads", nullptr}}, "kv_heads is 4, this model has 2"},
        {"mistral", {{"num_key_value_heads", "-"}}, "kv_heads is 8, this model has 2"},
        {"mistral", {{"num_key_value_heads", nullptr}}, "kv_heads is 4, this model has 2"},
        {"qwen2", {{"num_key_value_heads", "-"}}, "kv_heads is 32, this model has 2"},
        {"qwen3", {{"num_key_value_heads", "-"}}, "kv_heads is 32, this model has 2"},
        {"nanochat", {{"num_key_value_heads", "-"}}, "kv_heads is 4, this model has 2"},
        {"llama", {{"head_dim", nullptr}}, ""},
        {"llama", {{"head_dim", 64}}, "head_dim is 64, this model has 32"},
        {"qwen3", {{"head_dim", "-"}}, "head_dim is 128, this model has 32"},
        {"llama", {{"tie_word_embeddings", true}}, "tied is true, this model has false"},
        {"gpt2", {{"tie_word_embeddings", true}}, ""},
        {"llama", {{"rms_norm_eps", 1e-6}}, ""},
        {"mistral", {{"rms_norm_eps", 1e-5}}, "norm_eps is 1e-05, this model has 1e-06"},
        {"nanochat", {{"final_logit_softcapping", nullptr}}, "logit_cap is null, this model has 15.0"},
        {"nanochat", {{"final_logit_softcapping", 15.0}}, ""},
        {"qwen2", {{"attention_bias", true}, {"use_mrope", false}}, ""},
        // Windows.
        {"mistral",
         {{"sliding_window", "-"}},
         "window is 4096, this model has null; window_layers is \"SS\", this model has null"},
        {"mistral",
         {{"sliding_window", 8}},
         "window is 8, this model has null; window_layers is \"SS\", this model has null"},
        {"qwen2", {{"sliding_window", 8}}, ""},
        {"qwen2", {{"use_sliding_window", true}, {"sliding_window", 8}}, ""},  // from layer 28 on
        {"qwen2",
         {{"use_sliding_window", true}, {"max_window_layers", 1}},
         "window is 4096, this model has null; window_layers is \"LS\", this model has null"},
        {"qwen3", {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}, ""},
        {"qwen3",
         {{"use_sliding_window", true},
          {"sliding_window", 8},
          {"layer_types", {"sliding_attention", "full_attention"}}},
         "window is 8, this model has null; window_layers is \"SL\", this model has null"},
        // Rotary positions: in either place, and in both.
        {"llama", {{"rope_theta", 500.0}}, "rope_theta is 500.0, this model has 10000.0"},
        {"qwen2",
         {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}}}},
         "rope_theta is 500.0, this model has 10000.0"},
        {"qwen2",
         {{"rope_theta", 500.0}, {"rope_parameters", {{"rope_theta", 500.0}}}},
         "rope_theta is 500.0, this model has 10000.0"},
        {"llama", {{"rope_scaling", nullptr}, {"rope_parameters", nullptr}}, ""},
        {"llama", {{"rope_scaling", json::object()}}, ""},
        {"llama", {{"rope_scaling", llama3()}}, kScaled},
        {"llama", {{"rope_scaling", llama3({{"rope_type", "-"}, {"type", "llama3"}})}}, kScaled},
        {"llama", {{"rope_parameters", llama3()}}, kScaled},
        {"mistral", {{"rope_scaling", llama3()}, {"rope_parameters", llama3()}}, kScaled},
        {"llama",
         {{"rope_scaling", llama3({{"original_max_position_embeddings", "-"}})},
          {"original_max_position_embeddings", 32}},
         kScaled},
        {"qwen3",
         {{"rope_parameters", llama3({{"original_max_position_embeddings", "-"}})},
          {"original_max_position_embeddings", 32}},
         kScaled},
        {"llama", {{"original_max_position_embeddings", 32}}, ""},
        {"llama", {{"partial_rotary_factor", 1.0}, {"rope_parameters", {{"partial_rotary_factor", 1.0}}}}, ""},
        // Keys that change nothing.
        {"gpt2", {{"attn_pdrop", 0.1}, {"resid_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"summary_type", "cls_index"}}, ""},
        {"gpt2",
         {{"architectures", {"GPT2Model"}},
          {"n_inner", 512},
          {"n_ctx", 1024},
          {"activation_function", "gelu_pytorch_tanh"}},
         ""},
        {"gpt2",
         {{"task_specific_params", {{"text-generation", {{"do_sample", true}}}}}, {"pruned_heads", json::object()}},
         ""},
        {"llama",
         {{"attention_dropout", 0.1}, {"pretraining_tp", 2}, {"initializer_range", 0.01}, {"temperature", 0.6}},
         ""},
        {"mistral",
         {{"architectures", {"MistralForCausalLM"}},
          {"transformers_version", "4.34.0.dev0"},
          {"torch_dtype", "bfloat16"}},
         ""},
        {"llama", {{"invented_in_2030", nullptr}}, ""},
        {"qwen3", quantized("/config_groups/group_0/weights", {{"num_bits", 8}}), ""},
    };
    for (const auto& [type, patch, change] : cases) {
        CAPTURE(type);
        CAPTURE(patch.dump());
        CHECK(differences(read(type, patch), read(type, json::object())) == change);
    }
}

TEST_CASE("config.json: keys that are refused by name") {
    const struct {
        const char* type;
        json patch;
        const char* problem;
    } cases[] = {
        // A value that no class assumes.
        {"gpt2", {{"n_layer", "-"}}, "\"n_layer\" is missing"},
        {"llama", {{"intermediate_size", "-"}}, "\"intermediate_size\" is missing"},
        {"llama", {{"hidden_size", nullptr}}, "\"hidden_size\" is null"},
        {"qwen3", {{"head_dim", nullptr}}, "\"head_dim\" is null"},
        {"llama", {{"tie_word_embeddings", nullptr}}, "\"tie_word_embeddings\" is null"},
        {"llama", {{"rms_norm_eps", nullptr}}, "\"rms_norm_eps\" is null"},
        {"llama", {{"rope_scaling", llama3({{"factor", "-"}})}}, "\"factor\" is missing"},
        {"llama", {{"rope_scaling", llama3({{"low_freq_factor", "-"}})}}, "\"low_freq_factor\" is missing"},
        {"llama", {{"rope_parameters", llama3({{"high_freq_factor", "-"}})}}, "\"high_freq_factor\" is missing"},
        {"llama",
         {{"rope_scaling", llama3({{"original_max_position_embeddings", "-"}})}},
         "\"original_max_position_embeddings\" is missing"},
        // Two values for the same thing.
        {"llama",
         {{"rope_scaling", llama3()}, {"original_max_position_embeddings", 16}},
         "\"rope_scaling\" contradicts"},
        {"llama",
         {{"rope_scaling", llama3()}, {"rope_parameters", llama3({{"factor", 4.0}})}},
         "\"rope_parameters\" contradicts"},
        {"llama",
         {{"rope_scaling", llama3()}, {"rope_parameters", {{"rope_type", "default"}}}},
         "\"rope_parameters\" contradicts"},
        {"qwen2",
         {{"rope_theta", 100.0}, {"rope_parameters", {{"rope_theta", 500.0}}}},
         "\"rope_parameters\" contradicts"},
        // Rotary positions of another kind.
        {"qwen2", {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}, "\"yarn\""},
        {"llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}, "\"linear\""},
        {"llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}}, "\"dynamic\""},
        {"llama", {{"rope_parameters", llama3({{"attention_factor", 2.0}})}}, "\"attention_factor\" is 2.0"},
        {"llama", {{"rope_parameters", {{"factor", 2.0}}}}, "\"factor\" is 2.0"},
        {"llama", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}, "\"full_attention\" is"},
        {"llama", {{"partial_rotary_factor", 0.5}}, "\"partial_rotary_factor\" is 0.5"},
        {"llama", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "\"partial_rotary_factor\" is 0.5"},
        // Another computation.
        {"gpt2", {{"activation_function", "gelu"}}, "\"activation_function\" is \"gelu\""},
        {"gpt2", {{"layer_norm_epsilon", 1e-6}}, "\"layer_norm_epsilon\" is"},
        {"gpt2", {{"n_inner", 100}}, "\"n_inner\" is 100"},
        {"gpt2", {{"scale_attn_weights", false}}, "\"scale_attn_weights\" is false"},
        {"gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "\"scale_attn_by_inverse_layer_idx\" is true"},
        {"gpt2", {{"tie_word_embeddings", false}}, "\"tie_word_embeddings\" is false"},
        {"gpt2", {{"add_cross_attention", true}}, "\"add_cross_attention\" is true"},
        {"gpt2", {{"pruned_heads", {{"0", {1}}}}}, "\"pruned_heads\" is"},
        {"gpt2", {{"hidden_size", 64}}, "\"hidden_size\" is 64"},
        {"llama", {{"attention_bias", true}}, "\"attention_bias\" is true"},
        {"llama", {{"mlp_bias", true}}, "\"mlp_bias\" is true"},
        {"llama", {{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\""},
        {"llama", {{"sliding_window", 8}}, "\"sliding_window\" is 8"},
        {"llama", {{"layer_types", {"full_attention", "full_attention"}}}, "\"layer_types\" is"},
        {"mistral", {{"attention_bias", true}}, "\"attention_bias\" is true"},
        {"mistral", {{"layer_types", {"full_attention", "sliding_attention"}}}, "\"layer_types\" is"},
        {"qwen2", {{"attention_bias", false}}, "\"attention_bias\" is false"},
        {"qwen2", {{"use_mrope", true}}, "\"use_mrope\" is true"},
        {"qwen2", {{"head_dim", 72}, {"is_causal", false}}, "\"is_causal\" is false"},
        {"qwen2", {{"layer_types", {"sliding_attention", "full_attention"}}}, "no window"},
        {"qwen3", {{"attention_bias", true}}, "\"attention_bias\" is true"},
        {"nanochat", {{"tie_word_embeddings", true}}, "\"tie_word_embeddings\" is true"},
        {"llama", {{"num_local_experts", 8}}, "\"num_local_experts\" is 8"},
        {"llama", {{"per_layer_config", {{"0", {{"head_dim", 64}}}}}}, "\"per_layer_config\" is"},
        {"llama", {{"auto_map", {{"AutoModel", "mine.Model"}}}}, "remove it from the file"},
        {"llama", {{"architectures", {"LlamaForCausalLMEagle3"}}}, "\"architectures\" has \"LlamaForCausalLMEagle3\""},
        {"mistral", {{"architectures", {"MistralForSequenceClassification"}}}, "it must be \"MistralForCausalLM\""},
        {"llama", quantized("/quant_method", "gptq"), "\"quant_method\" is \"gptq\""},
        {"llama", quantized("/format", "int-quantized"), "\"format\" is \"int-quantized\""},
        {"llama", quantized("/kv_cache_scheme", {{"num_bits", 8}}), "\"kv_cache_scheme\" is"},
        {"llama", quantized("/config_groups/group_0/input_activations", {{"num_bits", 8}}), "\"input_activations\""},
        {"gemma", json::object(), "(gpt2, llama, mistral, qwen2, qwen3, nanochat)"},
    };
    for (const auto& [type, patch, problem] : cases) {
        CAPTURE(type);
        CAPTURE(patch.dump());
        CHECK(contains(error_of([&] { read(type, patch); }, ExitCode::bad_flags), problem));
    }
}

TEST_CASE("config.json: what is written is read back as the same model") {
    for (const std::string& name : model_names()) {
        CAPTURE(name);
        const ModelConfig model = find_model(name);
        CHECK(differences(model_from_json(json(hf_model_json(model)), name), model) == "");
    }
}

// Otherwise an export, also the one at the end of a run, would be another model for other programs.
TEST_CASE("model config: settings that config.json cannot say are refused before training") {
    const auto refused = [](const char* name, auto change) {
        ModelConfig model = find_model(name);
        change(model);
        return error_of([&] { model.validate(); }, ExitCode::bad_flags);
    };
    for (const char* name : {"llama3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b"})
        CHECK(contains(refused(name, [](ModelConfig& m) { m.logit_cap = 30; }),
                       "has no such setting: logit_cap is null, this model has 30.0"));
    for (const char* name : {"llama3.2-1b", "nano-d4"})
        CHECK(contains(refused(name, [](ModelConfig& m) { m.window = 64; }), "window is null, this model has 64"));
    CHECK(contains(refused("mistral-7b", [](ModelConfig& m) { m.window_layers = "SL"; }), "window_layers is"));
    CHECK(contains(refused("nano-d4", [](ModelConfig& m) { m.tied = true; }), "\"tie_word_embeddings\" is true"));
    for (const char* name : {"qwen2.5-0.5b", "qwen3-0.6b"})
        CHECK(refused(name, [](ModelConfig& m) { m.window = 64, m.window_layers = "SL"; }) == "");
    CHECK(refused("mistral-7b", [](ModelConfig& m) { m.window = 0; }) == "");
    CHECK(refused("nano-d4", [](ModelConfig& m) { m.logit_cap = 0; }) == "");
}
