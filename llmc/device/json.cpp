#include "llmc/device/json.h"

#include <istream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "llmc/device/error.h"

namespace llmc {

template <class Json>
Json parse_json(std::string_view text) {
    std::vector<std::set<std::string>> names;  // of the objects around what is read
    const auto check = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
        const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
        if (opens && depth >= kDeepestJson)
            throw JsonError(strprintf("it is nested deeper than %d levels", kDeepestJson));
        if (event == Json::parse_event_t::object_start) {
            names.resize(static_cast<size_t>(depth) + 1);
            names.back().clear();
        } else if (event == Json::parse_event_t::key) {
            const std::string& name = parsed.template get_ref<const std::string&>();
            if (!names.at(static_cast<size_t>(depth) - 1).insert(name).second)
                throw JsonError(strprintf("\"%s\" stands there twice", name.c_str()));
        }
        return true;
    };
    try {
        return Json::parse(text, check);
    } catch (const typename Json::exception& error) {
        const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line ..."
        const size_t code_end = what.find("] ");
        throw JsonError(code_end == std::string::npos ? what : what.substr(code_end + 2));
    }
}

template <class Json>
Json parse_json_or_null(std::string_view text) {
    try {
        return parse_json<Json>(text);
    } catch (const JsonError&) {
        return nullptr;
    }
}

static std::string rest_of(std::istream& stream) { return {std::istreambuf_iterator<char>(stream), {}}; }

template <class Json>
Json parse_json(std::istream& stream) {
    return parse_json<Json>(rest_of(stream));
}

template <class Json>
Json parse_json_or_null(std::istream& stream) {
    return parse_json_or_null<Json>(rest_of(stream));
}

template <class Json>
std::string json_text(const Json& json, int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

template nlohmann::json parse_json(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);
template nlohmann::json parse_json(std::istream&);
template nlohmann::ordered_json parse_json(std::istream&);
template nlohmann::json parse_json_or_null(std::string_view);
template nlohmann::ordered_json parse_json_or_null(std::string_view);
template nlohmann::json parse_json_or_null(std::istream&);
template nlohmann::ordered_json parse_json_or_null(std::istream&);
template std::string json_text(const nlohmann::json&, int);
template std::string json_text(const nlohmann::ordered_json&, int);

}  // namespace llmc
