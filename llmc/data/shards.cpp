// Opening, validating and reading token shards. All offsets are 64 bits wide: shards may be larger than 2 GiB.
// build: optimized, threads, fuzzed
#include "llmc/data/shards.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <glob.h>
#include <openssl/sha.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "llmc/base/json.h"
#include "llmc/device/math.cuh"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read without swapping");

constexpr int64_t header_bytes = 1024;
constexpr int32_t magic_uint16 = 20240520, version_uint16 = 1;
constexpr int32_t magic_uint32 = 20240801, version_uint32 = 7;

// Open files per set. A large corpus has a thousand shards, and a process often has only 1024 descriptors.
constexpr int max_open_files = 256;

// Tokens of a set that is read whole when it is checked, at most, and of a block of a larger one.
constexpr int64_t kSmallSet = 1 << 24, kBlock = 1 << 12;

constexpr InputKind kShard = {"token shard", "a shard, or a quoted pattern like 'data/train_*.bin'",
                              ExitCode::bad_data};
constexpr InputKind kSidecar = {"sidecar", "the .json file that data.prepare wrote for this shard, or remove it",
                                ExitCode::bad_data, 16};

void pread_all(int fd, const std::string& path, int64_t offset, int64_t bytes, void* out) {
    const ssize_t got = pread_fully(fd, out, static_cast<size_t>(bytes), static_cast<uint64_t>(offset));
    if (got < 0)
        throw ReadError(ExitCode::bad_data, "reading {} from byte {} failed: {}", path, offset, std::strerror(errno));
    if (got < bytes)
        throw ReadError(ExitCode::bad_data,
                        "{} ends at byte {}, {} bytes early: it was cut after it was opened; restore it and resume",
                        path, offset + got, bytes - got);
}

struct Header {
    int token_bytes;
    int64_t tokens;
    std::pair<uint64_t, uint64_t> identity;  // device and inode
};

// When a file was changed last, in nanoseconds; 0 if that cannot be asked.
int64_t changed_at(int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 ? status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec : 0;
}

// A hash of tokens in the middle of a shard with this many bytes of tokens; 0 if they cannot be read.
uint64_t hash_of_middle(int fd, int64_t bytes) {
    std::string block(static_cast<size_t>(std::min(bytes, 4 * kBlock)), 0);
    const auto length = static_cast<ssize_t>(block.size());
    const auto offset = static_cast<uint64_t>(header_bytes + (bytes - length) / 2);
    return pread_fully(fd, block.data(), block.size(), offset) == length ? XXH64(block.data(), block.size(), 0) : 0;
}

// True if the file begins with text, which people sometimes give instead of shards.
bool looks_like_text(int fd) {
    unsigned char bytes[512];
    const ssize_t count = ::pread(fd, bytes, sizeof bytes, 0);
    const auto is_text = [](unsigned char byte) { return byte >= 0x20 ? byte != 0x7f : byte >= '\t' && byte <= '\r'; };
    return count > 0 && std::all_of(bytes, bytes + count, is_text);
}

Header read_header(int fd, const std::string& path) {
    struct stat status;
    if (::fstat(fd, &status) != 0) refuse_data("cannot stat {}: {}", path, std::strerror(errno));
    if (looks_like_text(fd))
        refuse_data(path +
                    " is not a token shard: it looks like text: `python3 -m data.prepare text` makes shards of text");
    const int64_t size = status.st_size;
    if (size < header_bytes)
        refuse_data("{} has {} bytes, less than the {} bytes of a token shard's header: it is truncated or not a shard",
                    path, size, header_bytes);

    int32_t head[3];  // magic, version, tokens
    pread_all(fd, path, 0, sizeof head, head);
    const bool wide = head[0] == magic_uint32;
    if (!wide && head[0] != magic_uint16)
        refuse_data("{} is not a token shard: its magic is {}{}, a shard's is {} (uint16 tokens) or {} (uint32)", path,
                    head[0], name_of_magic(head[0]), magic_uint16, magic_uint32);
    const int32_t version = wide ? version_uint32 : version_uint16;
    if (head[1] != version)
        refuse_data("{} has shard version {}; magic {} is read in version {} only", path, head[1], head[0], version);
    if (head[2] < 0) refuse_data("{}: its header claims {} tokens", path, head[2]);

    const int token_bytes = wide ? 4 : 2;
    const int64_t expected = header_bytes + int64_t{head[2]} * token_bytes;
    if (size != expected)
        refuse_data(
            "{} is {}: its header says {} tokens of {} bytes, so it should have {} bytes, but it has {}; write "
            "or copy it again",
            path, size < expected ? "truncated" : "too long", head[2], token_bytes, expected, size);
    return {token_bytes, head[2], {status.st_dev, status.st_ino}};
}

