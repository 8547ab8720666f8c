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

namespace llmc {

namespace {

const char* const kPrefix = "transformer.";

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

void check_config(const std::string& path, const ModelConfig& config) {
    const bool positive = config.layers > 0 && config.channels > 0 && config.heads > 0 && config.vocab > 0 &&
                          config.context > 0 && config.channels % config.heads == 0;
    if (positive) return;
    throw Error(ExitCode::checkpoint,
                strprintf("%s: layers=%d channels=%d heads=%d vocab=%d context=%d is no GPT-2: all must be positive "
                          "and channels a multiple of heads",
                          path.c_str(), config.layers, config.channels, config.heads, config.vocab, config.context));
}

nlohmann::ordered_json hf_config(const ModelConfig& config) {
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

void write_config(const std::string& model_path, const ModelConfig& config) {
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

// Names in the file, in the order of `tensors`. Every tensor is there in the right shape and type, and no other is.
std::vector<std::string> match_tensors(const WeightFiles& file, const std::vector<HfTensor>& tensors) {
    std::vector<std::string> names;
    for (const auto& [ours, spec, transposed] : tensors) {
        const std::string name = name_in_file(file, spec.name);
        const std::string wanted = shape_text(spec.shape);
        if (name.empty()) {
            throw Error(ExitCode::checkpoint, strprintf("%s: has no tensor %s %s, which this model needs; choose the "
                                                        "model that the file holds (-e, or --layers "
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
void check_described(const std::string& path, const ModelConfig& config) {
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

std::vector<HfTensor> hf_tensors(const ModelConfig& config) {
    const bool transposes = config.table(config).hf_transposed;
    std::vector<HfTensor> tensors;
    for (const TensorRow& row : all_tensors(config)) {
        HfTensor tensor{row.name, {kPrefix + row.hf_name, "F32", {row.rows}}, false};
        if (row.is_matrix()) tensor.spec.shape.push_back(row.columns);
        tensor.transposed = transposes && row.is_matrix() && row.block >= 0;
        if (tensor.transposed) std::swap(tensor.spec.shape[0], tensor.spec.shape[1]);
        tensors.push_back(tensor);
    }
    return tensors;
}

void export_hf(const std::string& path, const ModelConfig& config,
               const std::function<void(const std::string& ours, std::vector<float>& out)>& fetch) {
    check_config(path, config);
    std::vector<TensorSpec> specs;
    for (const HfTensor& tensor : hf_tensors(config)) specs.push_back(tensor.spec);
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});  // Hugging Face refuses a file without this entry
    std::vector<float> values;
    for (const auto& [ours, spec, transposed] : hf_tensors(config)) {
        const size_t count = static_cast<size_t>(count_elements(spec.shape));
        values.clear();
        fetch(ours, values);
        const size_t columns = static_cast<size_t>(spec.shape.back());
        const bool padded =
            !transposed && spec.shape.size() == 2 && values.size() > count && values.size() % columns == 0;
        if (values.size() != count && !padded) {
            throw Error(ExitCode::checkpoint, strprintf("%s: parameter %s has %zu elements, %zu are needed",
                                                        path.c_str(), ours.c_str(), values.size(), count));
        }
        if (transposed) values = transpose(values, spec.shape[1], spec.shape[0]);
        writer.write(spec.name, values.data(), count * sizeof(float));
    }
    writer.finish();
    write_config(path, config);
}

void import_hf(const std::string& path, const ModelConfig& config,
               const std::function<void(const std::string& ours, const std::vector<float>& values)>& store) {
    check_config(path, config);
    const WeightFiles file(path);
    check_described(file.config_path(), config);
    const std::vector<HfTensor> tensors = hf_tensors(config);
    const std::vector<std::string> names = match_tensors(file, tensors);
    for (size_t i = 0; i < names.size(); ++i) {
        const auto& [ours, spec, transposed] = tensors[i];
        std::vector<float> values = file.read_floats(names[i]);
        if (ours == "wte") check_tied(file, values);
        if (transposed) values = transpose(values, spec.shape[0], spec.shape[1]);
        store(ours, values);
    }
}

}  // namespace llmc
