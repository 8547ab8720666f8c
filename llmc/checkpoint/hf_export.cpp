#include "llmc/checkpoint/hf_export.h"

#include <nlohmann/json.hpp>

#include "llmc/checkpoint/atomic_file.h"
#include "llmc/checkpoint/hf_gpt2.h"
#include "llmc/checkpoint/safetensors.h"

namespace llmc {
namespace {

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

void write_config(const std::string& model_path, const ModelConfig& model) {
    const size_t slash = model_path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : model_path.substr(0, slash + 1);
    write_atomically(folder + "config.json", hf_config(model).dump(2) + "\n");
}

}  // namespace

void export_hf(const std::string& path, const ModelConfig& model, const FetchTensor& fetch) {
    require_numbers(path, model);
    const std::vector<HfTensor> tensors = hf_tensors(model);
    const std::vector<TensorRow> rows = all_tensors(model);
    std::vector<TensorSpec> specs;
    for (const HfTensor& tensor : tensors) specs.push_back(tensor.spec);
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});  // Hugging Face refuses a file without this entry
    std::vector<float> values;
    for (size_t i = 0; i < rows.size(); i++) {
        fetch_exactly(path, rows[i], fetch, values);
        if (tensors[i].transposed) values = transpose(values, rows[i].rows, rows[i].columns);
        writer.write(tensors[i].spec.name, values.data(), values.size() * sizeof(float));
    }
    writer.finish();
    write_config(path, model);
}

}  // namespace llmc
