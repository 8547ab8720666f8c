// JSON parsing with limits, and printing, on top of nlohmann's library.
// build: fuzzed
#include "llmc/base/json.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace llmc {

JsonValue::JsonValue() : value_(std::make_unique<Json>()) {}
JsonValue::JsonValue(const Json& value) : value_(std::make_unique<Json>(value)) {}
JsonValue::JsonValue(bool value) : JsonValue(Json(value)) {}
JsonValue::JsonValue(int64_t value) : JsonValue(Json(value)) {}
JsonValue::JsonValue(uint64_t value) : JsonValue(Json(value)) {}
JsonValue::JsonValue(double value) : JsonValue(Json(value)) {}
JsonValue::JsonValue(const std::string& value) : JsonValue(Json(value)) {}
JsonValue::JsonValue(const JsonValue& other) : value_(std::make_unique<Json>(*other.value_)) {}
JsonValue::~JsonValue() = default;
JsonValue& JsonValue::operator=(JsonValue other) noexcept {
    value_.swap(other.value_);
    return *this;
}

namespace {

// Builds a value from the parser's events. nlohmann's own parser can limit depth and refuse repeated names only with a
// callback, and then it searches the whole surrounding object after each value, which takes quadratic time.
class Builder final : public nlohmann::json_sax<Json> {
public:
    Json take() { return std::move(result_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(Json::number_integer_t value) override { return add(value); }
    bool number_unsigned(Json::number_unsigned_t value) override { return add(value); }
    bool number_float(Json::number_float_t value, const std::string&) override { return add(value); }
    bool string(std::string& value) override { return add(std::move(value)); }
    bool binary(Json::binary_t&) override { return false; }  // JSON text has no binary values
    bool start_object(size_t) override { return open(Json::object()); }
    bool start_array(size_t) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        Container& object = open_.back();
        if (!object.names.insert(name).second)
            throw JsonError(fmt::format("an object has the name \"{}\" twice", name));
        object.name = std::move(name);
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
        const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line ..."
        const size_t code_end = what.find("] ");
        throw JsonError(code_end == std::string::npos ? what : what.substr(code_end + 2));
    }

private:
    // An object or array whose end is still to come.
    struct Container {
        Json value;
        std::string name;                       // the name of the object's next value
        std::unordered_set<std::string> names;  // the names in the object so far
    };

    bool open(Json&& empty) {
        if (open_.size() >= kDeepestJson)
            throw JsonError(fmt::format("it is nested deeper than {} levels", kDeepestJson));
        open_.push_back({std::move(empty), {}, {}});
        return true;
    }
    bool close() {
        Json value = std::move(open_.back().value);
        open_.pop_back();
        return add(std::move(value));
    }
    bool add(Json&& value) {
        if (open_.empty()) {
            result_ = std::move(value);
        } else if (Container& into = open_.back(); into.value.is_array()) {
            into.value.push_back(std::move(value));
        } else {
            // ordered_map::emplace() would search for the name, which key() knows to be new. Its base is a std::vector.
            into.value.get_ref<Json::object_t&>().emplace_back(std::move(into.name), std::move(value));
        }
        return true;
    }

    Json result_;
    std::vector<Container> open_;
};

}  // namespace

Json parse_json(std::string_view text) {
    Builder builder;
    Json::sax_parse(text, &builder);
    return builder.take();
}

Json parse_json_or_null(std::string_view text) {
    try {
        return parse_json(text);
    } catch (const JsonError&) {
        return nullptr;
    }
}

Json read_json_or_null(const std::string& path, const InputKind& kind) {
    return path_exists(path) ? parse_json_or_null(read_input(path, kind)) : Json();
}

std::string json_text(const Json& json, int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace llmc
