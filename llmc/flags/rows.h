// Makes the rows of the tables of flags, and binds each to its field of Options or of a struct in it.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/flags/flags.h"

namespace llmc {

// ---- fields ---------------------------------------------------------------------------------------------------------

// The largest whole number that a flag accepts if its row gives no limit. 64-bit counts leave room to multiply them.
template <class T>
constexpr T kMost = std::is_same_v<T, int64_t> ? T{1} << 50 : std::numeric_limits<T>::max();

inline bool is_word(int64_t value, const Range& range) { return !range.word.empty() && value == range.word_means; }

template <class T>
requires std::is_integral_v<T>
bool is_in_range(T value, const Range& range) {
    const T low = static_cast<T>(range.min), high = std::isinf(range.max) ? kMost<T> : static_cast<T>(range.max);
    return value >= low && value <= high;
}

inline bool is_in_range(double value, const Range& r) {
    return (r.min_open ? value > r.min : value >= r.min) && (r.max_open ? value < r.max : value <= r.max);
}

template <class T>
requires std::is_integral_v<T>
void read_number(const std::string& text, const Range& range, T& field) {
    if (!range.word.empty() && text == range.word) {
        field = static_cast<T>(range.word_means);
        return;
    }
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = !text.empty() && end == text.data() + text.size() && error != std::errc::invalid_argument;
    const bool negative = std::is_unsigned_v<T> && text.size() > 1 && text[0] == '-';  // T has no sign
    if (!whole && !negative) refuse("'" + text + "' is not a whole number");
    if (negative || error != std::errc{} || !is_in_range(value, range))
        refuse(text + " is out of range; it must be from " + std::to_string(static_cast<T>(range.min)) + " to " +
               std::to_string(std::isinf(range.max) ? kMost<T> : static_cast<T>(range.max)));
    field = value;
}

inline std::string range_text(const Range& r) {
    if (std::isinf(r.max)) return fmt::format("{} {:g}", r.min_open ? "above" : "at least", r.min);
    return fmt::format("in {:c}{:g}, {:g}{:c}", r.min_open ? '(' : '[', r.min, r.max, r.max_open ? ')' : ']');
}

inline void read_number(const std::string& text, const Range& range, double& field) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(value)) refuse("'" + text + "' is not a number");
    if (!is_in_range(value, range)) refuse(text + " is out of range; it must be " + range_text(range));
    field = value;
}

inline JsonValue json_of_text(const std::string& text) { return text.empty() ? JsonValue() : JsonValue(text); }
JsonValue json_of_sets(const std::vector<ValSet>& sets);

// A row names a field of Options or of a struct in it, as in &Options::train and &OptimizerConfig::beta1. No struct
// occurs twice in Options.
template <class T, class Struct, class AnyOptions>
auto& field_of(AnyOptions& o, T Struct::*field) {
    if constexpr (std::is_base_of_v<Struct, Options>) {
        return o.*field;
    } else {
        using Part = std::conditional_t<std::is_const_v<AnyOptions>, const Struct, Struct>;
        return std::get<Part&>(std::tie(o.model, o.fp8, o.schedule, o.optimizer, o.loss_scale, o.sharding)).*field;
    }
}

// ---- rows: flag(short name, long name, value, field, accepted values, help, default if not the field's) -------------

// A number.
template <class T, class Struct>
requires std::is_arithmetic_v<T> Flag flag(char short_name, const char* long_name, const char* value, T Struct::*field,
                                           const Range& range, const char* help, const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    row.range = range;
    row.answers = range.answers;
    row.set = [field, range](Options& o, const std::string& text) { read_number(text, range, field_of(o, field)); };
    // A number that the flag itself would refuse stands for "not given".
    row.get = [field, range](const Options& o) {
        using Widest = std::conditional_t<!std::is_integral_v<T>, double,
                                          std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
        const T number = field_of(o, field);
        if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
            if (is_word(number, range) && std::to_string(number) == range.word) return JsonValue(Widest{number});
        return is_in_range(number, range) ? JsonValue(Widest{number}) : JsonValue();
    };
    row.reset = [field](Options& o) {
        const Options defaults;
        field_of(o, field) = field_of(defaults, field);
    };
    return row;
}

