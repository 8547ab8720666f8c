// The fields of a JSON file that describes a model, with refusals that name the file and the field.
#pragma once
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "llmc/model/config.h"

namespace llmc {

class ModelFields {
public:
    ModelFields(const nlohmann::json& json, const std::string& path) : json_(json), path_(path) {}

    bool has(const char* key) const;            // and not null
    ModelFields inside(const char* key) const;  // of an object in this one

    // The first of `keys` that is there; `fallback` if none is, and -1: there must be one.
    int positive(std::initializer_list<const char*> keys, int fallback = -1) const;
    double number(const char* key, double fallback) const;  // above 0
    bool boolean(const char* key, bool fallback) const;
    std::string text(const char* key, const std::string& fallback) const;

    // Refuses another value than these, of which the first is named; a field that is not there is fine.
    void require(const char* key, std::initializer_list<nlohmann::json> allowed, const char* architecture) const;
    [[noreturn]] void refuse(const std::string& problem) const;

    const nlohmann::json& json() const { return json_; }

private:
    const nlohmann::json& json_;
    const std::string path_;
};

}  // namespace llmc
