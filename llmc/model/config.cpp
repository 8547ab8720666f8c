#include "llmc/model/config.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "llmc/device/error.h"

namespace llmc {
namespace {

using nlohmann::json;

// GPT-2 shapes (Radford et al. 2019) under llm.c's depth names and Hugging Face's, GPT-3 shapes (Brown et al. 2020,
// table 2.1). The paper's 1.3B row (24 heads of 128 on 2048 channels) contradicts itself; 16 heads is what everybody
// trains. 760m and 2.7b have head dimensions (96, 80) that no kernel here has: they are listed so that validate() can
// say so.
const ModelConfig kModels[] = {
    {"d6", 6, 6, 384, 50257, 1024},
    {"d12", 12, 12, 768, 50257, 1024},
    {"d24", 24, 16, 1024, 50257, 1024},
    {"d36", 36, 20, 1280, 50257, 1024},
    {"d48", 48, 25, 1600, 50257, 1024},
    {"gpt2", 12, 12, 768, 50257, 1024},
    {"gpt2-medium", 24, 16, 1024, 50257, 1024},
    {"gpt2-large", 36, 20, 1280, 50257, 1024},
    {"gpt2-xl", 48, 25, 1600, 50257, 1024},
    {"gpt3-125m", 12, 12, 768, 50257, 2048},
    {"gpt3-350m", 24, 16, 1024, 50257, 2048},
    {"gpt3-760m", 24, 16, 1536, 50257, 2048},
    {"gpt3-1.3b", 24, 16, 2048, 50257, 2048},
    {"gpt3-2.7b", 32, 32, 2560, 50257, 2048},
    {"gpt3-6.7b", 32, 32, 4096, 50257, 2048},
};

// Limits far above anything sensible: they catch slips of the keyboard before arithmetic overflows.
constexpr int kMaxLayers = 1000, kMaxChannels = 1 << 16, kMaxVocab = 1 << 24, kMaxContext = 1 << 20;

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::bad_flags, message); }

std::string joined_names() {
    std::string text;
    for (const ModelConfig& model : kModels) text += (text.empty() ? "" : ", ") + model.name;
    return text;
}

void check_range(const ModelConfig& m, const char* field, int value, int limit) {
    if (value < 1 || value > limit) {
        refuse(strprintf("model %s: %s is %d; it must be from 1 to %d", m.name.c_str(), field, value, limit));
    }
}

// "--heads 40 (head dimension 64) or --heads 20 (128)": the head counts the kernels could take at this width.
std::string possible_heads(int channels) {
    std::string text;
    for (int head_dim : {64, 128, 32}) {
        if (channels % head_dim != 0) continue;
        text +=
            strprintf("%s--heads %d (head dimension %d)", text.empty() ? "" : " or ", channels / head_dim, head_dim);
    }
    return text;
}

// Reads the first of `keys` that is present; `fallback` if none is.
int read_field(const json& file, const std::string& path, std::initializer_list<const char*> keys, int fallback) {
    for (const char* key : keys) {
        if (!file.contains(key) || file[key].is_null()) continue;
        const json& value = file[key];
        if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > 1e9) {
            refuse(strprintf("model file %s: \"%s\" is %s; it must be a positive whole number", path.c_str(), key,
                             value.dump().c_str()));
        }
        return value.get<int>();
    }
    if (fallback >= 0) return fallback;
    refuse(
        strprintf("model file %s: \"%s\" is missing; the fields are layers, heads, channels, vocab and context "
                  "(or Hugging Face's n_layer, n_head, n_embd, vocab_size, n_positions)",
                  path.c_str(), *keys.begin()));
}

void require_value(const json& file, const std::string& path, const char* key, std::initializer_list<json> allowed) {
    if (!file.contains(key) || file[key].is_null()) return;
    for (const json& value : allowed) {
        if (file[key] == value) return;
    }
    refuse(strprintf("model file %s: \"%s\" is %s, which is not the GPT-2 architecture (%s)", path.c_str(), key,
                     file[key].dump().c_str(), allowed.begin()->dump().c_str()));
}

