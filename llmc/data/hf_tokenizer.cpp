// Hugging Face's tokenizer.json: reading byte-level BPE models for samples, and writing one for an export.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/data/tokenizer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
constexpr size_t npos = std::string::npos;

const char* const kFiles[] = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                              "merges.txt",     "special_tokens_map.json", "added_tokens.json"};
constexpr const char* kEnd = "<|endoftext|>";
// Names of the token that ends documents; data/prepare/tokenizers.py has the same list.
const char* const kEndNames[] = {kEnd, "<|begin_of_text|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"};
constexpr int kMostTokens = 1 << 24;

[[noreturn]] void refuse(const std::string& tokenizer, const std::string& what) {
    throw Error(ExitCode::bad_data, "--tokenizer " + tokenizer + ": " + what);
}

// GPT-2's files write each byte as one character: the byte itself if it is printable in Latin-1, otherwise the next
// unused character from U+0100 on.
std::vector<std::string> characters_of_bytes() {
    std::vector<std::string> characters;
    int others = 0;
    for (int byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        const int code = printable ? byte : 0x100 + others++;
        std::string text;
        if (code < 0x80)
            text = static_cast<char>(code);
        else
            text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
        characters.push_back(text);
    }
    return characters;
}

std::string as_characters(const std::string& bytes) {
    static const std::vector<std::string> characters = characters_of_bytes();
    std::string text;
    for (const char byte : bytes) text += characters[static_cast<unsigned char>(byte)];
    return text;
}

// The reverse. If a character stands for no byte, the text is not byte-level and is returned unchanged.
std::string from_characters(const std::string& text) {
    static const std::map<std::string, char> byte_of = [] {
        std::map<std::string, char> map;
        for (int byte = 0; byte < 256; byte++) map[as_characters({static_cast<char>(byte)})] = static_cast<char>(byte);
        return map;
    }();
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
        const size_t length = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : 2;
        const auto found = byte_of.find(text.substr(at, length));
        if (found == byte_of.end()) return text;
        bytes += found->second;
        at += length;
    }
    return bytes;
}

// ---- reading -------------------------------------------------------------------------------------------------------

bool names_byte_level(const json& part) { return part.is_object() && json_text(part).find("\"ByteLevel\"") != npos; }

template <class Json>
void require_tokenizer(const Json& tokenizer) {
    const auto model = tokenizer.is_object() ? tokenizer.find("model") : tokenizer.end();
    if (model == tokenizer.end() || !model->is_object() || !model->contains("vocab") || model->at("vocab").is_number())
        throw JsonError("it is JSON, but not a tokenizer.json");
}

// Throws JsonError unless this is a tokenizer.json with a byte-level BPE.
void require_byte_level(const json& tokenizer) {
    require_tokenizer(tokenizer);
    const json& model = tokenizer.at("model");
    const std::string type = model.value("type", "BPE");
    if (type != "BPE")
        throw JsonError("it is a " + type + " model; only byte-level BPE (GPT-2, Llama 3, Qwen) can be read");
    if (!names_byte_level(tokenizer.value("decoder", json())) &&
        !names_byte_level(tokenizer.value("pre_tokenizer", json())))
        throw JsonError(
            "its BPE works on characters, not bytes; only byte-level BPE (GPT-2, Llama 3, Qwen) can be read");
}

// The result of a merge, which is written as "a b" or ["a", "b"].
std::string union_of(const json& merge) {
    if (merge.is_array()) return merge.at(0).get<std::string>() + merge.at(1).get<std::string>();
    std::string text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != npos) text.erase(space, 1);
    return text;
}

template <class Json>
int id_of(const Json& id) {
    if (id.is_number_unsigned() && id < kMostTokens) return id.template get<int>();
    throw JsonError("the token id " + json_text(id) + " is invalid");
}

}  // namespace

