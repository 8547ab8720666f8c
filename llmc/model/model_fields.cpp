// build: fuzzed
#include "llmc/model/model_fields.h"

#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

namespace llmc {

bool ModelFields::has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

void ModelFields::refuse(const std::string& problem) const {
    throw Error(ExitCode::bad_flags, strprintf("model file %s: %s", path_.c_str(), problem.c_str()));
}

ModelFields ModelFields::inside(const char* key) const {
    if (!json_[key].is_object())
        refuse(strprintf("\"%s\" is %s; it must be an object", key, json_text(json_[key]).c_str()));
    return {json_[key], path_};
}

int ModelFields::positive(std::initializer_list<const char*> keys, int fallback) const {
    for (const char* key : keys) {
        if (!has(key)) continue;
        constexpr double kMost = 1e8;  // far above all there is, and what follows from it fits an int
        const nlohmann::json& value = json_[key];
        if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > kMost)
            refuse(strprintf("\"%s\" is %s; it must be a positive whole number", key, json_text(value).c_str()));
        return value.get<int>();
    }
    if (fallback >= 0) return fallback;
    refuse(
        strprintf("\"%s\" is missing; the fields are layers, heads, channels, vocab and context (or Hugging Face's "
                  "n_layer, n_head, n_embd, vocab_size, n_positions)",
                  *keys.begin()));
}

double ModelFields::number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const nlohmann::json& value = json_[key];
    if (!value.is_number() || !(value.get<double>() > 0))
        refuse(strprintf("\"%s\" is %s; it must be a number above 0", key, json_text(value).c_str()));
    return value.get<double>();
}

bool ModelFields::boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_boolean())
        refuse(strprintf("\"%s\" is %s; it must be true or false", key, json_text(json_[key]).c_str()));
    return json_[key].get<bool>();
}

std::string ModelFields::text(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_string())
        refuse(strprintf("\"%s\" is %s; it must be a word", key, json_text(json_[key]).c_str()));
    return json_[key].get<std::string>();
}

void ModelFields::require(const char* key, std::initializer_list<nlohmann::json> allowed,
                          const char* architecture) const {
    if (!has(key)) return;
    for (const nlohmann::json& value : allowed)
        if (json_[key] == value) return;
    refuse(strprintf("\"%s\" is %s, which is not the %s architecture (%s)", key, json_text(json_[key]).c_str(),
                     architecture, allowed.begin()->dump().c_str()));
}

}  // namespace llmc