// Hugging Face files hold many settings; the ones that would make a different architecture must have GPT-2's value.
void check_hugging_face_fields(const json& file, const std::string& path) {
    require_value(file, path, "model_type", {"gpt2"});
    require_value(file, path, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    require_value(file, path, "layer_norm_epsilon", {1e-5});
    require_value(file, path, "tie_word_embeddings", {true});
    require_value(file, path, "scale_attn_by_inverse_layer_idx", {false});
    const int channels = read_field(file, path, {"n_embd", "channels"}, -1);
    require_value(file, path, "n_inner", {4 * channels});
}

void check_own_fields(const json& file, const std::string& path) {
    for (const auto& item : file.items()) {
        const std::string& key = item.key();
        if (key == "name" || key == "layers" || key == "heads" || key == "channels" || key == "vocab" ||
            key == "context") {
            continue;
        }
        refuse(
            strprintf("model file %s: unknown field \"%s\"; the fields are name, layers, heads, channels, vocab and "
                      "context",
                      path.c_str(), key.c_str()));
    }
}

ModelConfig read_model_file(const std::string& path) {
    std::ifstream stream(path);
    if (!stream) refuse(strprintf("cannot open the model file %s", path.c_str()));
    const json file = json::parse(stream, nullptr, /*allow_exceptions=*/false);
    if (!file.is_object()) refuse(strprintf("model file %s is not a JSON object", path.c_str()));

    if (file.contains("n_layer") || file.contains("n_embd")) {
        check_hugging_face_fields(file, path);
    } else {
        check_own_fields(file, path);
    }
    ModelConfig model;
    const std::filesystem::path as_path(path);
    const bool in_model_folder = as_path.filename() == "config.json" && as_path.has_parent_path();
    model.name = in_model_folder ? as_path.parent_path().filename().string() : as_path.stem().string();
    if (file.contains("name") && file["name"].is_string()) model.name = file["name"].get<std::string>();
    model.layers = read_field(file, path, {"layers", "n_layer"}, -1);
    model.heads = read_field(file, path, {"heads", "n_head"}, -1);
    model.channels = read_field(file, path, {"channels", "n_embd"}, -1);
    model.vocab = read_field(file, path, {"vocab", "vocab_size"}, 0);
    model.context = read_field(file, path, {"context", "n_positions", "n_ctx"}, 0);
    return model;
}

// What somebody who comes from llm.c probably meant by `name`.
std::string hint_for_unknown(const std::string& name) {
    if (name.rfind("gpt2:", 0) == 0) return strprintf("; llm.c's %s is %s here", name.c_str(), name.c_str() + 5);
    if (name.rfind("gpt3:", 0) == 0) {
        const std::string width = name.substr(5);
        for (const ModelConfig& m : kModels) {
            if (m.name.rfind("gpt3", 0) == 0 && "c" + std::to_string(m.channels) == width) {
                return strprintf("; llm.c's %s is %s here", name.c_str(), m.name.c_str());
            }
        }
    }
    if (name.size() > 4 && name.compare(name.size() - 4, 4, ".bin") == 0) {
        return "; -e names a shape, weights to start from come with --init-from";
    }
    return "";
}

}  // namespace

int ModelConfig::padded_vocab() const { return (vocab + 127) / 128 * 128; }

int ModelConfig::head_dim() const { return heads > 0 ? channels / heads : 0; }

int64_t ModelConfig::parameters() const {
    const ModelTable tensors = table();
    int64_t sum = layers * tensors.block_parameters();
    for (const auto* rows : {&tensors.embedding, &tensors.final})
        for (const TensorRow& row : *rows) sum += row.count();
    return sum;
}

int64_t ModelConfig::padded_parameters() const { return parameters() + int64_t{padded_vocab() - vocab} * channels; }

int64_t ModelConfig::matrix_parameters() const {
    return layers * table().block_matrix_parameters() + int64_t{vocab} * channels;
}

double ModelConfig::attention_flops_per_token(int T) const {
    return table().attention ? 6.0 * layers * static_cast<double>(channels) * T : 0;
}

double ModelConfig::flops_per_token(int T) const {
    return 6.0 * static_cast<double>(matrix_parameters()) + attention_flops_per_token(T);
}

void ModelConfig::validate() const {
    check_range(*this, "layers", layers, kMaxLayers);
    check_range(*this, "heads", heads, kMaxChannels);
    check_range(*this, "channels", channels, kMaxChannels);
    check_range(*this, "vocab", vocab, kMaxVocab);
    check_range(*this, "context", context, kMaxContext);
    if (channels % 32 != 0) {
        const int below = channels / 32 * 32, above = below + 32;
        refuse(strprintf("model %s: channels=%d is not a multiple of 32; use --channels %d", name.c_str(), channels,
                         below > 0 && channels - below < above - channels ? below : above));
    }
    if (channels % heads != 0) {
        refuse(strprintf("model %s: channels=%d cannot be divided by heads=%d; use %s", name.c_str(), channels, heads,
                         possible_heads(channels).c_str()));
    }
    if (head_dim() != 32 && head_dim() != 64 && head_dim() != 128) {
        refuse(
            strprintf("model %s: %d channels / %d heads = head dimension %d; the attention kernels have 32, 64 and "
                      "128. Use %s",
                      name.c_str(), channels, heads, head_dim(), possible_heads(channels).c_str()));
    }
}

std::vector<std::string> model_names() {
    std::vector<std::string> names;
    for (const ModelConfig& model : kModels) names.push_back(model.name);
    return names;
}

bool is_model_name(const std::string& name) {
    for (const ModelConfig& model : kModels) {
        if (model.name == name) return true;
    }
    return false;
}

ModelConfig find_model(const std::string& name_or_file) {
    for (const ModelConfig& model : kModels) {
        if (model.name == name_or_file) return model;
    }
    namespace fs = std::filesystem;
    std::error_code ignored;
    if (fs::is_directory(name_or_file, ignored))
        return read_model_file((fs::path(name_or_file) / "config.json").string());
    const bool json_name = fs::path(name_or_file).extension() == ".json";
    if (json_name || (fs::exists(name_or_file, ignored) && hint_for_unknown(name_or_file).empty())) {
        return read_model_file(name_or_file);
    }
    refuse(
        strprintf("unknown model \"%s\"%s. Known models: %s; or a JSON file with layers, heads, channels, vocab and "
                  "context",
                  name_or_file.c_str(), hint_for_unknown(name_or_file).c_str(), joined_names().c_str()));
}

}  // namespace llmc
