// The table of published models, the parameters and FLOPs of a shape, and the checks of a model's fields.
// build: fuzzed
#include "llmc/model/config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/files.h"
#include "llmc/data/shards.h"
#include "llmc/model/model_file.h"

namespace llmc {
namespace {

// GPT-2 shapes (Radford et al. 2019) under llm.c's depth names and Hugging Face's, GPT-3 shapes (Brown et al. 2020,
// table 2.1). The paper's 1.3B row (24 heads of 128 on 2048 channels) contradicts itself; 16 heads is what everybody
// trains.
const ModelConfig kGpt2Models[] = {
    {"tiny", 4, 4, 128, 50257, 256},  // for a CPU: a run of minutes
    {"d2", 2, 2, 128, 50257, 1024},
    {"d4", 4, 4, 256, 50257, 1024},
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

// The others: Llama 3 (arXiv 2407.21783) and 3.2, TinyLlama (2401.02385), Mistral 7B v0.1 (2310.06825), Qwen 2.5
// (2412.15115), Qwen3 (2505.09388), as their files on Hugging Face describe them.
struct OtherModel {
    const char* name;
    const Architecture* architecture;
    int layers, heads, kv_heads, channels, head_dim, hidden, vocab, context;
    double rope_theta, rope_factor;
    bool tied;
    int window = 0;
};
const OtherModel kOtherModels[] = {
    {"llama3-8b", &kLlama, 32, 32, 8, 4096, 128, 14336, 128256, 8192, 5e5, 0, false},
    {"llama3-70b", &kLlama, 80, 64, 8, 8192, 128, 28672, 128256, 8192, 5e5, 0, false},
    {"llama3.1-8b", &kLlama, 32, 32, 8, 4096, 128, 14336, 128256, 131072, 5e5, 8, false},
    {"llama3.2-1b", &kLlama, 16, 32, 8, 2048, 64, 8192, 128256, 131072, 5e5, 32, true},
    {"llama3.2-3b", &kLlama, 28, 24, 8, 3072, 128, 8192, 128256, 131072, 5e5, 32, true},
    {"tinyllama-1.1b", &kLlama, 22, 32, 4, 2048, 64, 5632, 32000, 2048, 1e4, 0, false},
    {"mistral-7b", &kMistral, 32, 32, 8, 4096, 128, 14336, 32000, 32768, 1e4, 0, false, 4096},
    {"qwen2.5-0.5b", &kQwen2, 24, 14, 2, 896, 64, 4864, 151936, 32768, 1e6, 0, true},
    {"qwen2.5-1.5b", &kQwen2, 28, 12, 2, 1536, 128, 8960, 151936, 131072, 1e6, 0, true},
    {"qwen2.5-3b", &kQwen2, 36, 16, 2, 2048, 128, 11008, 151936, 32768, 1e6, 0, true},
    {"qwen2.5-7b", &kQwen2, 28, 28, 4, 3584, 128, 18944, 152064, 131072, 1e6, 0, false},
    {"qwen3-0.6b", &kQwen3, 28, 16, 8, 1024, 128, 3072, 151936, 40960, 1e6, 0, true},
    {"qwen3-1.7b", &kQwen3, 28, 16, 8, 2048, 128, 6144, 151936, 40960, 1e6, 0, true},
    {"qwen3-4b", &kQwen3, 36, 32, 8, 2560, 128, 9728, 151936, 40960, 1e6, 0, true},
    {"qwen3-8b", &kQwen3, 36, 32, 8, 4096, 128, 12288, 151936, 40960, 1e6, 0, false},
    {"qwen3-14b", &kQwen3, 40, 40, 8, 5120, 128, 17408, 151936, 40960, 1e6, 0, false},
};

constexpr int kMaxLayers = 1000;

// nano-dN: nanochat's shapes, 64 channels a layer and no fewer than whole heads of 128 take.
ModelConfig nano_model(int depth) {
    const int heads = (64 * depth + 127) / 128;
    ModelConfig m{"nano-d" + std::to_string(depth), depth, heads, 128 * heads, 32768, 2048};
    m.architecture = &kNano;
    m.architecture->description->set_defaults(m);
    m.kv_heads = heads;
    return m;
}

// The N of "nano-dN"; 0: another name.
int nano_depth(const std::string& name) {
    if (name.size() > 10 || !name.starts_with("nano-d")) return 0;
    const int depth = std::atoi(name.c_str() + 6);
    return depth >= 1 && depth <= kMaxLayers && name == "nano-d" + std::to_string(depth) ? depth : 0;
}

const std::vector<ModelConfig>& models() {
    static const std::vector<ModelConfig> all = [] {
        std::vector<ModelConfig> models(std::begin(kGpt2Models), std::end(kGpt2Models));
        for (const OtherModel& other : kOtherModels) {
            ModelConfig m{other.name, other.layers, other.heads, other.channels, other.vocab, other.context};
            m.architecture = other.architecture;
            m.architecture->description->set_defaults(m);
            m.kv_heads = other.kv_heads;
            if (other.head_dim * other.heads != other.channels) m.own_head_dim = other.head_dim;
            m.hidden = other.hidden;
            m.tied = other.tied;
            m.rope.theta = other.rope_theta;
            m.rope.factor = other.rope_factor;
            m.window = other.window;
            models.push_back(m);
        }
        for (const int depth : {8, 12, 20, 32}) models.push_back(nano_model(depth));
        return models;
    }();
    return all;
}

// Limits far above anything sensible: they catch slips of the keyboard before arithmetic overflows.
constexpr int kMaxChannels = 1 << 16, kMaxContext = 1 << 20;

void check_range(const ModelConfig& m, const char* field, int value, int limit) {
    if (value < 1 || value > limit) refuse("model {}: {} is {}; it must be from 1 to {}", m.name, field, value, limit);
}

// "--heads 40 (head dimension 64) or --heads 20 (128)": the head counts the kernels could take at this width.
std::string possible_heads(int channels) {
    std::string text;
    for (int head_dim : {64, 128, 80, 96, 32, 256}) {
        if (channels % head_dim != 0) continue;
        text +=
            fmt::format("{}--heads {} (head dimension {})", text.empty() ? "" : " or ", channels / head_dim, head_dim);
    }
    return text;
}

// A suggestion for users of llm.c, whose models have other names than `name` here.
std::string hint_for_unknown(const std::string& name) {
    if (name.starts_with("gpt2:")) return fmt::format("; llm.c's {} is {} here", name, name.substr(5));
    for (const ModelConfig& m : models())
        if (m.name.starts_with("gpt3") && name == fmt::format("gpt3:c{}", m.channels))
            return fmt::format("; llm.c's {} is {} here", name, m.name);
    return name.ends_with(".bin") ? "; -e names a shape; use --init-from for weights to start from" : "";
}

// Checks a model whose heads have C / NH channels each.
void validate_heads(const ModelConfig& m) {
    if (m.channels % m.heads != 0)
        refuse("model {}: channels={} cannot be divided by heads={}; use {}", m.name, m.channels, m.heads,
               possible_heads(m.channels));
    if (!has_head_dimension(m.head_dim()))
        refuse("model {}: {} channels / {} heads = head dimension {}; the attention kernels have {}. Use {}", m.name,
               m.channels, m.heads, m.head_dim(), kHeadDimensionsText, possible_heads(m.channels));
}

void validate_window(const ModelConfig& m) {
    if (m.window == 0 && m.window_layers.empty()) return;
    check_range(m, "window", m.window, kMaxContext);
    if (m.window_layers.find_first_not_of("SL") != std::string::npos)
        refuse("model {}: \"window_layers\" is \"{}\"; it has S (the window) and L (all keys), as in SSSL", m.name,
               m.window_layers);
}

// An export must be the same model. A setting that the architecture's published class does not have would be lost: for
// example, other programs would read the weights of a model with windows as one that sees all keys.
void validate_export(const ModelConfig& m) {
    const std::string lost = differences(model_from_json(nlohmann::json(hf_model_json(m)), m.name), m);
    if (!lost.empty())
        refuse("model {}: an export would be another model, because {} has no such setting: {}", m.name,
               m.architecture->description->hf_class, lost);
}

}  // namespace

int ModelConfig::padded_vocab() const { return (vocab + 127) / 128 * 128; }

int ModelConfig::head_dim() const { return own_head_dim > 0 ? own_head_dim : heads > 0 ? channels / heads : 0; }

int64_t ModelConfig::parameters() const {
    const ModelTable tensors = table();
    int64_t sum = 0;
    for (const TensorRow& row : tensors.block) sum += layers * row.count();
    for (const auto* rows : {&tensors.embedding, &tensors.final})
        for (const TensorRow& row : *rows) sum += row.count();
    return sum;
}

int ModelConfig::short_layers() const {
    int count = 0;
    for (int layer = 0; layer < layers; layer++) count += window_of(layer) > 0;
    return count;
}

double ModelConfig::attention_flops_per_token(int T) const {
    if (!table().attention) return 0;
    const double seen = std::min(1.0, static_cast<double>(window) / T);  // by a query of a short layer
    const double whole_layers = layers - short_layers() * (1 - seen * (2 - seen));
    return 6.0 * whole_layers * static_cast<double>(attention_channels()) * T;
}

void ModelConfig::validate() const {
    check_range(*this, "layers", layers, kMaxLayers);
    check_range(*this, "heads", heads, kMaxChannels);
    check_range(*this, "channels", channels, kMaxChannels);
    check_range(*this, "vocab", vocab, kMostTokenIds);
    check_range(*this, "context", context, kMaxContext);
    if (channels % 32 != 0)
        refuse("model {}: channels={} is not a multiple of 32; use --channels {}", name, channels,
               std::max((channels + 16) / 32 * 32, 32));
    if (own_head_dim == 0) validate_heads(*this);
    if (own_head_dim != 0 && !has_head_dimension(own_head_dim))
        refuse("model {}: head dimension {}; the attention kernels have {}", name, own_head_dim, kHeadDimensionsText);
    if (heads % key_value_heads() != 0)
        refuse("model {}: {} heads cannot share {} heads of keys and values evenly; --heads must be a multiple of them",
               name, heads, key_value_heads());
    validate_window(*this);
    check_range(*this, "hidden", mlp_channels(), 4 * kMaxChannels);
    if (mlp_channels() % 32 != 0)
        refuse("model {}: {} channels inside the MLP are not a multiple of 32; make \"hidden\" {}", name,
               mlp_channels(), (mlp_channels() + 31) / 32 * 32);
    validate_export(*this);
}

std::vector<std::string> model_names() {
    std::vector<std::string> names;
    for (const ModelConfig& model : models()) names.push_back(model.name);
    return names;
}

bool is_model_name(const std::string& name) { return contains(model_names(), name) || nano_depth(name) > 0; }

ModelConfig find_model(const std::string& name_or_file) {
    for (const ModelConfig& model : models())
        if (model.name == name_or_file) return model;
    if (const int depth = nano_depth(name_or_file)) return nano_model(depth);
    if (directory_exists(name_or_file))
        return read_model_file((std::filesystem::path(name_or_file) / "config.json").string());
    const std::string hint = hint_for_unknown(name_or_file);
    if (name_or_file.ends_with(".json") || (hint.empty() && path_exists(name_or_file)))
        return read_model_file(name_or_file);
    refuse("unknown model \"{}\"{}. Known models: {}; or a JSON file with layers, heads, channels, vocab and context",
           name_or_file, hint, joined(model_names()));
}

}  // namespace llmc
