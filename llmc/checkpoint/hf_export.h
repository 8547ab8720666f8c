// Writes models as Hugging Face stores them (hf_weights.h), one parameter at a time. Needs memory for twice the largest
// tensor.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/checkpoint/weight_source.h"

namespace llmc {

// Writes `path` in F32, and config.json next to it. Fetches every tensor once, in the order of the table. `end_token`
// is the token between documents, or -1 if unknown.
void export_hf(const std::string& path, const ModelConfig& model, int end_token, const FetchTensor& fetch);

// The number format of an exported directory. fp8 stores the matrices of the blocks' linear layers as F8_E4M3 codes.
// Each is followed by a tensor with its name and "_scale" (F32, one element):
//
//   value = code * scale,   scale = max |value| / 448
//
// compressed-tensors, and with it vLLM, stores weights with one scale per tensor this way ("float-quantized" in
// config.json). Everything else is BF16.
enum class HfType { fp32, bf16, fp8 };

constexpr uint64_t kHfShardBytes = 5'000'000'000;  // a larger model is split into several files, as Hugging Face does

struct HfFormat {
    HfType type = HfType::fp32;
    int end_token = -1;  // between documents; -1 if unknown
    uint64_t shard_bytes = kHfShardBytes;
};

// Writes a directory that from_pretrained() can load: model.safetensors (or shards and model.safetensors.index.json),
// then generation_config.json, which makes generate() stop at the end token, and config.json last. `directory` must
// exist.
void export_hf_directory(const std::string& directory, const ModelConfig& model, const HfFormat& format,
                         const FetchTensor& fetch);

}  // namespace llmc
