// The table of flags: a row says everything about one of them. The command line, configuration files, --help,
// --print-config and the tests are made from the rows, so a new flag is a row in flags.cpp and a field of Options.
// CLI11, which reads the command line, stays behind this interface.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "llmc/run/options.h"

namespace CLI {
class App;
}

namespace llmc {

// Where a flag's value goes.
using Field = std::variant<bool Options::*, int Options::*, int64_t Options::*, uint64_t Options::*, double Options::*,
                           std::string Options::*, std::vector<ValSet> Options::*>;

// Which values a flag takes, beyond what its field can hold: {} means a number from 0 on, or any text.
struct Values {
    double min = 0, max = std::numeric_limits<double>::infinity();  // infinity: as large as the field can hold
    bool min_open = false, max_open = false;                        // the bound itself is not taken
    std::string word = {};                                          // taken in place of a number, and
    int64_t word_means = 0;                                         // what the field then holds
    std::vector<std::string> words = {};                            // a text is one of these
    std::function<void(const std::string&)> check = {};             // throws for a text that is not taken
    // {"0", " (-1: one epoch)"}: what a user may have meant by a value that is refused, for the end of the message.
    std::vector<std::pair<std::string, std::string>> answers = {};
};

struct Flag {
    char short_name = 0;  // 0: none
    std::string long_name = {};
    std::string value = {};  // "N", "FILE"; empty for a switch, which takes no value
    Field field = {};
    Values values = {};
    std::string help = {};
    std::string default_text = {};   // where resolve() finds the default; else that of the field is shown
    bool command_line_only = false;  // about one invocation, so not accepted in a configuration file
    std::string group = {};          // the title above it in --help
    bool is_switch() const { return value.empty(); }
};

const std::vector<Flag>& all_flags();
const Flag* find_flag(std::string_view name);
const Flag* find_flag(char name);

// What is wrong with a text as the flag's value, "" for nothing; a number becomes plain decimal (flag_values.cpp).
std::string mistake_in(std::string& text, const Flag& flag);

// Sets the fields that the arguments name; throws Error(bad_flags): "--batch: '4x' is not a whole number". Returns what
// no flag takes: unknown flags, and from the first argument that is neither a flag nor a value on, all that follows.
std::vector<std::string> set_flags(std::vector<std::string> arguments, Options& options);

// The rows of these long names as part of another command's line; what `options` holds before is their default.
void add_flags(CLI::App& app, const std::vector<std::string>& names, Options& options);

// The value as a configuration file has it; null: not given, and left to resolve().
nlohmann::ordered_json flag_json(const Flag& flag, const Options& options);

// What --help shows as the default; "": nothing worth showing.
std::string default_text(const Flag& flag);

}  // namespace llmc