template <typename Value>
void read_field(const Json& object, const char* name, std::optional<Value>& field) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) return;
    // nlohmann would cut off a fraction, and would wrap around a number that is too large.
    if constexpr (std::is_same_v<Value, int64_t>)
        if (!found->is_number_integer() || std::abs(found->get<double>()) > 1e15)
            throw JsonError(fmt::format("{} is {}, which is not a whole number", name, json_text(*found)));
    field = found->get<Value>();
}

// Refuses a sidecar that contradicts the header of its shard.
void check_sidecar(const Sidecar& sidecar, const std::string& path, const Header& header) {
    if (sidecar.tokens && *sidecar.tokens != header.tokens)
        refuse_data(
            "the sidecar {}.json says {} tokens, its shard has {}: they do not belong together; prepare the shard "
            "again or remove the sidecar",
            path, *sidecar.tokens, header.tokens);
    const int64_t most = header.token_bytes == 2 ? 1 << 16 : kMostTokenIds;
    if (sidecar.vocab && (*sidecar.vocab < 1 || *sidecar.vocab > most))
        refuse_data(
            "the sidecar {}.json says a vocabulary of {} ids; with tokens of {} bytes it can have 1 to {}; prepare the "
            "shard again or remove the sidecar",
            path, *sidecar.vocab, header.token_bytes, most);
}

bool is_shard(const std::filesystem::path& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return false;
    std::ifstream file(path, std::ios::binary);
    int32_t magic = 0;
    file.read(reinterpret_cast<char*>(&magic), sizeof magic);
    return file && (magic == magic_uint16 || magic == magic_uint32);
}

// A pattern for the shards in `directory`, for the error when a pattern matches none of them: "; the directory has
// train_000000.bin: use 'DIR/*train_*.bin'". "" if there are no shards.
std::string suggested_pattern(const std::string& directory, const std::string& pattern) {
    const std::filesystem::path folder(directory.empty() ? "." : directory);
    const std::string split = pattern.find("val", directory.size()) == std::string::npos ? "train" : "val";
    std::string name;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        const std::string candidate = entry.path().filename().string();
        const bool better = name.empty() || std::pair(candidate.find(split) == std::string::npos, candidate) <
                                                std::pair(name.find(split) == std::string::npos, name);
        if (better && candidate.ends_with(".bin") && is_shard(entry.path())) name = candidate;
    }
    if (name.empty()) return "";
    const bool numbered = name.find(split + "_") != std::string::npos;
    return "; the directory has " + name + ": use '" + (folder / (numbered ? "*" + split + "_*.bin" : name)).string() +
           "'";
}

}  // namespace

Sidecar read_sidecar(const std::string& file) {
    const std::string path = file + ".json";
    if (::access(path.c_str(), F_OK) != 0) return {};
    const auto invalid = [&](const std::exception& error) {
        refuse_data("the sidecar {} is not valid: {}; write the file again or remove the sidecar", path, error.what());
    };
    Sidecar sidecar;
    try {
        const std::string text = read_input(path, kSidecar);
        sidecar.fingerprint = XXH64(text.data(), text.size(), 0);
        const Json object = parse_json(text);
        read_field(object, "tokenizer", sidecar.tokenizer);
        read_field(object, "tokenizer_hash", sidecar.tokenizer_hash);
        read_field(object, "vocab", sidecar.vocab);
        read_field(object, "max_token", sidecar.max_token);
        read_field(object, "documents", sidecar.documents);
        read_field(object, "tokens", sidecar.tokens);
        read_field(object, "bytes", sidecar.bytes);
        read_field(object, "end_token", sidecar.end_token);
        read_field(object, "checksum", sidecar.checksum);
        read_field(object, "entropy_floor", sidecar.entropy_floor);
    } catch (const JsonError& error) {
        invalid(error);
    } catch (const Json::exception& error) {  // a field has another type
        invalid(error);
    }
    return sidecar;
}

std::string sha256_text(std::string_view digest) {
    std::string text = "sha256:";
    for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
    return text;
}

