// Finds and reads tokenizer files, and decodes tokens.
// build: fuzzed
#include "llmc/data/tokenizer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include "llmc/base/files.h"
#include "llmc/base/text.h"
#include "llmc/data/encoder.h"
#include "llmc/data/shards.h"

namespace llmc {

constexpr int32_t magic_llmc = 20240328;
constexpr int max_vocab = 1 << 24;  // far more than any tokenizer has; keeps a corrupt file from filling the memory
constexpr int kMostPrefixBytes = 255;
constexpr size_t kHashAt = 24, kHashBytes = 32;  // in the header of a table

constexpr InputKind kTokenizerFile = {"tokenizer file",
                                      "a .tiktoken file, an llm.c tokenizer.bin, a tokenizer.json, a directory with "
                                      "one of them, or the word bytes for the byte vocabulary",
                                      ExitCode::bad_data, 256};

template <class... Args>
[[noreturn]] static void bad_file(const std::string& path, fmt::format_string<Args...> reason, Args&&... args) {
    refuse_data("the tokenizer file {}: {}", path, fmt::format(reason, std::forward<Args>(args)...));
}

// Returns false if `text` is not padded base64.
static bool decode_base64(std::string_view text, std::string& bytes) {
    const size_t letters = text.find_last_not_of('=') + 1, padding = text.size() - letters;
    // OpenSSL would also take spaces around the text, and '=' within it.
    if (letters == 0 || text.size() % 4 != 0 || padding > 2 || text.find_first_of("= \t\r\n-") < letters) return false;
    bytes.resize(text.size() / 4 * 3);
    const auto* const from = reinterpret_cast<const unsigned char*>(text.data());
    auto* const to = reinterpret_cast<unsigned char*>(bytes.data());
    if (EVP_DecodeBlock(to, from, static_cast<int>(text.size())) < 0) return false;
    bytes.resize(bytes.size() - padding);  // padding is decoded to zeros
    return true;
}

// The length of the valid UTF-8 sequence at the start of `text`, and its code point. 0 if there is none.
static size_t utf8_length(std::string_view text, uint32_t& code_point) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    if (byte(0) < 0x80) {
        code_point = byte(0);
        return 1;
    }
    const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : byte(0) >= 0xc0 ? 2 : 0;
    if (length == 0 || byte(0) > 0xf4 || text.size() < length) return 0;
    code_point = byte(0) & (0x7f >> length);
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        code_point = code_point << 6 | (byte(i) & 0x3f);
    }
    constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code_point >= 0xd800 && code_point < 0xe000;
    return code_point < smallest[length] || code_point > 0x10ffff || surrogate ? 0 : length;
}

static bool printable(uint32_t c) {
    if (c < 0x20) return c == '\n' || c == '\t';
    const bool control = c >= 0x7f && c < 0xa0;
    const bool separator_or_direction = (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    const bool mark = c == 0x200e || c == 0x200f || c == 0x061c || c == 0xfeff;
    return !control && !separator_or_direction && !mark;
}

size_t complete_utf8(std::string_view text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
        const unsigned char byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xc0) == 0x80) continue;  // a continuation byte, not the first of a character
        const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        return length > back ? text.size() - back : text.size();
    }
    return text.size();
}

bool is_utf8(std::string_view text) {
    uint32_t ignored = 0;
    while (!text.empty()) {
        const size_t length = utf8_length(text, ignored);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

std::string sanitize(const std::string& text) {
    std::string clean;
    for (size_t i = 0; i < text.size();) {
        uint32_t code_point = 0;
        const size_t length = utf8_length(std::string_view(text).substr(i), code_point);
        if (length > 0 && printable(code_point)) {
            clean.append(text, i, length);
        } else {
            for (size_t k = 0; k < std::max<size_t>(length, 1); ++k)
                clean += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i + k]));
        }
        i += std::max<size_t>(length, 1);
    }
    return clean;
}

void require_tokens_fit(const std::string& tokenizer, int tokens, int vocab, int fewest) {
    if (tokens > vocab || tokens < fewest)
        bad_file(tokenizer,
                 "it has {} tokens, but the vocabulary has {}: it belongs to a different model; "
                 "give the tokenizer that the training data was made with",
                 tokens, vocab);
}

std::vector<std::string> tokenizer_files(const std::string& directory) {
    namespace fs = std::filesystem;
    const fs::path folder(directory.empty() ? "." : directory);
    std::vector<std::string> files, tables;
    std::error_code ignored;
    for (const char* name : {"tokenizer.bin", "tokenizer.json", "gpt2_tokenizer.bin"})
        if (fs::is_regular_file(folder / name, ignored)) files.push_back((folder / name).string());
    for (const auto& entry : fs::directory_iterator(folder, ignored))
        if (entry.path().extension() == ".tiktoken" && entry.is_regular_file(ignored))
            tables.push_back(entry.path().string());
    std::sort(tables.begin(), tables.end());
    files.insert(files.end(), tables.begin(), tables.end());
    return files;
}

