// Export to and import from Hugging Face GPT-2 files, one parameter at a time: memory for the largest tensor, twice.
#include "llmc/checkpoint/hf_gpt2.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "llmc/checkpoint/weight_files.h"
#include "llmc/device/error.h"
#include "llmc/model/config.h"

namespace llmc {

namespace {

const char* const kPrefix = "transformer.";

// One parameter of a block. Extents are in channels and in our order (out, in); columns 0 is a vector.
struct BlockParameter {
    const char* ours;
    const char* hf;
    int64_t rows, columns;
};

constexpr BlockParameter kBlock[] = {
    {"ln1.weight", "ln_1.weight", 1, 0},
    {"ln1.bias", "ln_1.bias", 1, 0},
    {"qkv.weight", "attn.c_attn.weight", 3, 1},
    {"qkv.bias", "attn.c_attn.bias", 3, 0},
    {"attn_proj.weight", "attn.c_proj.weight", 1, 1},
    {"attn_proj.bias", "attn.c_proj.bias", 1, 0},
    {"ln2.weight", "ln_2.weight", 1, 0},
    {"ln2.bias", "ln_2.bias", 1, 0},
    {"fc.weight", "mlp.c_fc.weight", 4, 1},
    {"fc.bias", "mlp.c_fc.bias", 4, 0},
    {"fc_proj.weight", "mlp.c_proj.weight", 1, 4},
    {"fc_proj.bias", "mlp.c_proj.bias", 1, 0},
};

// "h.12.qkv.weight": splits off "h.12." and finds the rest; nullptr if the name is not of that form.
const BlockParameter* find_block_parameter(const std::string& ours, std::string* block) {
    if (ours.compare(0, 2, "h.") != 0) return nullptr;
    const size_t dot = ours.find('.', 2);
    if (dot == std::string::npos || dot == 2 || ours.find_first_not_of("0123456789", 2) != dot) return nullptr;
    *block = ours.substr(0, dot + 1);
    const std::string rest = ours.substr(dot + 1);
    for (const BlockParameter& parameter : kBlock) {
        if (rest == parameter.ours) return &parameter;
    }
    return nullptr;
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

int64_t count_elements(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
}

void check_config(const std::string& path, const HfGpt2Config& config) {
    const bool positive = config.layers > 0 && config.channels > 0 && config.heads > 0 && config.vocab > 0 &&
                          config.context > 0 && config.channels % config.heads == 0;
    if (positive) return;
    throw Error(ExitCode::checkpoint,
                strprintf("%s: layers=%lld channels=%lld heads=%lld vocab=%lld context=%lld is no GPT-2: all must be "
                          "positive and channels a multiple of heads",
                          path.c_str(), static_cast<long long>(config.layers), static_cast<long long>(config.channels),
                          static_cast<long long>(config.heads), static_cast<long long>(config.vocab),
                          static_cast<long long>(config.context)));
}

nlohmann::ordered_json hf_config(const HfGpt2Config& config) {
    nlohmann::ordered_json json = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"n_layer", config.layers},
        {"n_head", config.heads},
        {"n_embd", config.channels},
        {"n_positions", config.context},
        {"n_ctx", config.context},
        {"vocab_size", config.vocab},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", 1e-5},
        {"tie_word_embeddings", true},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"torch_dtype", "float32"},
    };
    // The defaults, GPT-2's <|endoftext|>, lie outside any smaller vocabulary.
    const nlohmann::ordered_json end_of_text = config.vocab == 50257 ? nlohmann::ordered_json(50256) : nullptr;
    json["bos_token_id"] = end_of_text;
    json["eos_token_id"] = end_of_text;
    return json;
}

void write_config(const std::string& model_path, const HfGpt2Config& config) {
    const size_t slash = model_path.rfind('/');
    const std::string path = (slash == std::string::npos ? "" : model_path.substr(0, slash + 1)) + "config.json";
    const std::string temporary = path + ".tmp";
    errno = 0;
    std::ofstream file(temporary, std::ios::trunc);
    file << hf_config(config).dump(2) << "\n";
    file.close();
    if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
        const std::string reason = std::strerror(errno);
        std::remove(temporary.c_str());
        throw Error(ExitCode::checkpoint, strprintf("%s: cannot write it: %s", path.c_str(), reason.c_str()));
    }
}

