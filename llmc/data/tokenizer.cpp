// Reading tokenizer files, decoding, and a plain byte-pair encoder for prompts.
#include "llmc/data/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "llmc/device/error.h"

namespace llmc {
namespace {

constexpr int32_t magic_llmc = 20240328;
constexpr int max_vocab = 1 << 24;  // far beyond any tokenizer; stops a corrupt file from filling the memory

[[noreturn]] void bad_file(const std::string& path, const std::string& reason) {
    throw Error(ExitCode::bad_data, strprintf("the tokenizer file %s: %s", path.c_str(), reason.c_str()));
}

int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// False when `text` is no padded base64.
bool decode_base64(std::string_view text, std::string& bytes) {
    if (text.empty() || text.size() % 4 != 0) return false;
    while (!text.empty() && text.back() == '=') text.remove_suffix(1);
    if (text.size() % 4 == 1) return false;
    uint32_t bits = 0;
    int count = 0;
    for (char c : text) {
        const int value = base64_value(c);
        if (value < 0) return false;
        bits = bits << 6 | static_cast<uint32_t>(value);
        count += 6;
        if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8) & 0xff));
    }
    return true;
}

// Length of the valid UTF-8 sequence at the start of `text` and its code point; 0 when there is none.
size_t utf8_length(std::string_view text, uint32_t& code_point) {
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

bool printable(uint32_t c) {
    if (c < 0x20) return c == '\n' || c == '\t';
    const bool control = c >= 0x7f && c < 0xa0;
    const bool separator_or_direction = (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    const bool mark = c == 0x200e || c == 0x200f || c == 0x061c || c == 0xfeff;
    return !control && !separator_or_direction && !mark;
}

}  // namespace

std::vector<int> encode_bytes(const std::string& prompt) {
    std::vector<int> tokens;
    for (unsigned char byte : prompt) tokens.push_back(byte);
    return tokens;
}

size_t complete_utf8(std::string_view text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
        const unsigned char byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xc0) == 0x80) continue;  // not the first of a character
        const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        return length > back ? text.size() - back : text.size();
    }
    return text.size();
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
                clean += strprintf("\\x%02x", static_cast<unsigned char>(text[i + k]));
        }
        i += std::max<size_t>(length, 1);
    }
    return clean;
}

TokenDecoder TokenDecoder::byte_vocabulary() {
    TokenDecoder decoder;
    for (int byte = 0; byte < 256; ++byte) decoder.pieces_.emplace_back(1, static_cast<char>(byte));
    decoder.pieces_.emplace_back("\n");
    decoder.end_token_ = 256;
    return decoder;
}

TokenDecoder TokenDecoder::open(const std::string& name) {
    if (name == "bytes") return byte_vocabulary();
    std::ifstream file(name, std::ios::binary);
    if (!file)
        bad_file(name,
                 "cannot be read; give a tiktoken file, an llm.c tokenizer .bin, or the word bytes for the byte "
                 "vocabulary");
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    int32_t magic = 0;
    if (content.size() >= sizeof magic) std::memcpy(&magic, content.data(), sizeof magic);
    return magic == magic_llmc ? from_llmc(content, name) : from_tiktoken(content, name);
}

// int32 head[256] = {magic, version, tokens, end token (version 2)}, then {uint8 length, bytes} a token.
TokenDecoder TokenDecoder::from_llmc(const std::string& content, const std::string& path) {
    int32_t head[256];
    if (content.size() < sizeof head) bad_file(path, strprintf("has %zu bytes, less than its header", content.size()));
    std::memcpy(head, content.data(), sizeof head);
    const int version = head[1], count = head[2];
    if (version != 1 && version != 2)
        bad_file(path, strprintf("has version %d; versions 1 and 2 can be read", version));
    if (count < 1 || count > max_vocab) bad_file(path, strprintf("claims %d tokens", count));

    TokenDecoder decoder;
    decoder.end_token_ = version == 2 ? head[3] : 50256;  // version 1 was only written for GPT-2
    if (decoder.end_token_ < 0 || decoder.end_token_ >= count)
        bad_file(path, strprintf("its end token %d is not one of its %d tokens", decoder.end_token_, count));
    size_t at = sizeof head;
    for (int id = 0; id < count; ++id) {
        const size_t length = at < content.size() ? static_cast<unsigned char>(content[at]) : 0;
        if (at >= content.size() || content.size() - at - 1 < length)
            bad_file(path, strprintf("ends inside token %d of %d: it is truncated", id, count));
        decoder.pieces_.push_back(content.substr(at + 1, length));
        if (id != decoder.end_token_ && length > 0) decoder.ranks_.emplace(decoder.pieces_.back(), id);
        at += 1 + length;
    }
    if (at != content.size()) bad_file(path, strprintf("has %zu bytes after its last token", content.size() - at));
    return decoder;
}

