// Small text functions that options, progress and plans share: numbers for people, durations, the nearest known word,
// printed lines, and words for the values of an enum.
#pragma once
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/error.h"

namespace llmc {

std::string format_bytes(size_t bytes);                        // "512 B", "3.2 KiB", "1.2 GiB"
std::string with_commas(int64_t number);                       // 1234567 -> "1,234,567"
std::string format_count(int64_t number);                      // 999999 -> "999,999", 1557000000 -> "1.56 B"
std::string plural(int64_t count, const std::string& noun);    // "1 step", "2,000 steps", "2 batches"
std::string counted(int64_t number, const std::string& noun);  // the same, but "1.56 B tokens" from 100 million on
std::string format_duration(double seconds);                   // "0:32", "1:02:03", "2d 03:04"
std::string format_scaled(double number);                      // 124439808 -> "124.4 M": thousands as k, M, G, T

// Returns the number, with the sign removed from a NaN: printf would print "-nan".
double unsigned_nan(double number);

// The number of insertions, deletions, changes and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

// The candidate closest to `word`, or nothing if more than a third of its letters differ from every candidate.
std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& candidates);

// `text` in lines of at most `width` characters; all but the first are indented by `indent` spaces. Words longer than a
// line stay whole.
std::string wrap(const std::string& text, size_t indent, size_t width);

std::string joined(const std::vector<std::string>& words);                // "a, b, c"
std::vector<std::string> split(const std::string& text, char separator);  // "a,,b" -> "a", "", "b"; "" -> ""
std::vector<std::string> words_in(const std::string& text);               // separated by white space
bool contains(const std::vector<std::string>& words, const std::string& word);

bool is_digits(std::string_view text);  // true if it is one digit or more, and nothing else

// The number that the whole text spells; nothing if it is no number, or too large for T.
template <class T>
std::optional<T> number_in(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// A pattern that matches all words: their common beginning, *, their common end. "data/*.bin" if they share neither.
std::string pattern_of(const std::vector<std::string>& words);

// An argument quoted for a shell, but only if it needs quotes.
std::string shell_quote(const std::string& argument);

// The current time, for example "2026-01-31T12:00:00Z" (ISO 8601, UTC).
std::string utc_now();

// ---- lines for people -----------------------------------------------------------------------------------------------

// Shows a line on the terminal that the next output replaces: "validation: batch 12 of 300". At most ten a second, and
// none at all in a log; see allow_status().
void show_status(const std::string& line);
void clear_status();
void allow_status(bool allowed);  // at the start of a program

// Print fmt::format(format, values...) and a newline on standard output and standard error. A line that cannot be
// written is lost, because a run goes on without its reader.
template <class... Values>
void print_line(fmt::format_string<Values...> format, Values&&... values) {
    clear_status();
    std::fputs((fmt::format(format, std::forward<Values>(values)...) + "\n").c_str(), stdout);
}
template <class... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
    clear_status();
    std::fputs((fmt::format(format, std::forward<Values>(values)...) + "\n").c_str(), stderr);
}

// ---- words for the values of an enum --------------------------------------------------------------------------------

template <class Enum>
struct Word {
    const char* text;
    Enum value;
};

// Flags, reports and files all spell a value as the table of its enum does. The table is a specialization of kWords. A
// value that it leaves out stands for "not given". (nvcc of CUDA 12.4 refuses specializations that are arrays.)
template <class Enum>
using WordTable = std::initializer_list<Word<Enum>>;
template <class Enum>
inline constexpr std::nullptr_t kWords = nullptr;

template <class Enum>
constexpr const char* word_of(Enum value) {
    for (const Word<Enum>& word : kWords<Enum>)
        if (word.value == value) return word.text;
    return "";
}

template <class Enum>
constexpr std::optional<Enum> value_of_word(std::string_view text) {
    for (const Word<Enum>& word : kWords<Enum>)
        if (word.text == text) return word.value;
    return std::nullopt;
}

}  // namespace llmc
