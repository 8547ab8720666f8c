// The models of llama_block.cpp as Hugging Face's config.json describes them: LlamaForCausalLM, Qwen3ForCausalLM, and
// NanoChatForCausalLM (nanochat as of October 2025).
#pragma once
#include "llmc/model/architecture.h"

namespace llmc {

extern const ModelDescription kLlamaDescription, kQwen3Description, kNanoDescription;

}  // namespace llmc