// The pattern, with quotes in its longest beginning that is the path of a file or directory: [ is part of a name there.
static std::string with_names_quoted(const std::string& pattern) {
    size_t names = pattern.size();
    while (names > 0 && !path_exists(pattern.substr(0, names))) names = pattern.substr(0, names - 1).rfind('/') + 1;
    std::string quoted = pattern;
    while (names-- > 0)
        if (std::strchr("\\*?[]{},~", pattern[names])) quoted.insert(names, "\\");
    return quoted;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
    glob_t found{};
    const int rc = ::glob(with_names_quoted(pattern).c_str(), GLOB_BRACE | GLOB_TILDE | GLOB_ERR, nullptr, &found);
    std::vector<std::string> paths;
    if (rc == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    const int reason = errno;
    ::globfree(&found);
    // A folder that does not exist matches nothing; one that cannot be read gets its own message.
    if (rc != 0 && rc != GLOB_NOMATCH && reason != ENOENT)
        throw Error(code_of(reason, ExitCode::bad_data), "cannot list the files of '{}': {}", pattern,
                    reason_of(reason));

    std::sort(paths.begin(), paths.end());  // sorted by bytes, since the order must not depend on the locale
    const std::set<std::string> matched(paths.begin(), paths.end());
    std::erase_if(paths, [&](const std::string& path) {
        return path.ends_with(".json") && matched.count(path.substr(0, path.size() - 5)) > 0;
    });
    if (paths.size() == 1 && directory_exists(paths[0])) {
        const std::string hint = suggested_pattern(paths[0], "");
        refuse_data(paths[0] + " is a directory, not a token shard" +
                    (hint.empty() ? " and no shards are in it" : hint));
    }
    if (paths.empty()) {
        const std::string hint = suggested_pattern(std::filesystem::path(pattern).parent_path().string(), pattern);
        const char* const usual = "; give the token shards as a path or a quoted pattern like 'data/mine/*train_*.bin'";
        refuse_data("no file matches '{}'{}", pattern, hint.empty() ? usual : hint);
    }
    return paths;
}

ShardSet::ShardSet(const std::vector<std::string>& patterns) {
    if (patterns.empty()) refuse_data("a set of token shards needs at least one path or pattern");
    std::map<std::pair<uint64_t, uint64_t>, std::string> paths;  // by identity
    for (size_t i = 0; i < patterns.size(); i++)
        for (const std::string& path : expand_glob(patterns[i])) {
            add_shard(path, i);
            const auto [first, is_new] = paths.emplace(shards_.back().identity, path);
            if (!is_new)
                refuse_data("{} is named twice ('{}' matches {}), so its tokens would count twice", first->second,
                            patterns[i], first->second == path ? "it again" : path + ", which is the same file");
        }
    std::vector<const TokenFile*> files;
    add_to(files);
    require_one_tokenizer(files);
}

ShardSet ShardSet::random(int vocab, int64_t tokens, uint64_t seed) {
    const bool wide = vocab > 65536;
    const int32_t header[header_bytes / 4] = {wide ? magic_uint32 : magic_uint16,
                                              wide ? version_uint32 : version_uint16, static_cast<int32_t>(tokens)};
    std::vector<char> bytes(header_bytes + static_cast<size_t>(tokens) * (wide ? 4 : 2));
    std::memcpy(bytes.data(), header, header_bytes);
    for (int64_t i = 0; i < tokens; i++) {
        const uint64_t random = mix64(mix64(seed) + static_cast<uint64_t>(i + 1) * kGolden64);
        const auto token = static_cast<uint32_t>(random % static_cast<uint64_t>(vocab));
        std::memcpy(&bytes[header_bytes + static_cast<size_t>(i) * (wide ? 4 : 2)], &token, wide ? 4 : 2);
    }
    const int memory = ::memfd_create("random tokens", MFD_CLOEXEC);
    for (size_t written = 0; written < bytes.size();) {
        const ssize_t done = ::write(memory, &bytes[written], bytes.size() - written);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) refuse_data("no memory for random tokens: {}", std::strerror(errno));
        written += static_cast<size_t>(done);
    }
    ShardSet set;
    set.add_shard(fmt::format("/proc/self/fd/{}", memory));
    ::close(memory);
    return set;
}

