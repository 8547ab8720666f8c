// Formatting of numbers, durations and words for people, and the part of the fmt library that is not in <fmt/core.h>:
// the program needs no libfmt where it runs, because this file compiles it.
#define FMT_HEADER_ONLY
#include "llmc/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "llmc/base/clock.h"

namespace llmc {

// The compiler emits an inline function only where it is used.
[[gnu::used]] static std::string (*const emitted)(fmt::string_view, fmt::format_args) = &fmt::vformat;

std::string format_bytes(size_t bytes) {
    const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return fmt::format("{} B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    int unit = 0;
    for (; value >= 1023.95 && unit < 3; unit++) value /= 1024;  // 1023.95 would print as 1024.0
    return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string with_commas(int64_t number) {
    std::string digits = std::to_string(number);
    const size_t first = number < 0 ? 1 : 0;
    for (size_t i = digits.size(); i > first + 3;) {
        i -= 3;
        digits.insert(i, ",");
    }
    return digits;
}

std::string format_count(int64_t number) {
    const char* const units[] = {"M", "B", "T"};
    if (number < 1000000) return with_commas(number);
    double value = static_cast<double>(number) / 1e6;
    int unit = 0;
    for (; value >= 999.5 && unit < 2; unit++) value /= 1000;
    return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

std::string counted(int64_t number, const std::string& noun) {
    return number < 100000000 ? plural(number, noun) : format_count(number) + " " + noun + "s";
}

std::string format_duration(double seconds) {
    if (!(seconds >= 0) || seconds > 1e10) return "?";
    const long long total = std::llround(seconds);
    const long long days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
    if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
    if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
    return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string format_scaled(double number) {
    const char* const units[] = {"", " k", " M", " G", " T", " P", " E"};
    int unit = 0;
    for (; std::fabs(number) >= 999.95 && unit < 6; unit++) number /= 1000;
    if (unit == 0 && number == std::floor(number)) return fmt::format("{:.0f}", number);
    return fmt::format("{:.1f}{}", number, units[unit]);
}

double unsigned_nan(double number) { return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number; }

int edit_distance(std::string_view a, std::string_view b) {
    const size_t rows = a.size() + 1, columns = b.size() + 1;
    std::vector<int> table(rows * columns);
    auto at = [&](size_t i, size_t j) -> int& { return table[i * columns + j]; };
    for (size_t i = 0; i < rows; i++) at(i, 0) = static_cast<int>(i);
    for (size_t j = 0; j < columns; j++) at(0, j) = static_cast<int>(j);
    for (size_t i = 1; i < rows; i++) {
        for (size_t j = 1; j < columns; j++) {
            const int change = a[i - 1] == b[j - 1] ? 0 : 1;
            at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + change});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
            }
        }
    }
    return at(a.size(), b.size());
}

std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& candidates) {
    std::optional<std::string> best;
    // Short words are alike by chance: "steps" is two changes away from "eps".
    int best_distance = std::max<int>(1, static_cast<int>(word.size()) / 3) + 1;
    for (const std::string& candidate : candidates) {
        int distance = edit_distance(word, candidate);
        // The beginning of a longer word ("warm", "max") stands for that word.
        if (word.size() >= 3 && candidate.compare(0, word.size(), word) == 0) distance = std::min(distance, 1);
        if (distance < best_distance && distance < static_cast<int>(word.size())) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}

std::string wrap(const std::string& text, size_t indent, size_t width) {
    std::string result;
    size_t column = indent;
    for (const std::string& word : words_in(text)) {
        if (column > indent && column + 1 + word.size() > width) {
            result += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            result += " ";
            column++;
        }
        result += word;
        column += word.size();
    }
    return result;
}

std::string plural(int64_t count, const std::string& noun) {
    return with_commas(count) + " " + noun + (count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == separator)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

std::vector<std::string> words_in(const std::string& text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_digits(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string pattern_of(const std::vector<std::string>& words) {
    std::string begin = words.at(0);
    for (const std::string& word : words)
        begin.resize(std::mismatch(begin.begin(), begin.end(), word.begin(), word.end()).first - begin.begin());
    std::string end = words[0].substr(begin.size());
    for (const std::string& word : words) {
        const std::string rest = word.substr(begin.size());
        const auto common = std::mismatch(end.rbegin(), end.rend(), rest.rbegin(), rest.rend()).first - end.rbegin();
        end.erase(0, end.size() - static_cast<size_t>(common));
    }
    return begin.empty() && end.empty() ? "data/*.bin" : begin + "*" + end;
}

std::string shell_quote(const std::string& argument) {
    const char* const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
    if (!argument.empty() && argument.find_first_not_of(plain) == std::string::npos) return argument;
    std::string quoted = "'";
    for (char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

static bool status_is_allowed = false, status_is_shown = false;
static double next_status = 0;  // monotonic_seconds()

void allow_status(bool allowed) { status_is_allowed = allowed; }

void show_status(const std::string& line) {
    if (!status_is_allowed || monotonic_seconds() < next_status) return;
    next_status = monotonic_seconds() + 0.1;
    status_is_shown = true;
    std::fputs(("\r\033[K\033[?7l" + line + "\033[?7h").c_str(), stdout);  // a longer line than the terminal's is cut
    std::fflush(stdout);
}

void clear_status() {
    next_status = 0;
    if (!std::exchange(status_is_shown, false)) return;
    std::fputs("\r\033[K", stdout);
    std::fflush(stdout);
}

}  // namespace llmc
