// A model as Hugging Face stores it: the names, shapes and layouts of model.safetensors, from the model's table
// (architecture.h), and the conversion in both directions.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/checkpoint/safetensors.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/kernels/state_array.h"
#include "llmc/model/config.h"

namespace llmc {

// ---- reading (hf_weights.cpp) ---------------------------------------------------------------------------------------
// All our matrices are (out, in) row-major. Hugging Face stores GPT-2's block matrices as (in, out), so they are
// transposed. Other architectures are stored as (out, in), in pieces that together form our qkv and fc. Our wte and
// head may have padded rows; theirs have exactly vocab rows. A tied head is wte.

// One tensor of model.safetensors (F32, Hugging Face's name and shape): one of our tensors, or some rows of it.
struct HfTensor {
    TensorRow row;  // "h.0.qkv.weight"
    TensorSpec spec;
    bool transposed = false;  // stored as (columns, rows) of ours
    int first_row = 0, rows = 0;
    int swapped_halves = 0;  // see HfPart

    uint64_t elements() const { return static_cast<uint64_t>(rows) * static_cast<uint64_t>(row.count() / row.rows); }
    // The file's values from the part of our tensor, and the reverse.
    std::vector<float> to_file(const std::vector<float>& ours) const;
    void from_file(const std::vector<float>& values, std::vector<float>& ours) const;
};
// All tensors of the model, in the order of its table.
std::vector<HfTensor> hf_tensors(const ModelConfig& config);

// Transposes (rows, columns) to (columns, rows).
std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t columns);

// The safetensors files of one model: a single file, or a Hugging Face directory. The directory has either
// model.safetensors or shards (model-00001-of-00002.safetensors, ...) with model.safetensors.index.json, which names
// the file of each tensor.
class WeightFiles {
public:
    // Opens all files, checks their headers, and checks shards against the index: every tensor must be in the file that
    // the index names, and none may appear twice.
    explicit WeightFiles(const std::string& file_or_directory);

    const std::string& path() const { return path_; }  // as given by the caller
    // The directory's config.json, or the one next to a file called model.safetensors; "" if there is none.
    const std::string& config_path() const { return config_path_; }

    const std::map<std::string, const SafetensorsFile*>& tensors() const { return tensors_; }  // by name
    bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
    // The file with this tensor. Throws if there is none.
    const SafetensorsFile& file_with(const std::string& name) const;
    const TensorInfo& info(const std::string& name) const { return file_with(name).info(name); }
    std::vector<float> read_floats(const std::string& name) const { return file_with(name).read_floats(name); }

private:
    void open_shards(const std::string& index_path);
    void add_file(const std::string& path);

    std::string path_, config_path_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, const SafetensorsFile*> tensors_;
};

// Weights in a file or a Hugging Face directory. Accepts F32, BF16, F16, F64 and our FP8 (below), and names with or
// without "transformer." (or "model."). Opening checks all shapes. Ignores attn.bias masks and the lm_head.weight of a
// tied model; throws an Error if that differs from wte.
class HfWeights : public WeightSource {
public:
    // config.json describes the model. Without that file it is `expected`, which also fills in what config.json leaves
    // open.
    explicit HfWeights(const std::string& path, const ModelConfig* expected = nullptr);
    std::vector<float> fetch(const std::string& name) const override;

private:
    WeightFiles files_;
    std::map<std::string, std::vector<std::pair<std::string, HfTensor>>> tensors_;  // by our name: the file's
};

// ---- writing (hf_export.cpp) ----------------------------------------------------------------------------------------
// One parameter at a time: this needs memory for twice the largest tensor.

// Writes `path` in F32, and config.json next to it. Fetches every tensor once, in the order of the table. `end_token`
// is the token between documents, or -1 if unknown.
void export_hf(const std::string& path, const ModelConfig& model, int end_token, const FetchTensor& fetch);

constexpr uint64_t kHfShardBytes = 5'000'000'000;  // a larger model is split into several files, as Hugging Face does

struct HfFormat {
    // fp8 stores the matrices of the blocks' linear layers as F8_E4M3 codes, and everything else in BF16. Codes are
    // followed by a tensor with their name and "_scale" (F32, one element):
    //
    //   value = code * scale,   scale = max |value| / 448
    //
    // compressed-tensors, and with it vLLM, stores weights with one scale per tensor this way ("float-quantized" in
    // config.json), but only those of torch.nn.Linear. The layers of GPT2LMHeadModel are Conv1D: transformers would
    // take their codes for weights, so GPT-2 is not exported in fp8.
    StateFormat type = StateFormat::fp32;
    int end_token = -1;  // between documents; -1 if unknown
    uint64_t shard_bytes = kHfShardBytes;
    int begin_token = -1;              // begins documents; -1: end_token
    std::vector<int> end_tokens = {};  // written instead of end_token if there are several
};

// Writes a directory that from_pretrained() can load: model.safetensors (or shards and model.safetensors.index.json),
// then generation_config.json, which makes generate() stop at the end token, and config.json last. `directory` must
// exist.
void export_hf_directory(const std::string& directory, const ModelConfig& model, const HfFormat& format,
                         const FetchTensor& fetch);

}  // namespace llmc
