// A tokenizer as Hugging Face's programs read it: tokenizer.json (of the tokenizers package) and tokenizer_config.json,
// which transformers and lm-evaluation-harness want beside a model.
#pragma once
#include <string>

namespace llmc {

// Writes them into `directory`, from
//
//   a directory or tokenizer.json of Hugging Face's: its files, as they are;
//   anything that TokenDecoder::open() takes: a byte-level BPE with that vocabulary, which cuts words as GPT-2 does.
//
// Throws Error(bad_data) where `tokenizer` is none of these, or has more than `vocab` tokens (those of Hugging Face
// are not looked into), or its tokens are no merges of two earlier ones.
void write_hf_tokenizer(const std::string& tokenizer, int vocab, int context, const std::string& directory);

}  // namespace llmc