TokenDecoder TokenDecoder::from_hf(const std::string& content, const std::string& path) {
    TokenDecoder decoder(path);
    const auto put = [&](int id, const std::string& bytes) {
        if (decoder.vocab() <= id) decoder.pieces_.resize(static_cast<size_t>(id) + 1);
        decoder.pieces_[id] = bytes;
    };
    try {
        const json tokenizer = parse_json<json>(content);
        require_byte_level(tokenizer);
        std::map<std::string, int> special;
        for (const json& token : tokenizer.value("added_tokens", json::array()))
            special[token.at("content").get<std::string>()] = id_of(token.at("id"));
        // Single bytes are never the result of a merge, so their ranks do not matter.
        for (const auto& [text, id] : tokenizer.at("model").at("vocab").items()) {
            if (special.contains(text)) continue;
            const std::string bytes = from_characters(text);
            put(id_of(id), bytes);
            if (bytes.size() == 1) decoder.tokens_[bytes] = {0, id.get<int>()};
        }
        int rank = 0;
        for (const json& merge : tokenizer.at("model").at("merges")) {
            const std::string text = union_of(merge);
            const int id = id_of(tokenizer.at("model").at("vocab").at(text));
            decoder.tokens_.try_emplace(from_characters(text), Token{rank++, id});
        }
        for (const auto& [text, id] : special) put(id, text);
        for (const char* name : kEndNames)
            if (decoder.end_token_ < 0 && special.contains(name)) decoder.end_token_ = special.at(name);
    } catch (const std::exception& error) {  // a field is missing or has another type
        throw Error(ExitCode::bad_data, "the tokenizer file {}: {}", path, sanitize(error.what()));
    }
    if (decoder.tokens_.empty()) throw Error(ExitCode::bad_data, "the tokenizer file " + path + ": it has no tokens");
    return decoder;
}

// ---- writing -------------------------------------------------------------------------------------------------------

