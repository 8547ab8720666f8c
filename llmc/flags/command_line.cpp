// Reads command lines, and answers arguments that are not flags.
// build: addresses, fuzzed
#include <algorithm>

#include "llmc/flags/flags.h"
#include "llmc/flags/help.h"

namespace llmc {

static bool is_number(const std::string& text) {
    const size_t digits = text.find_first_not_of("+-.");
    return digits != std::string::npos && text[digits] >= '0' && text[digits] <= '9';
}

// The flag that `argument` names, as in "--lr", "--lr=1e-3", "-l" or "-l=1e-3"; nullptr if it is none of `flags`.
static const Flag* flag_in(const std::string& argument, const std::vector<Flag>& flags) {
    const std::string name = argument.substr(0, argument.find('='));
    for (const Flag& flag : flags) {
        const bool is_short = flag.short_name != 0 && name == std::string{'-', flag.short_name};
        const bool is_other = !flag.other_name.empty() && name == "--" + flag.other_name;
        if (is_short || is_other || name == "--" + flag.long_name) return &flag;
    }
    return nullptr;
}

// True for flags that print something instead of starting a run, whatever else the command line has.
static bool only_prints(const Flag& flag) { return flag.long_name.starts_with("help") || flag.long_name == "version"; }

// Refuses a value for a switch, other than =true and =false.
static void check_switch(const Flag& flag, const std::string& argument, const std::string& next) {
    const bool has_value = argument.find('=') != std::string::npos;
    if (has_value && !argument.ends_with("=true") && !argument.ends_with("=false"))
        refuse(argument + ": this switch takes no value but =true or =false");
    if (!has_value && !next.empty() && next[0] != '-')
        refuse("{} takes no value, and '{}' follows it; use --{}, or --{}=false to switch it off", argument, next,
               flag.long_name, flag.long_name);
}

// The flag of -b4, a letter and a number; nullptr if it is none.
static const Flag* with_number_behind(const std::string& argument, const std::vector<Flag>& flags) {
    const Flag* const flag = flag_in(argument.substr(0, 2), flags);
    return flag && !flag->is_switch() && is_number(argument.substr(2)) ? flag : nullptr;
}

// Refuses a word that is neither a flag nor a value. After a pattern of files it is probably the shell's expansion.
[[noreturn]] static void refuse_word(const std::vector<std::string>& arguments, size_t at,
                                     const std::vector<GivenFlag>& given, const std::vector<Flag>& flags,
                                     const std::string& see) {
    const std::string& word = arguments[at];
    if (word.starts_with("--") && word != "--") refuse(unknown_flag_text(word, flags, see));
    // A flag of two letters, such as llm.c has, or a long flag that lacks a dash.
    if (word.size() > 1 && word[0] == '-' && !is_number(word))
        refuse("unknown flag {}{} ({})", word, flag_in("-" + word, flags) ? "; did you mean -" + word + "?" : "", see);
    const std::string name = given.empty() || word.starts_with("-") ? "" : given.back().flag->long_name;
    if (name != "train" && name != "val") refuse("unexpected argument '{}'; flags start with - ({})", word, see);
    std::vector<std::string> words = {given.back().value};
    for (size_t i = at; i < arguments.size() && arguments[i][0] != '-'; i++) words.push_back(arguments[i]);
    std::string set = name == "val" ? parse_val_set(words[0]).name : "";
    if (!set.empty()) set += "=";
    for (std::string& one : words)
        if (one.starts_with(set)) one.erase(0, set.size());
    refuse(
        "unexpected argument '{}': --{} takes one pattern, and the shell has made {} words of it; quote the pattern: "
        "--{} {}",
        word, name, words.size(), name, shell_quote(set + pattern_of(words)));
}

std::vector<GivenFlag> read_flags(const std::vector<std::string>& arguments, const std::vector<Flag>& flags,
                                  const std::string& see) {
    std::vector<GivenFlag> given;
    for (size_t i = 0; i < arguments.size(); i++) {
        const std::string& argument = arguments[i];
        const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
        if (const std::optional<std::string> answer = answer_llmc_flag(argument, next)) refuse(*answer);
        const size_t equals = argument.find('=');
        if (const Flag* const flag = flag_in(argument, flags)) {
            if (only_prints(*flag)) return {{flag, "true"}};
            if (flag->is_switch()) {
                check_switch(*flag, argument, next);
                given.push_back({flag, argument.ends_with("=false") ? "false" : "true"});
            } else if (equals != std::string::npos) {
                given.push_back({flag, argument.substr(equals + 1)});
            } else if (i + 1 == arguments.size() || flag_in(next, flags)) {
                refuse("--{0} needs a value: --{0} {1}", flag->long_name, flag->value);
            } else {
                given.push_back({flag, next});
                i++;
            }
        } else if (const Flag* const numbered = with_number_behind(argument, flags)) {
            given.push_back({numbered, argument.substr(2)});
        } else {
            refuse_word(arguments, i, given, flags, see);
        }
    }
    return given;
}

void set_flags(const std::vector<GivenFlag>& given, Options& options) {
    for (const GivenFlag& one : given)
        if (one.flag->clear) one.flag->clear(options);
    // Other flags override themselves, so that scripts can end in "$@".
    const auto refuse_two = [&](const char* name, const char* instead) {
        if (std::count_if(given.begin(), given.end(), [&](auto& one) { return one.flag->long_name == name; }) > 1)
            refuse("--{} is given twice; use {}", name, instead);
    };
    refuse_two("config", "one");
    refuse_two("train", "one pattern, as in -i '{A,B}', or a mixture, as in -i 'A:0.7,B:0.3'");
    for (const auto& [flag, value] : given) {
        options.given.insert(flag->long_name);
        try {
            flag->set(options, value);
        } catch (const Error& error) {
            const std::string name = "--" + flag->long_name;
            std::string mistake = error.what();
            if (mistake.starts_with(name + ": ")) throw;
            if (mistake.starts_with(name + " ")) mistake.erase(0, name.size() + 1);
            for (const auto& [refused, answer] : flag->answers)
                if (refused == value) mistake += answer;
            refuse(name + ": " + mistake);
        }
    }
}

}  // namespace llmc
