// JSON: values, refusals with reasons, and parsing in linear time.
#include "llmc/base/json.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "test/helpers.h"

using namespace llmc;

namespace {

std::string json_refusal(const std::string& text) {
    try {
        parse_json(text);
    } catch (const JsonError& error) {
        CHECK(parse_json_or_null(text).is_null());
        return error.what();
    }
    return "<no error>";
}

std::string nested(int levels) {
    return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
}

}  // namespace

TEST_CASE("JSON: texts become values, in the order of the text") {
    const std::string text = R"({"b":[1,-2,2.5,true,null],"a":{"x":"é"}})";
    CHECK(json_text(parse_json(text)) == text);
    CHECK((parse_json(text) == parse_json_or_null(text)));
    CHECK(json_text(Json{{"a", 1}, {"b", {2}}}, 1) == "{\n \"a\": 1,\n \"b\": [\n  2\n ]\n}");
}

TEST_CASE("JSON: malformed, too deep or repeated names are refused with the reason") {
    for (const char* broken : {"", " ", "{", "[1,]", "{\"a\":}", "nonsense", "{}{}", "\"\xff\"", "{1:2}"}) {
        CAPTURE(broken);
        CHECK(json_refusal(broken).starts_with("parse error at line 1, column"));
    }
    CHECK(json_refusal("1e999").find("number overflow") == 0);
    CHECK(json_refusal(nested(kDeepestJson)) == "<no error>");
    CHECK(json_refusal(nested(kDeepestJson + 1)) == "it is nested deeper than 64 levels");
    CHECK(json_refusal(std::string(1000000, '[')) == "it is nested deeper than 64 levels");
    CHECK(json_refusal(R"({"a":1,"b":2,"a":1})") == "an object has the name \"a\" twice");
    CHECK(json_refusal(R"({"a":{"b":[{"c":1},{"c":2,"d":3,"c":4}]}})") == "an object has the name \"c\" twice");
    CHECK(json_refusal(R"({"a":{"a":[{"a":1},{"a":{}}]},"b":{"a":0,"b":1}})") == "<no error>");
}

namespace {

// The CPU time of parsing an object of `count` objects, like the header of a safetensors file. The better of two runs.
double time_to_parse(int count) {
    std::string text = "{";
    for (int i = 0; i < count; i++)
        text += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    text += "}";
    double best = 1e9;
    for (int i = 0; i < 2; i++) {
        const std::clock_t start = std::clock();
        CHECK(parse_json(text).size() == static_cast<size_t>(count));
        best = std::min(best, static_cast<double>(std::clock() - start));
    }
    return best;
}

}  // namespace

TEST_CASE("JSON: parsing takes time in proportion to the text") {
    // Quadratic time would be 16 times as long.
    CHECK(time_to_parse(16000) / time_to_parse(4000) < 8);
}

TEST_CASE("JSON: a file that does not exist or is not JSON is null") {
    const test::TemporaryDirectory directory;
    const InputKind kind = {"recipe", "a recipe", ExitCode::bad_data};
    const std::string path = directory / "a";
    CHECK(read_json_or_null(path, kind).is_null());
    std::ofstream(path) << "[1]";
    CHECK(read_json_or_null(path, kind) == Json{1});
    std::ofstream(path) << "[1";
    CHECK(read_json_or_null(path, kind).is_null());
    CHECK_THROWS_AS(read_json_or_null(directory.path, kind), Error);
}

TEST_CASE("JSON: bytes that are not UTF-8 do not end a run") {
    CHECK(json_text(Json{{"path",
                          "a\xff"
                          "b"}}) ==
          "{\"path\":\"a\xef\xbf\xbd"
          "b\"}");
}
