// A model as Hugging Face stores it: names, shapes and layouts of model.safetensors, as its table has them
// (model_table.h), and the way from them to ours (hf_export.h: the way back).
// All our matrices are (out, in) row-major; Hugging Face's block matrices are (in, out), so they are transposed on the
// way; other architectures' are (out, in), and theirs are parts of our qkv and fc. Our wte and head may have padded
// rows; theirs have exactly vocab rows. A tied head is wte.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llmc/checkpoint/safetensors.h"
#include "llmc/checkpoint/weight_files.h"
#include "llmc/checkpoint/weight_source.h"
#include "llmc/model/config.h"

namespace llmc {

// One tensor of model.safetensors (F32, Hugging Face's name and shape): one of ours, or rows of it.
struct HfTensor {
    TensorRow row;  // "h.0.qkv.weight"
    TensorSpec spec;
    bool transposed = false;  // stored as (columns, rows) of ours
    int first_row = 0, rows = 0;
    int swapped_halves = 0;  // see HfPart

    uint64_t elements() const { return static_cast<uint64_t>(rows) * static_cast<uint64_t>(row.count() / row.rows); }
    // Its part of our tensor's values, as the file has them; and back.
    std::vector<float> to_file(const std::vector<float>& ours) const;
    void from_file(const std::vector<float>& values, std::vector<float>& ours) const;
};
// All of the model's table, in its order.
std::vector<HfTensor> hf_tensors(const ModelConfig& config);

// (rows, columns) -> (columns, rows).
std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t columns);

// A file or a Hugging Face directory (weight_files.h). Takes F32, BF16, F16 and F64, names with or without
// "transformer." (or "model."). All shapes are checked when it is opened. A tied model's lm_head.weight is left out
// (one that differs from wte is an Error), and so are the attn.bias masks.
class HfWeights : public WeightSource {
public:
    explicit HfWeights(const std::string& path);  // config.json says what it holds
    HfWeights(const std::string& path,
              const ModelConfig& model);  // with which config.json, if there is one, must agree

    const ModelConfig& model() const override { return model_; }
    std::vector<float> fetch(const std::string& name) const override;
    int end_token() const override;  // config.json's eos_token_id

private:
    void match();

    WeightFiles files_;
    ModelConfig model_;
    std::map<std::string, std::vector<std::pair<std::string, HfTensor>>> tensors_;  // by our name: the file's
};

}  // namespace llmc
