// From tokens to text, for samples, and from a prompt to tokens. Training never needs this: shards hold tokens.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llmc {

class TokenDecoder {
public:
    // Ids 0..255 are bytes, 256 ends a document and is printed as a newline: what data/demo_corpus.py and
    // `prepare --tokenizer bytes` write.
    static TokenDecoder byte_vocabulary();

    // `name` is "bytes" or a file, recognized by its content: a tiktoken file (a line `base64 rank` a token) or an
    // llm.c tokenizer (magic 20240328, version 1 or 2).
    static TokenDecoder open(const std::string& name);

    int vocab() const { return static_cast<int>(pieces_.size()); }
    int end_token() const { return end_token_; }  // begins every document; -1: not known

    // The bytes of the tokens. Ids outside the vocabulary (a model's padded columns) become "<|id|>".
    std::string decode(const std::vector<int>& tokens) const;

    // Tokens of a prompt. Byte vocabulary: its bytes. Otherwise byte-pair encoding by rank inside words, where a word
    // takes the one space before it along. The official pre-tokenizer of GPT-2 is a regular expression that also cuts
    // between letters, digits, punctuation, contractions ('s, 'll) and kinds of white space. As almost no token of its
    // vocabulary crosses such a cut, the results agree on ordinary text; they may differ around contractions and runs
    // of mixed white space. Prepare training data with data/prepare, which uses the official one.
    std::vector<int> encode(const std::string& prompt) const;

    // The two tokens' bytes that byte-pair encoding merges into this one; or more, where tokens before it do not give
    // it.
    std::vector<std::string> parts_of(int token) const;

private:
    TokenDecoder() = default;
    static TokenDecoder from_llmc(const std::string& content, const std::string& path);
    static TokenDecoder from_tiktoken(const std::string& content, const std::string& path);
    void encode_word(const std::string& word, std::vector<int>& tokens) const;
    std::vector<std::string> merged(const std::string& word, int below) const;

    std::vector<std::string> pieces_;             // bytes of token id
    std::unordered_map<std::string, int> ranks_;  // id of bytes, without the end token; empty: byte vocabulary
    int end_token_ = -1;
};

// The prompt's bytes as tokens of the byte vocabulary.
std::vector<int> encode_bytes(const std::string& prompt);

// Bytes of `text` up to its last whole character: what it ends with may be the beginning of one more.
size_t complete_utf8(std::string_view text);

// Text that cannot disturb a terminal: printable UTF-8, newlines and tabs stay; control characters (escape sequences,
// C1, line and direction overrides) and invalid UTF-8 become \xNN, byte by byte.
std::string sanitize(const std::string& text);

}  // namespace llmc
