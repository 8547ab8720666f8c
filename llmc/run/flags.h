// The definition of every flag: names, kind, range, default, help line, and the variable of Options it sets. CLI11
// checks and converts the values; it stays behind this interface.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/run/options.h"

namespace llmc {

struct Flag {
    std::string group;
    char short_name;        // 0: none
    std::string long_name;  // without dashes
    std::string value;      // "N", "FILE"; empty for a switch, which takes no value
    std::string help;
    std::string default_text;  // empty: nothing worth showing
    bool is_switch() const { return value.empty(); }
    bool command_line_only() const;  // about one invocation, so not accepted in a configuration file
};

class FlagSet {
public:
    // Flags write into `options` and show its present values as defaults.
    explicit FlagSet(Options& options);
    ~FlagSet();
    FlagSet(const FlagSet&) = delete;
    FlagSet& operator=(const FlagSet&) = delete;

    const std::vector<Flag>& flags() const;
    const Flag* find_long(std::string_view name) const;
    const Flag* find_short(char name) const;

    // `arguments`: "--name" "value" pairs, or "--name" / "--name=false" for switches. Throws Error(bad_flags).
    void parse(const std::vector<std::string>& arguments);

private:
    struct Parser;
    std::unique_ptr<Parser> parser_;
};

}  // namespace llmc