// The file's name for a Hugging Face name: with the prefix, without it, or empty if it has neither.
std::string name_in_file(const WeightFiles& file, const std::string& full_name) {
    if (file.contains(full_name)) return full_name;
    const std::string bare = full_name.substr(std::strlen(kPrefix));
    return file.contains(bare) ? bare : "";
}

bool is_ignored(const std::string& name) {
    const auto ends_with = [&](const char* suffix) {
        const size_t length = std::strlen(suffix);
        return name.size() >= length && name.compare(name.size() - length, length, suffix) == 0;
    };
    return name == "lm_head.weight" || ends_with(".attn.bias") || ends_with(".attn.masked_bias");
}

// Names in the file, in the order of specs. Every tensor is there in the right shape and type, and no other is.
std::vector<std::string> match_tensors(const WeightFiles& file, const std::vector<TensorSpec>& specs) {
    std::vector<std::string> names;
    for (const TensorSpec& spec : specs) {
        const std::string name = name_in_file(file, spec.name);
        const std::string wanted = shape_text(spec.shape);
        if (name.empty()) {
            throw Error(ExitCode::checkpoint, strprintf("%s: has no tensor %s %s, which this model needs; choose the model that the file holds (-e, or --layers "
                                  "--heads --channels)",
                                                        file.path().c_str(), spec.name.c_str(), wanted.c_str()));
        }
        const TensorInfo& info = file.info(name);
        if (info.shape != spec.shape) {
            throw Error(ExitCode::checkpoint,
                        strprintf("%s: tensor %s is %s, this model needs %s; choose the model that the file holds",
                                  file.file_with(name).path().c_str(), name.c_str(), shape_text(info.shape).c_str(),
                                  wanted.c_str()));
        }
        if (info.dtype != "F32" && info.dtype != "BF16" && info.dtype != "F16" && info.dtype != "F64") {
            throw Error(ExitCode::checkpoint,
                        strprintf("%s: tensor %s is %s; F32, BF16, F16 or F64 is needed",
                                  file.file_with(name).path().c_str(), name.c_str(), info.dtype.c_str()));
        }
        names.push_back(name);
    }
    const std::set<std::string> known(names.begin(), names.end());
    for (const auto& [name, where] : file.tensors()) {
        if (known.count(name) || is_ignored(name)) continue;
        throw Error(ExitCode::checkpoint,
                    strprintf("%s: tensor %s %s has no place in this model; choose the model that the file holds",
                              where->path().c_str(), name.c_str(), shape_text(file.info(name).shape).c_str()));
    }
    return names;
}

// config.json says what shapes cannot, the number of heads above all, and what its model computes otherwise than ours.
void check_described(const std::string& path, const HfGpt2Config& config) {
    if (path.empty()) return;
    ModelConfig described;
    try {
        described = find_model(path);
    } catch (const Error& error) {
        throw Error(ExitCode::checkpoint, error.what());
    }
    const struct {
        const char* name;
        int64_t there, here;
    } numbers[] = {{"n_layer", described.layers, config.layers},
                   {"n_head", described.heads, config.heads},
                   {"n_embd", described.channels, config.channels},
                   {"n_positions", described.context, config.context},
                   {"vocab_size", described.vocab, config.vocab}};
    std::string differences;
    for (const auto& number : numbers) {
        if (number.there == number.here || number.there == 0) continue;  // 0: it does not say
        differences += strprintf("%s%s is %lld, this model has %lld", differences.empty() ? "" : "; ", number.name,
                                 static_cast<long long>(number.there), static_cast<long long>(number.here));
    }
    if (differences.empty()) return;
    throw Error(ExitCode::checkpoint, strprintf("%s: %s; choose the model that the file holds: -e %s", path.c_str(),
                                                differences.c_str(), path.c_str()));
}

// Our head is wte. A file whose head is something else would load into a different model without a word.
void check_tied(const WeightFiles& file, const std::vector<float>& wte) {
    if (!file.contains("lm_head.weight")) return;
    const std::vector<float> head = file.read_floats("lm_head.weight");
    if (head.size() == wte.size() && std::memcmp(head.data(), wte.data(), wte.size() * sizeof(float)) == 0) return;
    throw Error(ExitCode::checkpoint,
                strprintf("%s: lm_head.weight differs from wte; only tied heads are supported", file.path().c_str()));
}

}  // namespace

