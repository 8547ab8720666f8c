// Token shards as llm.c writes them: a header of 256 int32 (1024 bytes: magic, version, number of tokens), then the
// tokens as uint16 (magic 20240520) or uint32 (magic 20240801), little-endian. A ShardSet presents the shards of one
// data set as one list of samples of T+1 tokens. It reads with pread, so any thread may use it at any time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/files.h"

namespace llmc {

// Files that match a shell pattern (including ~ and {a,b}), sorted by name. Leaves out sidecars (X.json next to a
// matched X). Throws an Error that names the pattern if nothing matches.
std::vector<std::string> expand_glob(const std::string& pattern);

// Facts about a file of tokens that its writer put into `<file>.json`. Every field may be missing.
struct Sidecar {
    std::optional<std::string> tokenizer;       // "bytes", "gpt2"
    std::optional<std::string> tokenizer_hash;  // distinguishes tokenizers of the same name
    std::optional<int64_t> vocab;               // number of token ids
    std::optional<int64_t> max_token;           // largest id in this file
    std::optional<int64_t> documents;
    std::optional<int64_t> tokens;
    std::optional<int64_t> bytes;         // bytes of the text before tokenization
    std::optional<std::string> checksum;  // "sha256:" and the SHA-256 of the tokens
    std::optional<int64_t> end_token;     // begins every document
    std::optional<double> entropy_floor;  // nats per token: no model can have a lower expected loss
    uint64_t fingerprint = 0;             // a hash of the sidecar's text
};

// The sidecar of a file of tokens. All fields are empty if it has none.
Sidecar read_sidecar(const std::string& path);

// A shard, or a file of questions (choices.h).
struct TokenFile {
    std::string path;
    Sidecar sidecar;
};

// "sha256:" and the hexadecimal digits of a SHA-256, as sidecars give it.
std::string sha256_text(std::string_view digest);

// Throws an Error unless all files come from one tokenizer, as far as their sidecars say: its name and hash, the
// vocabulary, and the token that begins documents.
void require_one_tokenizer(const std::vector<const TokenFile*>& files);

// The largest vocabulary of a sidecar or a model, four times that of the largest published tokenizers.
constexpr int kMostTokenIds = 1 << 20;

// A shard that cannot be read now. A later attempt may succeed: disks and file servers recover.
struct ReadError : Error {
    using Error::Error;
};

// An ordered set of shards that are open for reading.
class ShardSet {
public:
    // Opens and validates every file that matches any of the patterns, in the order of the patterns.
    explicit ShardSet(const std::vector<std::string>& patterns);
    // A single shard of random tokens below `vocab` in memory. Equal seeds give equal shards.
    static ShardSet random(int vocab, int64_t tokens, uint64_t seed);

    int shards() const { return static_cast<int>(shards_.size()); }
    const std::string& path(int shard) const { return shards_[shard].path; }
    int token_bytes() const { return token_bytes_; }  // 2 or 4, the same in every shard
    int64_t total_tokens() const { return total_tokens_; }

    const TokenFile& first() const { return shards_[0]; }
    const Sidecar& sidecar() const { return first().sidecar; }

    // Mean bytes of text per token, or nothing unless every sidecar gives its bytes. The tokens that begin documents
    // are no text.
    std::optional<double> bytes_per_token() const;

    // The token that begins every document, from the first shard's sidecar or the name of its tokenizer (bytes, gpt2).
    // Without a sidecar it is GPT-2's for 2-byte tokens and Llama 3's for 4-byte tokens, as in llm.c. Nothing if the
    // tokenizer is a different one.
    std::optional<int64_t> end_token() const;

    // Appends the shards to `files`, for require_one_tokenizer().
    void add_to(std::vector<const TokenFile*>& files) const;

    // The first file of `other` that is also in this set, under any path or as a copy; "" if there is none.
    std::string shared_file(const ShardSet& other) const;
    // The first file that is a copy of an earlier one of this set; "" if there is none.
    std::string copied_file() const;

    // Identifies the content and order of the shards, independent of file names. Hashes the lengths of the shards and
    // their tokens: all of them if the set has at most 16 million, otherwise blocks at equal distances, at least 8 per
    // shard.
    uint64_t fingerprint() const;
    // The same for each pattern. Only the first call reads the shards.
    const std::vector<uint64_t>& fingerprints_by_pattern() const;
    // The fingerprint of earlier versions, which only hashed the two ends of each shard.
    uint64_t fingerprint_of_ends() const;
    // Identifies the contents of the sidecars.
    uint64_t sidecars_fingerprint() const;

    // Throws an Error if a sidecar has the checksum of other tokens. Checks sets of at most 16 million tokens;
    // `data.prepare validate` checks larger ones.
    void check_checksums() const;

    // The number of samples of T tokens: the sum over shards of (tokens - 1) / T. Throws an Error if it is zero.
    int64_t samples(int T) const;
    // The same for each pattern. Samples of the first pattern come first. A pattern's may be zero.
    std::vector<int64_t> samples_by_pattern(int T) const;

    // Reads sample `sample` of samples(T): T+1 tokens. Sample i of a shard covers its tokens [i*T, i*T+T], so a
    // sample's last target is the next sample's first input. Throws a ReadError if it cannot be read or the shard was
    // replaced, and an Error if a token is >= vocab.
    void read_sample(int64_t sample, int T, int32_t* out, int64_t vocab) const;

    // Throws an Error if a token does not fit the vocabulary. If a sidecar gives the largest id, it is trusted. Shards
    // without sidecars are scanned: all of them if the set is smaller than full_scan_bytes, otherwise only the first
    // and the last (loaders check the tokens they read).
    void check_vocabulary(int vocab, int64_t full_scan_bytes = int64_t{1} << 30) const;

    // The first file of a pattern whose first tokens, at most `within`, are all different from `token`; "" if there is
    // none.
    std::string without_token(int64_t token, int64_t within = 1 << 24) const;

private:
    struct Shard : TokenFile {
        size_t pattern = 0;               // index of the pattern that matched it
        std::unique_ptr<InputFile> file;  // nullptr if it is opened for each read; see max_open_files
        int64_t tokens = 0;
        std::pair<uint64_t, uint64_t> identity;  // device and inode
        int64_t changed = 0;                     // time of its last change
        std::pair<int64_t, uint64_t> content{};  // number of tokens, and a hash of those in the middle; equal in copies
    };

    ShardSet() = default;
    void add_shard(const std::string& path, size_t pattern = 0);
    // Continues `hash` with the tokens of a shard from `first` on.
    uint64_t hash_tokens(const Shard& shard, int64_t first, int64_t count, uint64_t hash) const;
    void read_tokens(const Shard& shard, int64_t first, int64_t count, uint32_t* out) const;
    void scan_vocabulary(const Shard& shard, int64_t vocab) const;

    std::vector<Shard> shards_;
    int token_bytes_ = 0;
    int64_t total_tokens_ = 0;
    mutable std::vector<uint64_t> fingerprints_;  // one per pattern; empty until they are first asked for
};

// ---- the magic numbers of llm.c's and llmq's files ------------------------------------------------------------------

constexpr int32_t kLlmcModelMagic = 20240326;
// The kind of file that begins with this number, for the error message when a file of the wrong kind is given. "" if it
// is unknown.
const char* name_of_magic(int32_t magic);

}  // namespace llmc
