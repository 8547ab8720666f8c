// Words for the values of an enum: flags, reports and files all spell a value as its table does.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace llmc {

template <class Enum>
struct Word {
    const char* text;
    Enum value;
};

// The table of an enum is a specialization of kWords. A value that it leaves out stands for "not given".
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
