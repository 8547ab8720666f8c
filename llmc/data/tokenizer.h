// Text from tokens, for samples, and the bytes of text that tokens stand for. encoder.h turns prompts into tokens.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

struct TokenFile;

// The bytes that each token of a vocabulary contributes to text, read from one of several file formats.
class TokenDecoder {
public:
    // Ids 0 to 255 are bytes. Id 256 ends a document and prints as a newline. data/demo_corpus.py and `data.prepare
    // --tokenizer bytes` write such shards.
    static TokenDecoder byte_vocabulary();

    // Replaces an unknown tokenizer: text is token ids separated by spaces ("464 3290"). vocab() is 0.
    static TokenDecoder token_ids();

    // `name` is "bytes", a file, or a directory with one of tokenizer_files() in it. The content determines the format:
    //   - a table (parse_table())
    //   - a tokenizer.json of Hugging Face, whose table data.prepare makes
    static TokenDecoder open(const std::string& name);

    // A table that `path` has: a tiktoken file (one line `base64 rank` per token), or an llm.c tokenizer.bin (magic
    // 20240328, version 1 or 2; data.prepare also writes version 3, with longer tokens).
    static TokenDecoder parse_table(const std::string& content, const std::string& path);

    const std::string& name() const { return name_; }  // the argument of open(), "bytes" or "token ids"
    // The tokenizer that encodes prompts, for PromptEncoder and data.prepare: "bytes", the tokenizer.json next to a
    // tokenizer.bin, or the file itself. "" for token ids.
    const std::string& encoder() const { return encoder_; }
    const std::string& hash() const { return hash_; }  // tokenizer_hash of sidecars; "" if unknown
    void set_hash(const std::string& hash) { hash_ = hash; }
    int vocab() const { return static_cast<int>(pieces_.size()); }
    int end_token() const { return end_token_; }  // the token that begins every document; -1 if unknown
    void set_end_token(int token) { end_token_ = token; }

    // Throws Error(bad_data) if an id that both have stands for different text.
    void require_same(const TokenDecoder& other) const;
    // Throws Error(bad_data) if the file was made with another tokenizer, as far as its sidecar and the table of this
    // one say.
    void require_made(const TokenFile& file) const;

    // The bytes of the tokens. Ids outside the vocabulary (a model's padded columns), and tokens that add nothing to
    // text, become "<|id|>".
    std::string decode(const std::vector<int>& tokens) const;

    // The number of bytes that each id adds to text. The end token adds none.
    std::vector<int> text_bytes() const;
    // The bytes that the tokens of every document have in front of its text, such as SentencePiece's space.
    int prefix_bytes() const { return prefix_bytes_; }
    // False if the bytes of a document's tokens do not add up to its length, because the tokenizer changes text.
    bool counts_text() const { return counts_text_; }

    // The table in llm.c's format: version 2, or 3 if a token has more than 255 bytes.
    std::string as_table() const;

private:
    explicit TokenDecoder(const std::string& name) : name_(name), encoder_(name) {}
    static TokenDecoder from_llmc(const std::string& content, const std::string& path);
    static TokenDecoder from_tiktoken(const std::string& content, const std::string& path);

    std::string name_, encoder_;
    std::string hash_;
    std::vector<std::string> pieces_;  // bytes of each id; empty if token ids are printed
    int end_token_ = -1;
    int prefix_bytes_ = 0;
    bool counts_text_ = true;
};

// Throws Error(bad_data) if a tokenizer with this many tokens cannot belong to a vocabulary of `vocab` ids: if it has
// more tokens, or fewer than `fewest`.
void require_tokens_fit(const std::string& tokenizer, int tokens, int vocab, int fewest = 0);

// The tokenizer files in a directory, best first: tokenizer.bin, tokenizer.json, gpt2_tokenizer.bin, *.tiktoken.
std::vector<std::string> tokenizer_files(const std::string& directory);

struct TokenizerSearch {
    std::optional<TokenDecoder> tokenizer;
    std::string problem;         // why no tokenizer was found
    bool only_unusable = false;  // there are tokenizer files, but none can be used
};
// Returns the first tokenizer file of the directories that can be read and passes require_tokens_fit().
TokenizerSearch find_tokenizer(const std::vector<std::string>& directories, int vocab, int fewest = 0);

// The number of bytes of `text` up to its last whole character. The bytes after it may begin another character.
size_t complete_utf8(std::string_view text);
bool is_utf8(std::string_view text);  // all of it

// Makes text safe for a terminal. Printable UTF-8, newlines and tabs stay. Control characters (escape sequences, C1,
// line and direction overrides) and invalid UTF-8 become \xNN, byte by byte.
std::string sanitize(const std::string& text);

// ---- export (hf_tokenizer.cpp) -------------------------------------------------------------------------------------

// Tokens at the edges of documents; -1 if unknown. In the data of a run they are the same token.
struct DocumentTokens {
    int begin = -1, end = -1;
};

// The model that the tokenizer's files are written for.
struct HfTokenizerTarget {
    std::string directory;
    int vocab = 0, context = 0;
    DocumentTokens tokens;
    std::vector<int> end_tokens = {};  // of a chat model, whose tokenizer may name any of them
};

// True for the names of files that write_hf_tokenizer() may write.
bool is_hf_tokenizer_file(const std::string& name);

// Writes a tokenizer in the files that Hugging Face's programs read: tokenizer.json (of the tokenizers package) and
// tokenizer_config.json, which transformers and lm-evaluation-harness expect next to a model. The source, `tokenizer`,
// can be
//
//   a Hugging Face directory or tokenizer.json: the files are copied;
//   anything else whose tokenizer.json data.prepare can make: "bytes", and tables of GPT-2's vocabulary.
//
// The files name the target's tokens as bos_token and eos_token. Unknown ones stay as they are; without any, a token
// with a usual name is taken. Returns the tokens that the files name. Throws Error(bad_data) if `tokenizer` is none of
// these or has more tokens than the model's vocabulary.
DocumentTokens write_hf_tokenizer(const std::string& tokenizer, const HfTokenizerTarget& target);

}  // namespace llmc
