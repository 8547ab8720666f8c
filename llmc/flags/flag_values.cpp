// Which texts a row of the table of flags takes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/flags/flags.h"

namespace llmc {
namespace {

// The most that a whole number may be where its row says nothing: counts of 64 bits can still be multiplied a little.
template <class T>
constexpr T kMost = std::is_same_v<T, int64_t> ? T{1} << 50 : std::numeric_limits<T>::max();

// Each says what is wrong with a text before CLI11 converts it to the field's type, "" for nothing. The text becomes
// plain decimal, for CLI11 would read "010" as octal.
template <class T>
requires std::is_integral_v<T> std::string mistake_in(std::string& text, const Values& values, T Options::*) {
    if (!values.word.empty() && text == values.word) {
        text = std::to_string(values.word_means);
        return "";
    }
    const T low = static_cast<T>(values.min), high = std::isinf(values.max) ? kMost<T> : static_cast<T>(values.max);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = !text.empty() && end == text.data() + text.size() && error != std::errc::invalid_argument;
    const bool negative = std::is_unsigned_v<T> && text.size() > 1 && text[0] == '-';  // which T cannot hold
    if (!whole && !negative) return "'" + text + "' is not a whole number";
    if (negative || error != std::errc{} || value < low || value > high)
        return text + " is out of range; it must be from " + std::to_string(low) + " to " + std::to_string(high);
    text = std::to_string(value);
    return "";
}

std::string range_text(const Values& v) {
    if (std::isinf(v.max)) return strprintf("%s %g", v.min_open ? "above" : "at least", v.min);
    return strprintf("in %c%g, %g%c", v.min_open ? '(' : '[', v.min, v.max, v.max_open ? ')' : ']');
}

std::string mistake_in(std::string& text, const Values& v, double Options::*) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(value)) return "'" + text + "' is not a number";
    const bool holds = (v.min_open ? value > v.min : value >= v.min) && (v.max_open ? value < v.max : value <= v.max);
    return holds ? "" : text + " is out of range; it must be " + range_text(v);
}

std::string mistake_in(std::string&, const Values&, bool Options::*) { return ""; }

template <class Text>
std::string mistake_in(std::string& text, const Values& values, Text Options::*) {
    const std::vector<std::string>& words = values.words;
    if (!words.empty() && std::find(words.begin(), words.end(), text) == words.end())
        return "'" + text + "' is not one of " + joined(words);
    try {
        if (values.check) values.check(text);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

}  // namespace

std::string mistake_in(std::string& text, const Flag& flag) {
    std::string mistake = std::visit([&](auto f) { return mistake_in(text, flag.values, f); }, flag.field);
    const std::string name = "--" + flag.long_name + " ";  // CLI11 says it
    if (mistake.starts_with(name)) mistake.erase(0, name.size());
    if (!mistake.empty())
        for (const auto& [value, answer] : flag.values.answers)
            if (value == text) mistake += answer;
    return mistake;
}

}  // namespace llmc
