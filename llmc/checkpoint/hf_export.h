// Writes models as Hugging Face stores them (hf_gpt2.h), one parameter at a time: memory for the largest tensor, twice.
#pragma once
#include <string>

#include "llmc/checkpoint/weight_source.h"

namespace llmc {

// Writes `path` in F32 and config.json beside it.
void export_hf(const std::string& path, const ModelConfig& model, const FetchTensor& fetch);

}  // namespace llmc