// A switch.
template <class Struct>
Flag flag(char short_name, const char* long_name, const char* value, bool Struct::*field, std::nullptr_t,
          const char* help, const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    row.set = [field](Options& o, const std::string& text) { field_of(o, field) = text == "true"; };
    row.get = [field](const Options& o) { return JsonValue(field_of(o, field)); };
    return row;
}

// One of the words of an enum.
template <class Enum, class Struct>
requires std::is_enum_v<Enum> Flag flag(char short_name, const char* long_name, const char* value, Enum Struct::*field,
                                        const Answers& answers, const char* help, const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    for (const Word<Enum>& word : kWords<Enum>) row.words.push_back(word.text);
    row.answers = answers;
    row.set = [field, words = row.words](Options& o, const std::string& text) {
        const std::optional<Enum> choice = value_of_word<Enum>(text);
        if (!choice) refuse("'" + text + "' is not one of " + joined(words));
        field_of(o, field) = *choice;
    };
    row.get = [field](const Options& o) { return json_of_text(word_of(field_of(o, field))); };
    return row;
}

// A text. `check` throws if the flag refuses it; nullptr accepts every text.
using Check = void (*)(const std::string&);
inline Flag flag(char short_name, const char* long_name, const char* value, std::string Options::*field, Check check,
                 const char* help, const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    row.set = [field, check](Options& o, const std::string& text) {
        if (check) check(text);
        field_of(o, field) = text;
    };
    row.get = [field](const Options& o) { return json_of_text(field_of(o, field)); };
    return row;
}

// A text in a notation of its own. `parse` returns its value, or throws. Options::texts keeps the text.
template <class T, class Struct, class Parse>
requires std::is_invocable_r_v<T, Parse, const std::string&> Flag flag(char short_name, const char* long_name,
                                                                       const char* value, T Struct::*field, Parse parse,
                                                                       const char* help,
                                                                       const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    row.set = [field, parse, name = row.long_name](Options& o, const std::string& text) {
        field_of(o, field) = parse(text);
        o.texts[name] = text;
    };
    row.get = [name = row.long_name](const Options& o) { return json_of_text(o.text(name)); };
    return row;
}

// A value that may follow another one, behind a comma and `prefix`; see with_parts().
template <class T, class Struct>
Flag part(const char* prefix, T Struct::*field, const Range& range) {
    return flag(0, prefix, "", field, range, "");
}

// Adds values to the one of `row`, as in "--keep 3,1000". Those that are left out get their defaults. If a part with a
// prefix comes first, as in "--adamw-lr embedding=0.3", the value of `row` itself is left out.
Flag with_parts(Flag row, const std::vector<Flag>& parts);

// Validation sets or tasks, which may be given several times.
inline Flag flag(char short_name, const char* long_name, const char* value, std::vector<ValSet> Options::*field,
                 Check check, const char* help, const char* default_text = "") {
    Flag row{short_name, long_name, value, help, default_text};
    row.clear = [field](Options& o) { field_of(o, field).clear(); };
    row.set = [field, check, flag = row.long_name](Options& o, const std::string& text) {
        check(text);
        const ValSet set = parse_val_set(text, flag);
        for (const ValSet& other : field_of(o, field))
            if (other.name == set.name)
                refuse("--{0}: two are named \"{1}\"; name each one: --{0} a=FILE --{0} b=FILE", flag, set.name);
        field_of(o, field).push_back(set);
    };
    row.get = [field](const Options& o) { return json_of_sets(field_of(o, field)); };
    return row;
}

}  // namespace llmc
