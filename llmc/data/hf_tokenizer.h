// A tokenizer in the files that Hugging Face's programs read: tokenizer.json (of the tokenizers package) and
// tokenizer_config.json, which transformers and lm-evaluation-harness expect next to a model. TokenDecoder::open()
// reads tokenizer.json.
#pragma once
#include <string>

namespace llmc {

// The model that the tokenizer's files are written for.
struct HfTokenizerTarget {
    std::string directory;
    int vocab = 0, context = 0;
    int end_token = -1;  // begins every document of the training data; -1 if unknown
};

// Writes the files. The source, `tokenizer`, can be
//
//   a Hugging Face directory or tokenizer.json: the files are copied, and tokenizer_config.json gets an eos_token and a
//   bos_token if it has no eos_token;
//   anything else that TokenDecoder::open() reads: the result is a byte-level BPE with that vocabulary, which splits
//   words like GPT-2's.
//
// Returns the id of the end token, or -1 if it is unknown. Throws Error(bad_data) if `tokenizer` is none of these, has
// more tokens than the model's vocabulary, or has tokens that are not merges of two earlier ones.
int write_hf_tokenizer(const std::string& tokenizer, const HfTokenizerTarget& target);

}  // namespace llmc
