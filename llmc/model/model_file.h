// Files that describe a model: our own fields, or Hugging Face's config.json. One list of fields serves both
// directions.
#pragma once
#include <initializer_list>
#include <set>
#include <span>
#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"

namespace llmc {

// Throws Error(bad_flags).
ModelConfig read_model_file(const std::string& path);
// `path` is for messages.
ModelConfig model_from_json(const nlohmann::json& file, const std::string& path);

// Our own fields without the name. GPT-2 has only five of them.
Json model_json(const ModelConfig& config);
// config.json, without the fields about weight files and tokens.
Json hf_model_json(const ModelConfig& config);

// The differences between two models, in the words of our own model files: "layers is 2, this model has 3; vocab is
// 257, this model has 50257". "" if they are the same.
std::string differences(const ModelConfig& there, const ModelConfig& here);

// A JSON object that a list of fields either reads or writes. Each field is named once; reading refuses a wrong value
// with the file, the field and the value. It remembers which keys were read, so that the others can be refused.
class ModelFields {
public:
    // Reads `json`, which the file at `path` holds.
    ModelFields(const nlohmann::json& json, const std::string& path) : read_(&json), path_(path) {}
    // Writes into `json`.
    explicit ModelFields(Json& json) : written_(&json) {}

    bool writes() const { return written_ != nullptr; }
    bool has(const char* key) const;
    const nlohmann::json& object() const { return *read_; }  // that is read
    ModelFields inside(const char* key) const;               // an object in this one; new if it is written

    // Fields. Reading takes the fallback if the key is not there, and `null` if its value is null.
    static constexpr int kRequired = -1;  // a fallback: the field must be there; for `null`: it must not be null
    void positive(const char* key, int& field, int fallback = kRequired, int null = kRequired) const;
    void number(const char* key, double& field, double fallback = kRequired) const;  // above 0
    void boolean(const char* key, bool& field, bool fallback) const;
    void text(const char* key, std::string& field, const std::string& fallback) const;

    // A field that can only have these values in this architecture. Reading refuses others; writing takes the first.
    void fixed(const char* key, std::initializer_list<nlohmann::json> allowed, const char* architecture) const;
    // The same for a field that is read but not written.
    void require(const char* key, std::initializer_list<nlohmann::json> allowed, const char* architecture) const;
    // A field that is written, and may have any value when it is read.
    void set(const char* key, const Json& value) const;

    // Refuses the first key that has a value, was not read so far, and is not in `harmless`.
    void refuse_others(std::span<const char* const> harmless) const;
    [[noreturn]] void refuse(const std::string& problem) const;

private:
    bool is_there(const char* key) const;
    [[noreturn]] void refuse_missing(const char* key) const;

    mutable std::set<std::string> known_;  // keys that were asked for
    const nlohmann::json* read_ = nullptr;
    Json* written_ = nullptr;
    const std::string path_ = {};
};

}  // namespace llmc