TokenizerSearch find_tokenizer(const std::vector<std::string>& directories, int vocab, int fewest) {
    TokenizerSearch search;
    for (const std::string& directory : directories)
        for (const std::string& file : tokenizer_files(directory)) {
            try {
                TokenDecoder tokenizer = TokenDecoder::open(file);
                require_tokens_fit(file, tokenizer.vocab(), vocab, fewest);
                return {tokenizer, ""};
            } catch (const Error& error) {
                if (!search.only_unusable) search = {{}, error.what(), true};
            }
        }
    if (!search.only_unusable)
        search.problem = "there is no tokenizer.json, tokenizer.bin or .tiktoken file in " +
                         (directories.empty() || directories[0].empty() ? "." : directories[0]);
    return search;
}

TokenDecoder TokenDecoder::byte_vocabulary() {
    TokenDecoder decoder("bytes");
    for (int byte = 0; byte < 256; ++byte) decoder.pieces_.emplace_back(1, static_cast<char>(byte));
    decoder.pieces_.emplace_back("\n");
    decoder.end_token_ = 256;
    return decoder;
}

TokenDecoder TokenDecoder::token_ids() {
    TokenDecoder decoder("token ids");
    decoder.encoder_ = "";
    return decoder;
}

TokenDecoder TokenDecoder::open(const std::string& name) {
    if (name == "bytes") return byte_vocabulary();
    if (directory_exists(name)) {
        const std::vector<std::string> files = tokenizer_files(name);
        if (files.empty()) bad_file(name, "is a directory without a tokenizer.json, tokenizer.bin or .tiktoken file");
        return open(files[0]);
    }
    const std::string content = read_input(name, kTokenizerFile);
    if (!content.starts_with('{')) return parse_table(content, name);
    return from_llmc(ask_prepare("table", name), name);
}

TokenDecoder TokenDecoder::parse_table(const std::string& content, const std::string& path) {
    int32_t magic = 0;
    if (content.size() >= sizeof magic) std::memcpy(&magic, content.data(), sizeof magic);
    TokenDecoder decoder = magic == magic_llmc ? from_llmc(content, path) : from_tiktoken(content, path);
    const std::filesystem::path file(path);
    if (file.filename() == "tokenizer.bin" && path_exists(file.parent_path() / "tokenizer.json"))
        decoder.encoder_ = (file.parent_path() / "tokenizer.json").string();
    if (decoder.pieces_ == byte_vocabulary().pieces_) decoder.encoder_ = "bytes";
    return decoder;
}

void TokenDecoder::require_same(const TokenDecoder& other) const {
    for (int id = 0; id < std::min(vocab(), other.vocab()); id++) {
        const std::string &mine = pieces_[id], &theirs = other.pieces_[id];
        const bool both_end = id == end_token_ && id == other.end_token_;  // formats name the end token differently
        if (mine == theirs || mine.empty() || theirs.empty() || both_end) continue;
        bad_file(name_,
                 "token {} is '{}', but '{}' in {}: they are different tokenizers; "
                 "use the one of the training data everywhere",
                 id, sanitize(mine), sanitize(theirs), other.name_);
    }
}

void TokenDecoder::require_made(const TokenFile& file) const {
    const std::string& made_with = file.sidecar.tokenizer_hash.value_or(hash_);
    if (!hash_.empty() && made_with != hash_)
        bad_file(name_,
                 "it is not the tokenizer that {} was made with (tokenizer_hash {}, not {}); take both "
                 "from one data.prepare",
                 file.path, hash_, made_with);
    const int64_t ids = file.sidecar.vocab.value_or(vocab());
    if (hash_.empty() && (vocab() > ids || vocab() < ids - 256))  // a .tiktoken file lacks the special tokens
        bad_file(name_, "it has {} tokens, and {} was made with a tokenizer of {}", vocab(), file.path, ids);
}