void ShardSet::add_shard(const std::string& path, size_t pattern) {
    auto file = std::make_unique<InputFile>(path, kShard);
    const Header header = read_header(file->fd(), path);
    Shard shard{{path, read_sidecar(path)}, pattern, nullptr, header.tokens, header.identity};
    shard.changed = changed_at(file->fd());
    shard.content = {header.tokens, hash_of_middle(file->fd(), header.tokens * header.token_bytes)};
    check_sidecar(shard.sidecar, path, header);
    if (!shards_.empty() && header.token_bytes != token_bytes_)
        refuse_data("{} has tokens of {} bytes, {} of {}: shards of one set must have one width", path,
                    header.token_bytes, shards_[0].path, token_bytes_);
    token_bytes_ = header.token_bytes;
    total_tokens_ += header.tokens;
    shards_.push_back(std::move(shard));
    if (shards() <= max_open_files) shards_.back().file = std::move(file);
}

// The token that the sidecar says begins documents, or that its tokenizer is known to have.
static std::optional<int64_t> known_end_token(const Sidecar& sidecar) {
    if (sidecar.end_token) return sidecar.end_token;
    if (sidecar.tokenizer == "bytes") return 256;
    if (sidecar.tokenizer == "gpt2") return 50256;
    return std::nullopt;
}

void require_one_tokenizer(const std::vector<const TokenFile*>& files) {
    const auto number = [](const std::optional<int64_t>& value) { return value ? std::to_string(*value) : ""; };
    // The facts of a sidecar about its tokenizer; "" for those that it lacks.
    const auto say = [&](const Sidecar& sidecar) -> std::array<std::pair<const char*, std::string>, 4> {
        return {{{"tokenizer_hash", sidecar.tokenizer_hash.value_or("")},
                 {"tokenizer", sidecar.tokenizer.value_or("")},
                 {"vocab", number(sidecar.vocab)},
                 {"end_token", number(known_end_token(sidecar))}}};
    };
    std::array<const TokenFile*, 4> firsts{};  // the first file whose sidecar says it
    for (const TokenFile* file : files) {
        const auto mine = say(file->sidecar);
        for (size_t i = 0; i < mine.size(); i++) {
            const auto& [name, value] = mine[i];
            if (value.empty()) continue;
            if (!firsts[i]) firsts[i] = file;
            const Sidecar& first = firsts[i]->sidecar;
            const std::string expected = say(first)[i].second;
            const bool same_hash = file->sidecar.tokenizer_hash && file->sidecar.tokenizer_hash == first.tokenizer_hash;
            if (value != expected && !(name == std::string("tokenizer") && same_hash))
                refuse_data(
                    "{} and {} were made with different tokenizers: their sidecars have {} {} and {}; "
                    "prepare all sets with one tokenizer",
                    file->path, firsts[i]->path, name, value, expected);
        }
    }
}

void ShardSet::add_to(std::vector<const TokenFile*>& files) const {
    for (const Shard& shard : shards_) files.push_back(&shard);
}

std::string ShardSet::shared_file(const ShardSet& other) const {
    std::set<std::pair<int64_t, uint64_t>> contents;
    for (const Shard& shard : shards_) contents.insert(shard.content);
    for (const Shard& shard : other.shards_)
        if (contents.contains(shard.content)) return shard.path;
    return "";
}

std::string ShardSet::copied_file() const {
    std::set<std::pair<int64_t, uint64_t>> contents;
    for (const Shard& shard : shards_)
        if (!contents.insert(shard.content).second) return shard.path;
    return "";
}

void ShardSet::check_checksums() const {
    if (total_tokens_ > kSmallSet) return;
    for (const Shard& shard : shards_) {
        if (!shard.sidecar.checksum) continue;
        std::string bytes(static_cast<size_t>(shard.tokens * token_bytes_), 0), digest(SHA256_DIGEST_LENGTH, 0);
        pread_all(InputFile(shard.path, kShard).fd(), shard.path, header_bytes, shard.tokens * token_bytes_,
                  bytes.data());
        ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                 reinterpret_cast<unsigned char*>(digest.data()));
        if (sha256_text(digest) != *shard.sidecar.checksum)
            refuse_data(
                "the sidecar of {} has the checksum of other tokens: the shard was changed or replaced after it "
                "was written; write or copy both again, or remove the sidecar if the shard is right",
                shard.path);
    }
}

