// Writes the tokenizer of an exported model in Hugging Face's files.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/data/encoder.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

namespace fs = std::filesystem;

const char* const kFiles[] = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                              "merges.txt",     "special_tokens_map.json", "added_tokens.json"};
// Names of the token that ends documents; data/prepare/tokenizers.py has the same list.
const char* const kEndNames[] = {"<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"};
constexpr int kMostTokens = 1 << 24;

constexpr InputKind kHfTokenizerFile = {"tokenizer file", "a JSON file of a Hugging Face tokenizer", ExitCode::bad_data,
                                        256};

// The files of a Hugging Face directory by name, or the files next to the tokenizer.json `from`, or the file `from`.
static std::map<std::string, std::string> hf_files(const fs::path& from) {
    std::map<std::string, std::string> files;
    const bool is_folder = directory_exists(from);
    if (!is_folder && (from.extension() != ".json" || !path_exists(from))) return files;
    const fs::path folder = is_folder ? from : from.parent_path();
    if (!is_folder && from.filename() != "tokenizer.json") {
        files["tokenizer.json"] = read_input(from.string(), kHfTokenizerFile);
        return files;
    }
    for (const char* name : kFiles)
        if (path_exists(folder / name)) files[name] = read_input((folder / name).string(), kHfTokenizerFile);
    return files;
}

// The ids of a tokenizer.json's added tokens by their text. Refuses a file with more than `vocab` tokens.
static std::map<std::string, int> added_tokens(const std::string& name, const std::string& content, int vocab) {
    std::map<std::string, int> ids;
    const Json tokenizer = parse_json(content);
    const auto model = tokenizer.is_object() ? tokenizer.find("model") : tokenizer.end();
    if (model == tokenizer.end() || !model->is_object() || !model->contains("vocab") || model->at("vocab").is_number())
        throw JsonError("it is JSON, but not a tokenizer.json");
    size_t count = model->at("vocab").size();
    for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
        const Json id = token.value("id", Json());
        if (!id.is_number_unsigned() || id >= kMostTokens)
            throw JsonError("the token id " + json_text(id) + " is invalid");
        ids[token.value("content", "")] = id.get<int>();
        count = std::max(count, id.get<size_t>() + 1);
    }
    require_tokens_fit(name, static_cast<int>(count), vocab);
    return ids;
}

// The text of a token in tokenizer_config.json, which is a string or an object; "" if there is none.
static std::string text_in(const Json& config, const char* key) {
    const Json token = config.value(key, Json());
    return token.is_string() ? token.get<std::string>() : token.is_object() ? token.value("content", "") : "";
}

// The text of the token with this id, or else `otherwise`.
static std::string text_of(const std::map<std::string, int>& ids, int id, const std::string& otherwise) {
    for (const auto& [text, token] : ids)
        if (token == id) return text;
    return otherwise;
}

// The file's content with these tokens as eos_token and bos_token; the same content if it says so already.
static std::string with_tokens(const std::string& content, Json config, const std::string& begin,
                               const std::string& end) {
    bool changed = content.empty();
    const auto set = [&](const char* key, const std::string& text) {
        if (text.empty() || text_in(config, key) == text) return;
        config[key] = text;
        changed = true;
    };
    set("eos_token", end);
    set("bos_token", begin);
    return changed ? json_text(config, 2) + "\n" : content;
}

bool is_hf_tokenizer_file(const std::string& name) {
    return std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles);
}

DocumentTokens write_hf_tokenizer(const std::string& tokenizer, const HfTokenizerTarget& target) {
    std::map<std::string, std::string> files = hf_files(tokenizer);
    if (files.empty()) files["tokenizer.json"] = ask_prepare("json", tokenizer);
    const auto parsed = [&](const char* name) { return parse_json_or_null(files[name]); };
    DocumentTokens tokens = target.tokens;
    try {
        std::map<std::string, int> ids;
        if (files.contains("tokenizer.json")) ids = added_tokens(tokenizer, files["tokenizer.json"], target.vocab);
        Json config = parsed("tokenizer_config.json");
        if (!config.is_object()) {
            config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", target.context}};
            files["tokenizer_config.json"] = "";
        }
        std::string usual;
        for (const char* name : kEndNames)
            if (usual.empty() && ids.contains(name)) usual = name;
        const std::string named = text_in(config, "eos_token");
        const auto of_chat = ids.find(named);
        if (of_chat != ids.end() && std::count(target.end_tokens.begin(), target.end_tokens.end(), of_chat->second))
            tokens.end = of_chat->second;
        const std::string end = text_of(ids, tokens.end, named.empty() ? usual : named);
        const std::string named_begin = text_in(config, "bos_token");
        const std::string begin = text_of(ids, tokens.begin, named_begin.empty() ? end : named_begin);
        files["tokenizer_config.json"] = with_tokens(files["tokenizer_config.json"], config, begin, end);
        // Older versions of transformers take these instead.
        if (const Json map = parsed("special_tokens_map.json"); map.is_object())
            files["special_tokens_map.json"] = with_tokens(files["special_tokens_map.json"], map, begin, end);
        if (ids.contains(end)) tokens.end = ids[end];
        if (ids.contains(begin)) tokens.begin = ids[begin];
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {  // a field is missing or has another type
        refuse_data("the tokenizer {}: {}", tokenizer, sanitize(error.what()));
    }
    for (const auto& [name, content] : files)
        if (!content.empty()) write_synced(system_calls(), (fs::path(target.directory) / name).string(), content);
    return tokens;
}

}  // namespace llmc
