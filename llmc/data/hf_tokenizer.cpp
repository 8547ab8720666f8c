#include "llmc/data/hf_tokenizer.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/data/tokenizer.h"
#include "llmc/device/error.h"
#include "llmc/device/json.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const char* const kFiles[] = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                              "merges.txt",     "special_tokens_map.json", "added_tokens.json"};
constexpr const char* kEnd = "<|endoftext|>";

[[noreturn]] void refuse(const std::string& tokenizer, const std::string& what) {
    throw Error(ExitCode::bad_data, "--tokenizer " + tokenizer + ": " + what);
}

// Every byte is a character of its own in GPT-2's files: itself where it is printable in Latin-1, else one from U+0100
// on, in order.
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

ordered_json tokenizer_json(const TokenDecoder& decoder, const std::string& name) {
    ordered_json vocab = ordered_json::object(), merges = ordered_json::array();
    for (int id = 0; id < decoder.vocab(); id++) {
        if (id == decoder.end_token()) continue;
        const std::string piece = decoder.decode({id});
        vocab[as_characters(piece)] = id;
        if (piece.size() < 2) continue;
        const std::vector<std::string> parts = decoder.parts_of(id);
        if (parts.size() != 2)
            refuse(name, strprintf("token %d is no merge of two earlier ones, so this is no byte-pair encoding in the "
                                   "order of its merges; give Hugging Face's tokenizer.json",
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

void write(const fs::path& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    if (!file.flush()) throw Error(ExitCode::no_resources, "cannot write " + path.string());
}

void copy_into(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::copy_file(from, to / from.filename(), fs::copy_options::overwrite_existing, error);
    if (error)
        throw Error(ExitCode::no_resources, strprintf("cannot copy %s into %s: %s", from.string().c_str(),
                                                      to.string().c_str(), error.message().c_str()));
}

}  // namespace

void write_hf_tokenizer(const std::string& tokenizer, int vocab, int context, const std::string& directory) {
    const fs::path from(tokenizer), to(directory);
    std::error_code ignored;
    if (fs::is_directory(from, ignored)) {
        bool found = false;
        for (const char* name : kFiles)
            if (fs::exists(from / name, ignored)) copy_into(from / name, to), found = true;
        if (!found) refuse(tokenizer, "the directory has no tokenizer.json, nor another tokenizer of Hugging Face's");
        return;
    }
    ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", context}};
    if (from.filename() == "tokenizer.json") {
        copy_into(from, to);
    } else {
        const TokenDecoder decoder = TokenDecoder::open(tokenizer);
        if (decoder.vocab() > vocab)
            refuse(tokenizer,
                   strprintf("it has %d tokens, the model %d: it is another model's", decoder.vocab(), vocab));
        write(to / "tokenizer.json", json_text(tokenizer_json(decoder, tokenizer), 1) + "\n");
        if (decoder.end_token() >= 0) config["bos_token"] = config["eos_token"] = kEnd;
    }
    write(to / "tokenizer_config.json", json_text(config, 2) + "\n");
}

}  // namespace llmc