TokenDecoder TokenDecoder::from_tiktoken(const std::string& content, const std::string& path) {
    TokenDecoder decoder;
    std::string_view rest = content;
    for (int line_number = 1; !rest.empty(); ++line_number) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;
        const size_t space = line.find(' ');
        std::string bytes;
        int id = -1;
        const char* end = line.data() + line.size();
        if (space == line.npos || !decode_base64(line.substr(0, space), bytes) ||
            std::from_chars(line.data() + space + 1, end, id).ptr != end || id < 0 || id >= max_vocab)
            bad_file(path,
                     strprintf("line %d is not `base64 rank`, and the file is no llm.c tokenizer either (its magic "
                               "is not %d)",
                               line_number, magic_llmc));
        if (decoder.pieces_.size() <= static_cast<size_t>(id)) decoder.pieces_.resize(id + 1);
        decoder.pieces_[id] = bytes;
        if (!decoder.ranks_.emplace(bytes, id).second)
            bad_file(path, strprintf("line %d repeats the bytes of an earlier token", line_number));
    }
    if (decoder.ranks_.empty()) bad_file(path, "is empty");
    // The file lacks special tokens. GPT-2's end token and Llama 3's begin token, which start documents in llm.c's
    // shards, follow the last rank.
    const int ranks = decoder.vocab();
    if (ranks == 50256 || ranks == 128000) {
        decoder.pieces_.emplace_back(ranks == 50256 ? "<|endoftext|>" : "<|begin_of_text|>");
        decoder.end_token_ = ranks;
    }
    return decoder;
}

std::string TokenDecoder::decode(const std::vector<int>& tokens) const {
    std::string text;
    for (int token : tokens) text += token >= 0 && token < vocab() ? pieces_[token] : strprintf("<|%d|>", token);
    return text;
}

std::vector<int> TokenDecoder::encode(const std::string& prompt) const {
    if (ranks_.empty()) return encode_bytes(prompt);
    std::vector<int> tokens;
    // A word starts at the space before it: "a  b" is "a", " ", " b".
    for (size_t start = 0; start < prompt.size();) {
        size_t end = start;
        while (end < prompt.size() && prompt[end] == ' ') ++end;
        if (end - start > 1 && end < prompt.size()) {
            --end;  // a run of spaces keeps all but the last
        } else {
            while (end < prompt.size() && prompt[end] != ' ') ++end;
        }
        encode_word(prompt.substr(start, end - start), tokens);
        start = end;
    }
    return tokens;
}

std::vector<std::string> TokenDecoder::parts_of(int token) const {
    return merged(pieces_[static_cast<size_t>(token)], token);
}

// Merges the neighbours whose union has the lowest rank until no union is a token below `below`. Quadratic; words are
// short.
std::vector<std::string> TokenDecoder::merged(const std::string& word, int below) const {
    std::vector<std::string> parts;
    for (char byte : word) parts.emplace_back(1, byte);
    for (;;) {
        size_t best = parts.size();
        int best_rank = below;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto found = ranks_.find(parts[i] + parts[i + 1]);
            if (found != ranks_.end() && found->second < best_rank) best = i, best_rank = found->second;
        }
        if (best == parts.size()) return parts;
        parts[best] += parts[best + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
}

void TokenDecoder::encode_word(const std::string& word, std::vector<int>& tokens) const {
    for (const std::string& part : merged(word, max_vocab)) {
        const auto found = ranks_.find(part);
        if (found == ranks_.end())
            throw Error(ExitCode::bad_data, strprintf("the tokenizer has no token for the prompt's byte 0x%02x",
                                                      static_cast<unsigned char>(part[0])));
        tokens.push_back(found->second);
    }
}

}  // namespace llmc
