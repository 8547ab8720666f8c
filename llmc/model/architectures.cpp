#include "llmc/model/architecture.h"
#include "llmc/model/gpt2_block.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/llama_block.h"
#include "llmc/model/llama_config.h"

namespace llmc {

constinit const Architecture kGpt2 = architecture_of<Gpt2Block>("gpt2", gpt2_table, &kGpt2Description);
constinit const Architecture kLlama = architecture_of<LlamaBlock>("llama", llama_table, &kLlamaDescription);
constinit const Architecture kQwen3 = architecture_of<LlamaBlock>("qwen3", qwen3_table, &kQwen3Description);
constinit const Architecture kNano = architecture_of<LlamaBlock>("nano", nano_table, &kNanoDescription);

const std::vector<const Architecture*>& architectures() {
    static const std::vector<const Architecture*> all = {&kGpt2, &kLlama, &kQwen3, &kNano};
    return all;
}

}  // namespace llmc