std::optional<double> ShardSet::bytes_per_token() const {
    double bytes = 0, tokens = 0;
    for (const Shard& shard : shards_) {
        if (!shard.sidecar.bytes) return std::nullopt;
        bytes += static_cast<double>(*shard.sidecar.bytes);
        tokens += static_cast<double>(shard.tokens - shard.sidecar.documents.value_or(0));
    }
    if (bytes <= 0 || tokens <= 0) return std::nullopt;
    return bytes / tokens;
}

std::optional<int64_t> ShardSet::end_token() const {
    if (sidecar().end_token || sidecar().tokenizer) return known_end_token(sidecar());
    return token_bytes_ == 2 ? 50256 : 128000;
}

uint64_t ShardSet::hash_tokens(const Shard& shard, int64_t first, int64_t count, uint64_t hash) const {
    std::vector<uint32_t> tokens(static_cast<size_t>(count));
    read_tokens(shard, first, count, tokens.data());
    return XXH64(tokens.data(), tokens.size() * sizeof(uint32_t), hash);
}

const std::vector<uint64_t>& ShardSet::fingerprints_by_pattern() const {
    if (!fingerprints_.empty()) return fingerprints_;
    constexpr int64_t kBlocksOfSet = 1 << 12, kBlocksOfShard = 8;
    const bool whole = total_tokens_ <= kSmallSet;
    const int64_t block = whole ? 1 << 15 : kBlock;
    std::vector<uint64_t> hashes(shards_.back().pattern + 1, static_cast<uint64_t>(token_bytes_));
    for (const Shard& shard : shards_) {
        const int64_t distance =
            whole ? block : std::max(block, std::min(total_tokens_ / kBlocksOfSet, shard.tokens / kBlocksOfShard));
        uint64_t& hash = hashes[shard.pattern];
        hash = XXH64(&shard.tokens, sizeof shard.tokens, hash);
        for (int64_t first = 0; first < shard.tokens; first += distance)
            hash = hash_tokens(shard, first, std::min(block, shard.tokens - first), hash);
        const int64_t end = std::min(block, shard.tokens);
        if (!whole) hash = hash_tokens(shard, shard.tokens - end, end, hash);
    }
    return fingerprints_ = hashes;
}

uint64_t ShardSet::fingerprint() const {
    const std::vector<uint64_t>& hashes = fingerprints_by_pattern();
    return XXH64(hashes.data(), hashes.size() * sizeof(uint64_t), 0);
}

uint64_t ShardSet::fingerprint_of_ends() const {
    uint64_t hash = static_cast<uint64_t>(token_bytes_);
    for (const Shard& shard : shards_) {
        const int64_t count = std::min<int64_t>(1 << 15, shard.tokens);
        hash = XXH64(&shard.tokens, sizeof shard.tokens, hash);
        hash = hash_tokens(shard, 0, count, hash);
        hash = hash_tokens(shard, shard.tokens - count, count, hash);
    }
    return hash;
}

uint64_t ShardSet::sidecars_fingerprint() const {
    uint64_t hash = 0;
    for (const Shard& shard : shards_) hash = XXH64(&shard.sidecar.fingerprint, sizeof(uint64_t), hash);
    return hash;
}

static int64_t samples_of(int64_t tokens, int T) { return std::max<int64_t>(tokens - 1, 0) / T; }

std::vector<int64_t> ShardSet::samples_by_pattern(int T) const {
    std::vector<int64_t> samples(shards_.back().pattern + 1);
    for (const Shard& shard : shards_) samples[shard.pattern] += samples_of(shard.tokens, T);
    return samples;
}

int64_t ShardSet::samples(int T) const {
    if (T < 1) refuse("T={}: a sequence needs at least one token", T);
    int64_t samples = 0, longest = 0;
    for (const Shard& shard : shards_) {
        samples += samples_of(shard.tokens, T);
        longest = std::max(longest, shard.tokens);
    }
    if (samples == 0)
        refuse_data(
            "no sequence of T={} tokens fits into {}{}: it needs {} tokens in one shard, the longest has {}; "
            "use a smaller -t or more data",
            T, shards_[0].path, shards() > 1 ? " and the other shards" : "", T + 1, longest);
    return samples;
}

