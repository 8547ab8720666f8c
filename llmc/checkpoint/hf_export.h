// Writes models as Hugging Face stores them (hf_weights.h), one parameter at a time: memory for the largest tensor,
// twice.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/checkpoint/weight_source.h"

namespace llmc {

// Writes `path` in F32 and config.json next to it. Fetches every tensor once, in the table's order. `end_token`: the
// token between documents, -1 if unknown.
void export_hf(const std::string& path, const ModelConfig& model, int end_token, const FetchTensor& fetch);

// What the files of a directory hold. fp8: the matrices of the blocks' linear layers as F8_E4M3 codes, each with a
// tensor of its name and "_scale" behind it (F32, one element), and
//
//   value = code * scale,   scale = max |value| / 448
//
// which is how compressed-tensors, and with it vLLM, stores weights with one scale a tensor ("float-quantized" in
// config.json); everything else is BF16.
enum class HfType { fp32, bf16, fp8 };

constexpr uint64_t kHfShardBytes = 5'000'000'000;  // more is split into several files, as Hugging Face does

struct HfFormat {
    HfType type = HfType::fp32;
    int end_token = -1;  // between documents; -1 if unknown
    uint64_t shard_bytes = kHfShardBytes;
};

// Writes a directory that from_pretrained() can load: model.safetensors, or shards and model.safetensors.index.json,
// then generation_config.json, which makes generate() stop at the end token, and config.json last. `directory` exists.
void export_hf_directory(const std::string& directory, const ModelConfig& model, const HfFormat& format,
                         const FetchTensor& fetch);

}  // namespace llmc
