// JSON from text and to text. Values are of nlohmann's own type. Its parser and printer take long to compile, so only
// json.cpp includes them.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "llmc/base/files.h"

namespace llmc {

using Json = nlohmann::ordered_json;  // keeps the order of names

// The reason why a text is not valid JSON. The caller's message adds which text it is.
struct JsonError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A JSON value as a member of a class in a header. It needs only the declaration of nlohmann's type, whose definition
// takes longer to compile than most files that would include it.
class JsonValue {
public:
    JsonValue();  // null
    JsonValue(const Json& value);
    explicit JsonValue(bool value);
    explicit JsonValue(int64_t value);
    explicit JsonValue(uint64_t value);
    explicit JsonValue(double value);
    explicit JsonValue(const std::string& value);
    JsonValue(const JsonValue& other);
    ~JsonValue();
    JsonValue& operator=(JsonValue other) noexcept;
    Json& operator*() { return *value_; }
    const Json& operator*() const { return *value_; }
    Json* operator->() { return value_.get(); }
    const Json* operator->() const { return value_.get(); }

private:
    std::unique_ptr<Json> value_;
};

constexpr int kDeepestJson = 64;  // levels; limited because copying a value recurses

// Throws JsonError if the text is not JSON, is nested deeper than kDeepestJson, or repeats a name in an object (the
// first value would be lost). Takes time in proportion to the text.
Json parse_json(std::string_view text);
Json parse_json_or_null(std::string_view text);  // null if parse_json() would throw
// The JSON in a file, or null if the file does not exist or is not JSON. Throws if the path is not a regular file.
Json read_json_or_null(const std::string& path, const InputKind& kind);

// Prints on one line, or with `indent` spaces per level. Bytes that are not UTF-8, which paths and prompts may contain,
// become U+FFFD.
std::string json_text(const Json& json, int indent = -1);

}  // namespace llmc