namespace {

ordered_json tokenizer_json(const TokenDecoder& decoder, const std::string& name) {
    ordered_json vocab = ordered_json::object(), merges = ordered_json::array();
    for (int id = 0; id < decoder.vocab(); id++) {
        if (id == decoder.end_token()) continue;
        const std::string piece = decoder.decode({id});
        vocab[as_characters(piece)] = id;
        if (piece.size() < 2) continue;
        const std::vector<std::string> parts = decoder.parts_of(id);
        if (parts.size() != 2)
            refuse(name, fmt::format("token {} does not merge two earlier tokens, so the file is not a byte-pair "
                                     "encoding in merge order; give Hugging Face's tokenizer.json",
                                     id));
        merges.push_back({as_characters(parts[0]), as_characters(parts[1])});
    }
    ordered_json added = ordered_json::array();
    if (decoder.end_token() >= 0) {
        vocab[kEnd] = decoder.end_token();
        added.push_back({{"id", decoder.end_token()},
                         {"content", kEnd},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    const ordered_json byte_level{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"post_processor", nullptr},
            {"decoder", byte_level},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

void write(const fs::path& path, const std::string& text) { write_synced(system_calls(), path.string(), text); }

constexpr InputKind kTokenizerFile = {"tokenizer file", "a JSON file of a Hugging Face tokenizer", ExitCode::bad_data,
                                      256};

void copy_to(const fs::path& from, const fs::path& to) { write(to, read_input(from.string(), kTokenizerFile)); }

ordered_json read_json(const fs::path& path) { return read_json_or_null<ordered_json>(path.string(), kTokenizerFile); }

bool has_hf_files(const fs::path& directory) {
    std::error_code ignored;
    return std::any_of(std::begin(kFiles), std::end(kFiles),
                       [&](const char* name) { return fs::exists(directory / name, ignored); });
}

// The ids of a tokenizer.json's added tokens by their text. Refuses a file with more than `vocab` tokens.
std::map<std::string, int> added_tokens(const fs::path& path, int vocab) {
    std::map<std::string, int> ids;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return ids;  // the directory has only vocab.json and merges.txt
    const ordered_json tokenizer = parse_json<ordered_json>(read_input(path.string(), kTokenizerFile));
    require_tokenizer(tokenizer);
    const auto added = tokenizer.find("added_tokens");
    size_t count = tokenizer.at("model").at("vocab").size();
    if (added != tokenizer.end())
        for (const ordered_json& token : *added) {
            const int id = id_of(token.value("id", ordered_json()));
            ids[token.value("content", "")] = id;
            count = std::max(count, static_cast<size_t>(id) + 1);
        }
    require_tokens_fit(path.string(), static_cast<int>(count), vocab);
    return ids;
}

// The text of the token that ends documents: from the training data, else from the files, else a usual name. Null if
// there is none.
ordered_json end_text(const std::map<std::string, int>& ids, const ordered_json& config, int end_token) {
    for (const auto& [text, id] : ids)
        if (id == end_token) return text;
    const ordered_json end = config.value("eos_token", ordered_json());
    if (end.is_string()) return end;
    if (end.is_object()) return end.value("content", ordered_json());
    for (const char* name : kEndNames)
        if (ids.contains(name)) return name;
    return nullptr;
}

// Copies the files in the directory `from`, or the tokenizer.json `from`, and adds an end token to their configuration.
int copy_hf_tokenizer(const fs::path& from, const HfTokenizerTarget& target, const ordered_json& own_config) {
    std::error_code ignored;
    const bool one_file = !fs::is_directory(from, ignored) && from.filename() != "tokenizer.json";
    const fs::path to(target.directory), folder = fs::is_directory(from, ignored) ? from : from.parent_path();
    const std::map<std::string, int> ids = added_tokens(one_file ? from : folder / "tokenizer.json", target.vocab);
    if (one_file)
        copy_to(from, to / "tokenizer.json");
    else
        for (const char* name : kFiles)
            if (fs::exists(folder / name, ignored)) copy_to(folder / name, to / name);
    const ordered_json present = one_file ? ordered_json() : read_json(folder / "tokenizer_config.json");
    ordered_json config = present.is_object() ? present : own_config;
    const ordered_json end = end_text(ids, config, target.end_token);
    if (!end.is_null()) config["eos_token"] = end;
    if (!end.is_null() && config.value("bos_token", ordered_json()).is_null()) config["bos_token"] = end;
    const bool said_before = present.is_object() && (end.is_null() || end_text({}, present, -1) == end);
    if (!said_before) write(to / "tokenizer_config.json", json_text(config, 2) + "\n");
    const auto found = end.is_string() ? ids.find(end.get<std::string>()) : ids.end();
    return found == ids.end() ? target.end_token : found->second;
}

}  // namespace

int write_hf_tokenizer(const std::string& tokenizer, const HfTokenizerTarget& target) {
    const fs::path from(tokenizer), to(target.directory);
    std::error_code ignored;
    ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", target.context}};
    try {
        if (has_hf_files(from) || (from.extension() == ".json" && fs::exists(from, ignored)))
            return copy_hf_tokenizer(from, target, config);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {  // a field is missing or has another type
        throw Error(ExitCode::bad_data, "the tokenizer " + tokenizer + ": " + sanitize(error.what()));
    }
    TokenDecoder decoder = TokenDecoder::open(tokenizer);
    require_tokens_fit(tokenizer, decoder.vocab(), target.vocab);
    if (target.end_token >= 0 && target.end_token < decoder.vocab()) decoder.set_end_token(target.end_token);
    write(to / "tokenizer.json", json_text(tokenizer_json(decoder, tokenizer), 1) + "\n");
    if (decoder.end_token() >= 0) config["bos_token"] = config["eos_token"] = kEnd;
    write(to / "tokenizer_config.json", json_text(config, 2) + "\n");
    return decoder.end_token();
}

}  // namespace llmc
