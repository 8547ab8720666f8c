// Reads command lines with CLI11, and answers arguments that are not flags.
// build: addresses, fuzzed
#include <CLI/CLI.hpp>
#include <algorithm>

#include "llmc/flags/flags.h"
#include "llmc/flags/help.h"

namespace llmc {
namespace {

bool is_number(const std::string& text) {
    const size_t digits = text.find_first_not_of("+-.");
    return digits != std::string::npos && text[digits] >= '0' && text[digits] <= '9';
}

// The flag that `argument` names, as in "--lr", "--lr=1e-3", "-l" or "-l=1e-3"; nullptr if it is none of `flags`.
const Flag* flag_in(const std::string& argument, const std::vector<Flag>& flags) {
    const std::string name = argument.substr(0, argument.find('='));
    for (const Flag& flag : flags) {
        const bool is_short = flag.short_name != 0 && name == std::string{'-', flag.short_name};
        const bool is_other = !flag.other_name.empty() && name == "--" + flag.other_name;
        if (is_short || is_other || name == "--" + flag.long_name) return &flag;
    }
    return nullptr;
}

// True for flags that print something instead of starting a run, whatever else the command line has.
bool only_prints(const Flag& flag) { return flag.long_name.starts_with("help") || flag.long_name == "version"; }

// Refuses letters after a single dash: a flag of two letters, such as llm.c has, or a long flag that lacks a dash.
void check_letters(const std::string& argument, const std::vector<Flag>& flags, const std::string& see) {
    const bool one_dash = argument.size() > 1 && argument[0] == '-' && (argument[1] != '-' || argument == "--");
    if (!one_dash || is_number(argument)) return;
    const Flag* const flag = flag_in(argument.substr(0, 2), flags);
    if (flag && !flag->is_switch() && is_number(argument.substr(2))) return;  // -b4
    const bool lacks_dash = flag_in("-" + argument, flags) != nullptr;
    refuse("unknown flag {}{} ({})", argument, lacks_dash ? "; did you mean -" + argument + "?" : "", see);
}

// Refuses a value for a switch, other than =true and =false.
void check_switch(const Flag& flag, const std::string& argument, const std::string& next) {
    const bool has_value = argument.find('=') != std::string::npos;
    if (has_value && !argument.ends_with("=true") && !argument.ends_with("=false"))
        refuse(argument + ": this switch takes no value but =true or =false");
    if (!has_value && !next.empty() && next[0] != '-')
        refuse("{} takes no value, and '{}' follows it; use --{}, or --{}=false to switch it off", argument, next,
               flag.long_name, flag.long_name);
}

// Rewrites the command line for CLI11, which does not know -b=4 or the empty value of --prompt=, would read -ge as
// -g e, and would take the next flag as the value of a flag that lacks one.
std::vector<std::string> prepare(const std::vector<std::string>& given, const std::vector<Flag>& flags,
                                 const std::string& see) {
    std::vector<std::string> arguments;
    for (size_t i = 0; i < given.size(); i++) {
        const std::string& argument = given[i];
        const std::string next = i + 1 < given.size() ? given[i + 1] : "";
        if (const std::optional<std::string> answer = answer_llmc_flag(argument, next)) refuse(*answer);
        const Flag* const flag = flag_in(argument, flags);
        const size_t equals = argument.find('=');
        if (flag == nullptr) {
            check_letters(argument, flags, see);
            arguments.push_back(argument);
        } else if (only_prints(*flag)) {
            return {"--" + flag->long_name};
        } else if (flag->is_switch()) {
            check_switch(*flag, argument, next);
            arguments.push_back(argument);
        } else if (equals != std::string::npos) {
            arguments.insert(arguments.end(), {argument.substr(0, equals), argument.substr(equals + 1)});
        } else {
            if (i + 1 == given.size() || flag_in(next, flags))
                refuse("--{0} needs a value: --{0} {1}", flag->long_name, flag->value);
            arguments.insert(arguments.end(), {argument, next});
            i++;
        }
    }
    return arguments;
}

// Refuses `rest`, which CLI11 could not use. After a pattern of files it is probably the shell's expansion.
[[noreturn]] void refuse_rest(const std::vector<std::string>& arguments, const std::vector<std::string>& rest,
                              const std::vector<Flag>& flags, const std::string& see) {
    if (rest[0].starts_with("--")) {
        std::vector<FlagName> known;
        for (const Flag& flag : flags) known.push_back({flag.long_name, names_text(flag), flag.help});
        refuse(unknown_flag_text(rest[0], known, see));
    }
    const size_t at = arguments.size() - rest.size();
    const Flag* const flag = at < 2 || rest[0].starts_with("-") ? nullptr : flag_in(arguments[at - 2], flags);
    const std::string name = flag ? flag->long_name : "";
    if (name != "train" && name != "val") refuse("unexpected argument '{}'; flags start with - ({})", rest[0], see);
    std::vector<std::string> words = {arguments[at - 1]};
    for (size_t i = 0; i < rest.size() && rest[i][0] != '-'; i++) words.push_back(rest[i]);
    std::string set = name == "val" ? parse_val_set(words[0]).name : "";
    if (!set.empty()) set += "=";
    for (std::string& word : words)
        if (word.starts_with(set)) word.erase(0, set.size());
    refuse(
        "unexpected argument '{}': --{} takes one pattern, and the shell has made {} words of it; quote the pattern: "
        "--{} {}",
        rest[0], name, words.size(), name, shell_quote(set + pattern_of(words)));
}

CLI::Option* add(CLI::App& app, const Flag& flag) {
    const std::string names = names_text(flag);
    return flag.is_switch() ? app.add_flag(names) : app.add_option(names)->take_all()->allow_extra_args(false);
}

}  // namespace

std::vector<GivenFlag> read_flags(const std::vector<std::string>& arguments, const std::vector<Flag>& flags,
                                  const std::string& see) {
    const std::vector<std::string> prepared = prepare(arguments, flags, see);
    CLI::App app;
    app.set_help_flag();
    app.prefix_command();  // stop at an argument that is neither a flag nor a value
    std::vector<CLI::Option*> options;
    for (const Flag& flag : flags) options.push_back(add(app, flag));
    try {
        app.parse(std::vector<std::string>(prepared.rbegin(), prepared.rend()));  // CLI11 takes the last argument first
    } catch (const CLI::ParseError& error) {
        refuse(error.what());
    }
    if (!app.remaining().empty()) refuse_rest(prepared, app.remaining(), flags, see);
    std::vector<GivenFlag> given;
    for (size_t i = 0; i < flags.size(); i++)
        for (const std::string& value : options[i]->results()) given.push_back({&flags[i], value});
    return given;
}

void set_flags(const std::vector<GivenFlag>& given, Options& options) {
    for (const GivenFlag& one : given)
        if (one.flag->clear) one.flag->clear(options);
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
