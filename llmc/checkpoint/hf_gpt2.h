// A model as Hugging Face stores it: names, shapes and layouts of model.safetensors, as its table has them
// (model_table.h), and the way between them and ours.
// All our matrices are (out, in) row-major; Hugging Face's block matrices are (in, out), so they are transposed on the
// way. Our wte may have padded rows; theirs has exactly vocab rows, and the head shares it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/checkpoint/safetensors.h"
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

// Writes `path` in F32 and config.json beside it. fetch fills `out` with one parameter in our layout; it may give
// padded rows, which are not written.
void export_hf(const std::string& path, const ModelConfig& config,
               const std::function<void(const std::string& ours, std::vector<float>& out)>& fetch);

// Reads a model of these numbers from a file or a Hugging Face directory (weight_files.h), whose config.json must
// agree, and hands over every parameter once, in our layout, without padded rows. Takes F32, BF16, F16 and F64, names
// with or without "transformer.". All shapes are checked before the first store. lm_head.weight is left out (an untied
// head, one that differs from wte, is an Error), and so are the attn.bias masks.
void import_hf(const std::string& path, const ModelConfig& config,
               const std::function<void(const std::string& ours, const std::vector<float>& values)>& store);

}  // namespace llmc
