// Tokenizers: text from tokens for samples, and tokens from a prompt. Training itself only needs shards, which contain
// tokens.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llmc {

// A vocabulary, read from one of several file formats.
class TokenDecoder {
public:
    // Ids 0 to 255 are bytes. Id 256 ends a document and prints as a newline. data/demo_corpus.py and `data.prepare
    // --tokenizer bytes` write such shards.
    static TokenDecoder byte_vocabulary();

    // Replaces an unknown tokenizer: text is token ids separated by spaces ("464 3290"). vocab() is 0.
    static TokenDecoder token_ids();

    // `name` is "bytes", a file, or a directory with one of tokenizer_files() in it. The content determines the format:
    //   - a tiktoken file (one line `base64 rank` per token)
    //   - an llm.c tokenizer (magic 20240328, version 1 or 2)
    //   - a tokenizer.json of Hugging Face with a byte-level BPE, such as those of GPT-2, Llama 3 and Qwen
    static TokenDecoder open(const std::string& name);

    const std::string& name() const { return name_; }  // the argument of open(), "bytes" or "token ids"
    int vocab() const { return static_cast<int>(pieces_.size()); }
    int end_token() const { return end_token_; }  // the token that begins every document; -1 if unknown
    void set_end_token(int token) { end_token_ = token; }

    // Throws Error(bad_data) if an id that both have stands for different text.
    void require_same(const TokenDecoder& other) const;

    // The bytes of the tokens. Ids outside the vocabulary (a model's padded columns) become "<|id|>".
    std::string decode(const std::vector<int>& tokens) const;

    // The number of bytes of text for each id. Tokens that are not text, such as the end token, have none.
    std::vector<int> text_bytes() const;

    // The tokens of a prompt. The byte vocabulary gives its bytes. All others use byte-pair encoding by rank within
    // words, where a word includes the one space before it. GPT-2's official pre-tokenizer is a regular expression that
    // also splits between letters, digits, punctuation, contractions ('s, 'll) and kinds of white space. Almost no
    // token of its vocabulary crosses such a split, so both agree on ordinary text. They may differ around contractions
    // and runs of mixed white space. Prepare training data with data/prepare, which uses the official one.
    std::vector<int> encode(const std::string& prompt) const;

    // The two pieces that byte-pair encoding merges into this token, or more than two if no earlier tokens lead to it.
    std::vector<std::string> parts_of(int token) const;

    // The tokenizer in llm.c's format (version 2). Throws Error(bad_data) if a token has more than 255 bytes.
    std::string as_llmc() const;

private:
    struct Token {
        int rank, id;  // byte-pair encoding first merges the neighbours with the lowest rank
    };

    explicit TokenDecoder(const std::string& name) : name_(name) {}
    static TokenDecoder from_llmc(const std::string& content, const std::string& path);
    static TokenDecoder from_tiktoken(const std::string& content, const std::string& path);
    static TokenDecoder from_hf(const std::string& content, const std::string& path);  // hf_tokenizer.cpp
    void encode_word(const std::string& word, std::vector<int>& tokens) const;
    std::vector<std::string> merged(const std::string& word, int below) const;

    std::string name_;
    std::vector<std::string> pieces_;                // bytes of each id; empty if token ids are printed
    std::unordered_map<std::string, Token> tokens_;  // by bytes, without special tokens; empty for the byte vocabulary
    int end_token_ = -1;
};

// Throws Error(bad_data) if a tokenizer with this many tokens cannot belong to a vocabulary of `vocab` ids: if it has
// more tokens, or fewer than `fewest`.
void require_tokens_fit(const std::string& tokenizer, int tokens, int vocab, int fewest = 0);

// The tokenizer files in a directory, best first: tokenizer.json, tokenizer.bin, gpt2_tokenizer.bin, *.tiktoken.
std::vector<std::string> tokenizer_files(const std::string& directory);

struct TokenizerSearch {
    std::optional<TokenDecoder> tokenizer;
    std::string problem;  // why no tokenizer was found
};
// Returns the first tokenizer file of the directories that can be read and passes require_tokens_fit().
TokenizerSearch find_tokenizer(const std::vector<std::string>& directories, int vocab, int fewest = 0);

// The prompt's bytes as tokens of the byte vocabulary.
std::vector<int> encode_bytes(const std::string& prompt);

// The number of bytes of `text` up to its last whole character. The bytes after it may begin another character.
size_t complete_utf8(std::string_view text);

// Makes text safe for a terminal. Printable UTF-8, newlines and tabs stay. Control characters (escape sequences, C1,
// line and direction overrides) and invalid UTF-8 become \xNN, byte by byte.
std::string sanitize(const std::string& text);

// ---- export (hf_tokenizer.cpp) -------------------------------------------------------------------------------------

// The model that the tokenizer's files are written for.
struct HfTokenizerTarget {
    std::string directory;
    int vocab = 0, context = 0;
    int end_token = -1;  // begins every document of the training data; -1 if unknown
};

// Writes a tokenizer in the files that Hugging Face's programs read: tokenizer.json (of the tokenizers package) and
// tokenizer_config.json, which transformers and lm-evaluation-harness expect next to a model. The source, `tokenizer`,
// can be
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
