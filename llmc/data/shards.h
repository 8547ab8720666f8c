// Token shards as llm.c writes them: a header of 256 int32 (1024 bytes: magic, version, number of tokens), then the
// tokens, uint16 (magic 20240520) or uint32 (magic 20240801), little-endian. A ShardSet is the shards of one data set
// seen as one list of samples of T+1 tokens; it is read with pread, so any thread may read it at any time.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

// Files that match a shell pattern (~ and {a,b} too), sorted by name. Sidecars (X.json beside a matched X) are left
// out. No match is an Error that names the pattern.
std::vector<std::string> expand_glob(const std::string& pattern);

// What the writer of a shard knows about it, from `<shard>.json`. Every field may be missing.
struct Sidecar {
    std::optional<std::string> tokenizer;       // "bytes", "gpt2"
    std::optional<std::string> tokenizer_hash;  // tells tokenizers of one name apart
    std::optional<int64_t> vocab;               // number of token ids
    std::optional<int64_t> max_token;           // largest id in this shard
    std::optional<int64_t> documents;
    std::optional<int64_t> tokens;
    std::optional<int64_t> bytes;         // of the text that the tokens stand for
    std::optional<int64_t> end_token;     // begins every document
    std::optional<std::string> checksum;  // of the token bytes; for people and tools, not verified here
    std::optional<double> entropy_floor;  // nats per token: no model can have a lower expected loss
};

class ShardSet {
public:
    // Every value of a 32-bit token is below this.
    static constexpr int64_t any_vocab = std::numeric_limits<int64_t>::max();

    // Opens and validates every file that matches any of the patterns, in the order of the patterns.
    explicit ShardSet(const std::vector<std::string>& patterns);
    // One shard in memory, of random tokens below `vocab`; the same for the same seed.
    static ShardSet random(int vocab, int64_t tokens, uint64_t seed);
    ~ShardSet();
    ShardSet(ShardSet&&) noexcept;
    ShardSet& operator=(ShardSet&&) noexcept;

    int shards() const { return static_cast<int>(shards_.size()); }
    const std::string& path(int shard) const { return shards_[shard].path; }
    int token_bytes() const { return token_bytes_; }  // 2 or 4, the same in every shard
    int64_t total_tokens() const { return total_tokens_; }

    // The first shard's sidecar; all its fields are empty when there is none.
    const Sidecar& sidecar() const { return shards_[0].sidecar; }

    // Bytes of text that a token stands for, over all shards; nothing unless every sidecar knows its bytes.
    std::optional<double> bytes_per_token() const;

    // The token that begins every document: as the first shard's sidecar says, or its tokenizer's name (bytes, gpt2);
    // without either llm.c's, GPT-2's in tokens of 2 bytes and Llama 3's in those of 4. Nothing: another tokenizer.
    std::optional<int64_t> end_token() const;

    // The first of the other set's files that is one of these, by whatever path; "": none is.
    std::string shared_file(const ShardSet& other) const;

    // Of what is in the shards and in which order, whatever their names are: their lengths, and their first and last
    // tokens.
    uint64_t fingerprint() const;

    // Samples of T tokens and their targets: sum over shards of (tokens - 1) / T. None at all is an Error.
    int64_t samples(int T) const;

    // Reads sample `sample` of samples(T): T+1 tokens. Sample i of a shard covers its tokens [i*T, i*T+T], so a
    // sample's last target is the next one's first input. A token >= vocab is an Error.
    void read_sample(int64_t sample, int T, int32_t* out, int64_t vocab = any_vocab) const;

    // Throws when a token does not fit the vocabulary. Sidecars are believed where they give the largest id. Shards
    // without are scanned: all of them if the set is smaller than full_scan_bytes, else the first and the last only
    // (loaders check what they read).
    void check_vocabulary(int vocab, int64_t full_scan_bytes = int64_t{1} << 30) const;

private:
    struct Shard {
        std::string path;
        int fd = -1;  // -1: opened for each read, see max_open_files
        int64_t tokens = 0;
        std::pair<uint64_t, uint64_t> file;  // device and number there
        Sidecar sidecar;
    };

    ShardSet() = default;
    void add_shard(const std::string& path);
    void read_tokens(const Shard& shard, int64_t first, int64_t count, uint32_t* out) const;
    void scan_vocabulary(const Shard& shard, int64_t vocab) const;
    void close_files();

    std::vector<Shard> shards_;
    int token_bytes_ = 0;
    int64_t total_tokens_ = 0;
};

}  // namespace llmc
