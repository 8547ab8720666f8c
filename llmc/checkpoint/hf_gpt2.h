// A model as Hugging Face stores it: names, shapes and layouts of model.safetensors, as its table has them
// (model_table.h), and the way from them to ours (hf_export.h: the way back).
// All our matrices are (out, in) row-major; Hugging Face's block matrices are (in, out), so they are transposed on the
// way. Our wte may have padded rows; theirs has exactly vocab rows, and the head shares it.
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

// One tensor of model.safetensors (F32, Hugging Face's name and shape).
struct HfTensor {
    std::string ours;  // "h.0.qkv.weight"
    TensorSpec spec;
    bool transposed;  // stored as (columns, rows) of ours
};
// All of the model's table, in its order.
std::vector<HfTensor> hf_tensors(const ModelConfig& config);

// (rows, columns) -> (columns, rows).
std::vector<float> transpose(const std::vector<float>& in, int64_t rows, int64_t columns);

// A file or a Hugging Face directory (weight_files.h). Takes F32, BF16, F16 and F64, names with or without
// "transformer.". All shapes are checked when it is opened. lm_head.weight is left out (an untied head, one that
// differs from wte, is an Error), and so are the attn.bias masks.
class HfWeights : public WeightSource {
public:
    explicit HfWeights(const std::string& path);  // config.json says what it holds
    HfWeights(const std::string& path,
              const ModelConfig& model);  // with which config.json, if there is one, must agree

    const ModelConfig& model() const override { return model_; }
    std::vector<float> fetch(const std::string& name) const override;

private:
    void match();

    WeightFiles files_;
    ModelConfig model_;
    std::map<std::string, std::pair<std::string, HfTensor>> tensors_;  // by our name: the file's
};

}  // namespace llmc