// Format: int32 head[256] = {magic, version, tokens, end token, prefix bytes, 1 if it does not count text, and 8 of the
// tokenizer's SHA-256}, then {length, bytes} per token. The length is a uint8, or from version 3 on a uint16. Version 1
// has no end token; llm.c's version 2 ends with it.
TokenDecoder TokenDecoder::from_llmc(const std::string& content, const std::string& path) {
    int32_t head[256];
    if (content.size() < sizeof head) bad_file(path, "has {} bytes, less than its header", content.size());
    std::memcpy(head, content.data(), sizeof head);
    const int version = head[1], count = head[2];
    if (version < 1 || version > 3) bad_file(path, "has version {}; versions 1 to 3 can be read", version);
    if (count < 1 || count > max_vocab) bad_file(path, "claims {} tokens", count);

    TokenDecoder decoder(path);
    decoder.end_token_ = version == 1 ? 50256 : head[3];  // only GPT-2's tokenizer was written in version 1
    if (version > 1) {
        decoder.prefix_bytes_ = head[4];
        decoder.counts_text_ = head[5] == 0;
        const std::string hash = content.substr(kHashAt, kHashBytes);
        if (hash != std::string(kHashBytes, '\0')) decoder.hash_ = sha256_text(hash);
    }
    if (decoder.prefix_bytes_ < 0 || decoder.prefix_bytes_ > kMostPrefixBytes)
        bad_file(path, "says that documents begin with {} bytes that are not text", head[4]);
    if (decoder.end_token_ < 0 || decoder.end_token_ >= count)
        bad_file(path, "its end token {} is not one of its {} tokens", decoder.end_token_, count);
    const size_t width = version == 3 ? 2 : 1;  // bytes of a length
    size_t at = sizeof head;
    for (int id = 0; id < count; ++id) {
        uint16_t length = 0;
        const bool has_length = content.size() - at >= width;
        if (has_length) std::memcpy(&length, content.data() + at, width);
        if (!has_length || content.size() - at - width < length)
            bad_file(path, "ends inside token {} of {}: it is truncated", id, count);
        decoder.pieces_.push_back(content.substr(at + width, length));
        at += width + length;
    }
    if (at != content.size()) bad_file(path, "has {} bytes after its last token", content.size() - at);
    return decoder;
}

TokenDecoder TokenDecoder::from_tiktoken(const std::string& content, const std::string& path) {
    TokenDecoder decoder(path);
    std::unordered_set<std::string> seen;
    std::string_view rest = content;
    for (int line_number = 1; !rest.empty(); ++line_number) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;
        const size_t space = line.find(' ');
        std::string bytes;
        const int id = space == line.npos ? -1 : number_in<int>(line.substr(space + 1)).value_or(-1);
        if (!decode_base64(line.substr(0, space), bytes) || id < 0 || id >= max_vocab)
            bad_file(path,
                     "line {} is not `base64 rank`, and the file is neither an llm.c tokenizer "
                     "(magic {}) nor a tokenizer.json",
                     line_number, magic_llmc);
        if (decoder.pieces_.size() <= static_cast<size_t>(id)) decoder.pieces_.resize(id + 1);
        decoder.pieces_[id] = bytes;
        if (!seen.insert(bytes).second) bad_file(path, "line {} repeats the bytes of an earlier token", line_number);
    }
    if (seen.empty()) bad_file(path, "is empty");
    // The file has no special tokens. GPT-2's end token and Llama 3's begin token, which start documents in llm.c's
    // shards, have the ids after the last rank.
    const int ranks = decoder.vocab();
    if (ranks == 50256 || ranks == 128000) {
        decoder.pieces_.emplace_back(ranks == 50256 ? "<|endoftext|>" : "<|begin_of_text|>");
        decoder.end_token_ = ranks;
    }
    return decoder;
}

std::string TokenDecoder::as_table() const {
    size_t longest = 0;
    for (const std::string& piece : pieces_) longest = std::max(longest, piece.size());
    if (longest > UINT16_MAX) bad_file(name_, "has a token of {} bytes; the most are 65,535", longest);
    const size_t width = longest > UINT8_MAX ? 2 : 1;
    const int32_t head[256] = {magic_llmc, width == 2 ? 3 : 2, vocab(), end_token_, prefix_bytes_, !counts_text_};
    std::string content(reinterpret_cast<const char*>(head), sizeof head);
    for (size_t i = 0; i < kHashBytes && !hash_.empty(); i++)
        content[kHashAt + i] =
            static_cast<char>(std::stoi(hash_.substr(hash_.size() - 2 * kHashBytes + 2 * i, 2), nullptr, 16));
    for (const std::string& piece : pieces_) {
        const auto length = static_cast<uint16_t>(piece.size());
        content.append(reinterpret_cast<const char*>(&length), width);
        content += piece;
    }
    return content;
}

std::string TokenDecoder::decode(const std::vector<int>& tokens) const {
    std::string text;
    for (const int token : tokens) {
        const bool has_text = token >= 0 && token < vocab() && !pieces_[token].empty();
        text += pieces_.empty() ? fmt::format("{} ", token) : has_text ? pieces_[token] : fmt::format("<|{}|>", token);
    }
    return text;
}

std::vector<int> TokenDecoder::text_bytes() const {
    std::vector<int> bytes;
    for (const std::string& piece : pieces_) bytes.push_back(static_cast<int>(piece.size()));
    if (end_token_ >= 0 && end_token_ < vocab()) bytes[end_token_] = 0;
    return bytes;
}

}  // namespace llmc
