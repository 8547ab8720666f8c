#include "llmc/device/json.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

using namespace llmc;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

std::string refusal(const std::string& text) {
    try {
        parse_json<ordered_json>(text);
    } catch (const JsonError& error) {
        CHECK(parse_json_or_null<ordered_json>(text).is_null());
        return error.what();
    }
    return "<no error>";
}

std::string nested(int levels) {
    return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
}

}  // namespace

TEST_CASE("JSON: texts and streams become values, in the order of the text or sorted") {
    const std::string text = R"({"b":[1,-2,2.5,true,null],"a":{"x":"é"}})";
    CHECK(json_text(parse_json<ordered_json>(text)) == text);
    CHECK(json_text(parse_json<json>(text)) == R"({"a":{"x":"é"},"b":[1,-2,2.5,true,null]})");
    std::istringstream stream(text), again(text);
    CHECK((parse_json<ordered_json>(stream) == parse_json_or_null<ordered_json>(again)));
    CHECK(json_text(ordered_json{{"a", 1}, {"b", {2}}}, 1) == "{\n \"a\": 1,\n \"b\": [\n  2\n ]\n}");
}

TEST_CASE("JSON: what is not, is nested too deeply or has a name twice is refused with the reason") {
    for (const char* broken : {"", " ", "{", "[1,]", "{\"a\":}", "nonsense", "{}{}", "\"\xff\"", "{1:2}"}) {
        CAPTURE(broken);
        CHECK(refusal(broken).starts_with("parse error at line 1, column"));
    }
    CHECK(refusal("1e999").find("number overflow") == 0);
    CHECK(refusal(nested(kDeepestJson)) == "<no error>");
    CHECK(refusal(nested(kDeepestJson + 1)) == "it is nested deeper than 64 levels");
    CHECK(refusal(std::string(1000000, '[')) == "it is nested deeper than 64 levels");
    CHECK(refusal(R"({"a":1,"b":2,"a":1})") == "\"a\" stands there twice");
    CHECK(refusal(R"({"a":{"b":[{"c":1},{"c":2,"d":3,"c":4}]}})") == "\"c\" stands there twice");
    CHECK(refusal(R"({"a":{"a":[{"a":1},{"a":{}}]},"b":{"a":0,"b":1}})") == "<no error>");
}

TEST_CASE("JSON: bytes that are not UTF-8 do not end a run") {
    CHECK(json_text(ordered_json{{"path",
                                  "a\xff"
                                  "b"}}) ==
          "{\"path\":\"a\xef\xbf\xbd"
          "b\"}");
}