std::vector<std::string> gpt2_parameter_names(int64_t layers) {
    std::vector<std::string> names = {"wte", "wpe"};
    for (int64_t layer = 0; layer < layers; ++layer) {
        for (const BlockParameter& parameter : kBlock) {
            names.push_back("h." + std::to_string(layer) + "." + parameter.ours);
        }
    }
    names.push_back("lnf.weight");
    names.push_back("lnf.bias");
    return names;
}

std::string hf_name(const std::string& ours) {
    static const std::map<std::string, std::string> outside_blocks = {
        {"wte", "wte.weight"}, {"wpe", "wpe.weight"}, {"lnf.weight", "ln_f.weight"}, {"lnf.bias", "ln_f.bias"}};
    const auto found = outside_blocks.find(ours);
    if (found != outside_blocks.end()) return kPrefix + found->second;
    std::string block;
    const BlockParameter* parameter = find_block_parameter(ours, &block);
    if (!parameter) throw Error(ExitCode::checkpoint, strprintf("%s is no parameter of a GPT-2", ours.c_str()));
    return kPrefix + block + parameter->hf;
}

bool hf_transposed(const std::string& ours) {
    std::string block;
    const BlockParameter* parameter = find_block_parameter(ours, &block);
    return parameter && parameter->columns > 0;
}

std::vector<TensorSpec> hf_specs(int64_t layers, int64_t channels, int64_t vocab, int64_t context) {
    std::vector<TensorSpec> specs;
    for (const std::string& ours : gpt2_parameter_names(layers)) {
        TensorSpec spec{hf_name(ours), "F32", {channels}};
        std::string block;
        const BlockParameter* parameter = find_block_parameter(ours, &block);
        if (ours == "wte") spec.shape = {vocab, channels};
        if (ours == "wpe") spec.shape = {context, channels};
        if (parameter) spec.shape = {parameter->rows * channels};
        if (parameter && parameter->columns) spec.shape.insert(spec.shape.begin(), parameter->columns * channels);
        specs.push_back(spec);
    }
    return specs;
}

void export_hf(const std::string& path, const HfGpt2Config& config,
               const std::function<void(const std::string& ours, std::vector<float>& out)>& fetch) {
    check_config(path, config);
    const std::vector<std::string> names = gpt2_parameter_names(config.layers);
    const std::vector<TensorSpec> specs = hf_specs(config.layers, config.channels, config.vocab, config.context);
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});  // Hugging Face refuses a file without this entry
    std::vector<float> values;
    for (size_t i = 0; i < names.size(); ++i) {
        const std::vector<int64_t>& shape = specs[i].shape;
        const size_t count = static_cast<size_t>(count_elements(shape));
        values.clear();
        fetch(names[i], values);
        const bool padded = names[i] == "wte" && values.size() > count && values.size() % config.channels == 0;
        if (values.size() != count && !padded) {
            throw Error(ExitCode::checkpoint, strprintf("%s: parameter %s has %zu elements, %zu are needed",
                                                        path.c_str(), names[i].c_str(), values.size(), count));
        }
        if (hf_transposed(names[i])) values = transpose(values, shape[1], shape[0]);
        writer.write(specs[i].name, values.data(), count * sizeof(float));
    }
    writer.finish();
    write_config(path, config);
}

void import_hf(const std::string& path, const HfGpt2Config& config,
               const std::function<void(const std::string& ours, const std::vector<float>& values)>& store) {
    check_config(path, config);
    const WeightFiles file(path);
    check_described(file.config_path(), config);
    const std::vector<std::string> ours = gpt2_parameter_names(config.layers);
    const std::vector<TensorSpec> specs = hf_specs(config.layers, config.channels, config.vocab, config.context);
    const std::vector<std::string> names = match_tensors(file, specs);
    for (size_t i = 0; i < names.size(); ++i) {
        std::vector<float> values = file.read_floats(names[i]);
        if (ours[i] == "wte") check_tied(file, values);
        if (hf_transposed(ours[i])) values = transpose(values, specs[i].shape[0], specs[i].shape[1]);
        store(ours[i], values);
    }
}

}  // namespace llmc
