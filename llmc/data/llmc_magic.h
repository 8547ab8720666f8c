// The magic numbers of llm.c's and llmq's files, for the error message when a file of the wrong kind is given.
#pragma once
#include <cstdint>

namespace llmc {

constexpr int32_t kLlmcModelMagic = 20240326;

// The kind of file that begins with this number, for a message, or "" if it is unknown.
inline const char* name_of_magic(int32_t magic) {
    switch (magic) {
        case 20240520:
        case 20240801:
            return " (a token shard: give it to --train)";
        case kLlmcModelMagic:
            return " (an llm.c model checkpoint: give it to --init-from)";
        case 20240803:
            return " (an llm.c checkpoint of Llama 3)";
        case 20240327:
            return " (an llm.c debug state)";
        case 20240328:
            return " (an llm.c tokenizer: give it to --tokenizer)";
        case 20240522:
            return " (an llm.c evaluation file)";
        case 20240527:
            return " (an llm.c training state)";
        case 0x2e4e4942:
            return " (an llmq shard: prepare the text again with data/prepare)";  // "BIN."
        case 0x04034b50:
            return " (a zip file, as PyTorch's pytorch_model.bin is: use the model.safetensors of that model)";  // "PK"
        default:
            return "";
    }
}

}  // namespace llmc