void ShardSet::read_tokens(const Shard& shard, int64_t first, int64_t count, uint32_t* out) const {
    const int64_t offset = header_bytes + first * token_bytes_, bytes = count * token_bytes_;
    std::vector<uint16_t> narrow(token_bytes_ == 2 ? static_cast<size_t>(count) : 0);
    void* const to = narrow.empty() ? static_cast<void*>(out) : narrow.data();
    std::unique_ptr<InputFile> again;
    int fd = shard.file ? shard.file->fd() : -1;
    if (fd < 0 || pread_fully(fd, to, static_cast<size_t>(bytes), static_cast<uint64_t>(offset)) != bytes) {
        try {  // a file server that was restarted does not know open files
            again = std::make_unique<InputFile>(shard.path, kShard);
        } catch (const Error& error) {
            throw ReadError(error.code(), error.what());
        }
        fd = again->fd();
        pread_all(fd, shard.path, offset, bytes, to);
    }
    const uint64_t middle = changed_at(fd) == shard.changed ? 0 : hash_of_middle(fd, shard.tokens * token_bytes_);
    if (middle != 0 && middle != shard.content.second)
        throw ReadError(ExitCode::bad_data,
                        "{} was changed or replaced during the run: it has other tokens; restore it and resume",
                        shard.path);
    std::copy(narrow.begin(), narrow.end(), out);
}

// Ids from 2^31 on do not fit an int32. They are never below a vocabulary, but the error must show the true id.
static void check_tokens(const std::string& path, int64_t first, const uint32_t* tokens, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; ++i)
        if (tokens[i] >= vocab)
            refuse_data(
                "{}: token {} has id {}, but the vocabulary has {} ids: the shards were made with another "
                "tokenizer; set --vocab to at least {} or prepare them again",
                path, first + i, tokens[i], vocab, int64_t{tokens[i]} + 1);
}

void ShardSet::read_sample(int64_t sample, int T, int32_t* out, int64_t vocab) const {
    int64_t left = sample;
    for (const Shard& shard : shards_) {
        if (left < 0) break;
        const int64_t here = samples_of(shard.tokens, T);
        if (left >= here) {
            left -= here;
            continue;
        }
        auto* tokens = reinterpret_cast<uint32_t*>(out);  // signed and unsigned of one type may alias
        read_tokens(shard, left * T, int64_t{T} + 1, tokens);
        check_tokens(shard.path, left * T, tokens, int64_t{T} + 1, vocab);
        return;
    }
    throw Error(ExitCode::failure, "sample {} was asked for, the set has {} of T={}", sample, samples(T), T);
}

void ShardSet::scan_vocabulary(const Shard& shard, int64_t vocab) const {
    constexpr int64_t chunk = 1 << 18;
    std::vector<uint32_t> tokens(static_cast<size_t>(std::min(chunk, shard.tokens)));
    for (int64_t first = 0; first < shard.tokens; first += chunk) {
        const int64_t count = std::min(chunk, shard.tokens - first);
        read_tokens(shard, first, count, tokens.data());
        check_tokens(shard.path, first, tokens.data(), count, vocab);
    }
}

void ShardSet::check_vocabulary(int vocab, int64_t full_scan_bytes) const {
    const bool scan_all = total_tokens_ * token_bytes_ < full_scan_bytes;
    for (const Shard& shard : shards_) {
        const std::optional<int64_t>& max_token = shard.sidecar.max_token;
        const bool at_an_end = &shard == &shards_.front() || &shard == &shards_.back();
        if (max_token ? *max_token < vocab : !scan_all && !at_an_end) continue;
        scan_vocabulary(shard, vocab);  // the sidecar's largest id is too large, so search for its position
        if (max_token)
            refuse_data(
                "the sidecar of {} says its largest id is {}, beyond the vocabulary of {}, but no token is: "
                "they do not belong together; prepare the shard again or remove the sidecar",
                shard.path, *max_token, vocab);
    }
}

std::string ShardSet::without_token(int64_t token, int64_t within) const {
    constexpr int64_t chunk = 1 << 18;
    std::vector<uint32_t> tokens(static_cast<size_t>(chunk));
    for (size_t s = 0; s < shards_.size(); s++) {
        const Shard& shard = shards_[s];
        if (s > 0 && shard.pattern == shards_[s - 1].pattern) continue;
        bool found = false;
        const int64_t end = std::min(shard.tokens, within);
        for (int64_t first = 0; first < end && !found; first += chunk) {
            const int64_t count = std::min(chunk, end - first);
            read_tokens(shard, first, count, tokens.data());
            found = std::find(tokens.begin(), tokens.begin() + count, token) != tokens.begin() + count;
        }
        if (!found) return shard.path;
    }
    return "";
}

const char* name_of_magic(int32_t magic) {
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
