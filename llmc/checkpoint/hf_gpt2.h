// GPT-2 as Hugging Face stores it: names, shapes and layouts of model.safetensors, and the way between them and ours.
// All our matrices are (out, in) row-major; Hugging Face's block matrices are (in, out), so they are transposed on the
// way. Our wte may have padded rows; theirs has exactly vocab rows, and the head shares it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/checkpoint/safetensors.h"

namespace llmc {

struct HfGpt2Config {
    int64_t layers = 0;
    int64_t channels = 0;
    int64_t heads = 0;
    int64_t vocab = 0;  // without padding
    int64_t context = 0;
};

// Our parameter names in file order: wte, wpe, h.0.ln1.weight, ..., lnf.weight, lnf.bias.
std::vector<std::string> gpt2_parameter_names(int64_t layers);

// "h.0.qkv.weight" -> "transformer.h.0.attn.c_attn.weight". Error for a name that is not ours.
std::string hf_name(const std::string& ours);
// Whether Hugging Face stores this parameter transposed: the four matrices of a block.
bool hf_transposed(const std::string& ours);
// Tensors of model.safetensors (F32, Hugging Face names and shapes), in the order of gpt2_parameter_names.
std::vector<TensorSpec> hf_specs(int64_t layers, int64_t channels, int64_t vocab, int64_t context);

// Writes `path` in F32 and config.json beside it. fetch fills `out` with one parameter in our layout; for wte it may
// give padded rows, only the first `vocab` rows are written.
void export_hf(const std::string& path, const HfGpt2Config& config,
               const std::function<void(const std::string& ours, std::vector<float>& out)>& fetch);

// Reads a GPT-2 of these numbers from a file or a Hugging Face directory (weight_files.h), whose config.json must
// agree, and hands over every parameter once, in our layout; wte comes with `vocab` rows. Takes F32, BF16, F16 and F64,
// names with or without "transformer.". All shapes are checked before the first store. lm_head.weight is left out (an
// untied head, one that differs from wte, is an Error), and so are the attn.bias masks.
void import_hf(const std::string& path, const HfGpt2Config& config,
               const std::function<void(const std::string& ours, const std::vector<float>& values)>& store);

}  // namespace llmc
