// JSON from text and to text. nlohmann's parser and printer are what takes longest to compile of it, and are compiled
// here alone; values are nlohmann's own.
#pragma once
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace llmc {

// What is wrong with a text that should have been JSON, for a message that says which text.
struct JsonError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr int kDeepestJson = 64;  // levels: copies of values recurse

// Json: nlohmann::json, whose objects are sorted by name, or nlohmann::ordered_json, whose objects are as in the text.
// Throws JsonError if the text is not JSON, is nested deeper than kDeepestJson, or an object has a name twice, of which
// nlohmann would keep the last without a word.
template <class Json>
Json parse_json(std::string_view text);
template <class Json>
Json parse_json(std::istream& stream);  // all of it
template <class Json>
Json parse_json_or_null(std::string_view text);  // null where parse_json throws
template <class Json>
Json parse_json_or_null(std::istream& stream);

// On one line, or with `indent` spaces a level. Bytes that are not UTF-8, as paths and prompts may have, become U+FFFD.
template <class Json>
std::string json_text(const Json& json, int indent = -1);

}  // namespace llmc
