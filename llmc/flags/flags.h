// The table of flags: a row says everything about one flag. The command line, configuration files, --help,
// dev/guide/flags.md, --print-config and the tests are made from the rows, so a new flag is a row in flags.cpp and a
// field of Options or of a struct in it. The other commands have tables of their own (command_flags.cpp).
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/flags/options.h"

namespace llmc {

// {"0", " (-1: one epoch)"}: a text that a flag refuses, and a hint for the end of the message.
using Answers = std::vector<std::pair<std::string, std::string>>;

// The numbers that a flag accepts. {} accepts those from 0 to the largest that the field can hold.
struct Range {
    double min = 0, max = std::numeric_limits<double>::infinity();  // infinity: the largest that the field can hold
    bool min_open = false, max_open = false;                        // the bound itself is refused
    std::string word = {};                                          // accepted instead of a number;
    int64_t word_means = 0;                                         // the field then holds this
    Answers answers = {};
};

struct Flag {
    char short_name = 0;  // 0: none
    std::string long_name = {};
    std::string value = {};  // "N", "FILE"; empty for a switch, which takes no value
    std::string help = {};
    std::string default_text = {};   // shown as the default if resolve() computes it; empty: the field's is shown
    bool command_line_only = false;  // concerns one invocation, so configuration files may not contain it
    std::string group = {};          // the title above it in --help
    bool common = false;             // in --help; the others are in --help-all
    std::string other_name = {};     // a second long name
    bool required = false;           // in every command line

    // The field of Options. set() throws Error(bad_flags) for a text that the flag does not accept; a list appends.
    // get() returns the value as a configuration file has it, null if it was not given.
    std::function<void(Options&, const std::string& text)> set = {};
    std::function<JsonValue(const Options&)> get = {};
    std::function<void(Options&)> clear = {};  // of a list, which may be given several times
    std::function<void(Options&)> reset = {};  // gives a number its default
    std::vector<std::string> words = {};       // all that it accepts, if it accepts words
    Range range = {};                          // if it accepts numbers
    Answers answers = {};

    bool is_switch() const { return value.empty(); }
};

const std::vector<Flag>& all_flags();
const Flag* find_flag(std::string_view name);
// A flag that earlier versions had. Configurations and checkpoints of theirs may still name it.
struct RemovedFlag {
    std::string name;
    std::string default_value;  // as JSON
    std::string instead;        // what to do now; ends text(), "--NAME has been removed: INSTEAD"
    bool observes = false;      // no number of a run depended on it, so a configuration may have any value
    // The flag whose value it now follows, behind a comma and `prefix`; "" if there is none.
    std::string part_of = {}, prefix = {};

    // True if a run goes on without the flag, although its configuration has this value.
    bool goes_on(const Json& value) const;
    std::string text() const;
};
const std::vector<RemovedFlag>& removed_flags();
const RemovedFlag* find_removed_flag(std::string_view name);

// A configuration that this version or an earlier one wrote, with the names of today's flags. A removed flag that is
// now a part of another one is in that one's value.
Json current_config(const Json& config);

std::string names_text(const Flag& flag);  // "-b, --batch"

// ---- command lines (command_line.cpp) -------------------------------------------------------------------------------

// A flag on a command line or in a configuration file, with its value: "true" or "false" for a switch.
struct GivenFlag {
    const Flag* flag;
    std::string value;
};

// Reads a command line that may have these flags. Throws Error(bad_flags) if an argument is not one of them, or if a
// flag lacks its value; `see` says where all flags are listed ("--help-all lists all"). Stops at --help, --version or
// another flag that only prints something, and returns only that flag.
std::vector<GivenFlag> read_flags(const std::vector<std::string>& arguments, const std::vector<Flag>& flags,
                                  const std::string& see);

// Sets the fields of these flags. Throws Error(bad_flags): "--batch: '4x' is not a whole number". A list replaces the
// values that its field had.
void set_flags(const std::vector<GivenFlag>& given, Options& options);

// ---- the commands eval, sample, export and inspect (command_flags.cpp) ----------------------------------------------

struct CommandFlags {
    std::string name, description;
    Options defaults = {};
    std::vector<Flag> flags = {};
    std::string footer = {};  // text below the flags in --help
};
const std::vector<CommandFlags>& all_commands();
const CommandFlags& find_command(const std::string& name);

// ---- values as text -------------------------------------------------------------------------------------------------

// The value as the flag would have it on the command line; "" for a switch and for a value that was not given.
std::string flag_text(const Flag& flag, const Options& options);

// The default that --help shows; "" for a switch.
std::string default_text(const Flag& flag);

// A flag that only some optimizers use.
struct OptimizerFlag {
    const char* name;
    const char* optimizers;  // those that use it: "adamw, muon or normuon"
    const char* instead = "leave it out";
};
// The flags with a value that the run's optimizer ignores. resolve() refuses them.
std::vector<OptimizerFlag> ignored_flags(const Options& options);

}  // namespace llmc
