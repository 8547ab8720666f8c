#include "llmc/run/options.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/device/error.h"
#include "llmc/run/flags.h"
#include "llmc/run/llmc_flags.h"
#include "llmc/run/text.h"
#include "llmc/run/versions.h"

#ifndef LLMC_DEFAULT_PRECISION  // set by `make PRECISION=`; bf16, BF16 or "bf16"
#define LLMC_DEFAULT_PRECISION fp8
#endif
#define LLMC_TEXT_OF(x) LLMC_TEXT_OF_(x)
#define LLMC_TEXT_OF_(x) #x

namespace llmc {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::bad_flags, message); }

bool is_number(const std::string& text) {
    const size_t digits = text.find_first_not_of("+-.");
    return digits != std::string::npos && text[digits] >= '0' && text[digits] <= '9';
}

[[noreturn]] void refuse_unknown(const FlagSet& flags, const std::string& name) {
    std::vector<std::string> known;
    for (const Flag& flag : flags.flags()) known.push_back("--" + flag.long_name);
    const std::optional<std::string> guess = nearest("--" + name, known);
    refuse(strprintf("unknown flag --%s%s (--help lists all)", name.c_str(),
                     guess ? strprintf("; did you mean %s?", guess->c_str()).c_str() : ""));
}

// Walks the command line: finds each flag, answers unknown ones and llm.c's spellings, and writes the rest in one form,
// "--name" "value", for FlagSet. Stops early at --help and --version.
class CommandLine {
public:
    CommandLine(const FlagSet& flags, std::vector<std::string> arguments)
        : flags_(flags), arguments_(std::move(arguments)) {}

    void walk() {
        skip_command();
        while (at_ < arguments_.size() && !help && !version) {
            const std::string argument = arguments_[at_++];
            if (argument.size() > 2 && argument.compare(0, 2, "--") == 0) {
                long_flag(argument.substr(2));
            } else if (argument.size() > 1 && argument[0] == '-' && !is_number(argument)) {
                short_flag(argument);
            } else {
                refuse_stray(argument);
            }
        }
    }

    std::vector<std::string> normal;  // for FlagSet::parse
    std::string config_file;
    bool model_given = false;
    bool help = false, version = false;

private:
    void skip_command() {
        if (arguments_.empty() || arguments_[0].empty() || arguments_[0][0] == '-') return;
        if (arguments_[0] == "help") {
            help = true;
        } else if (arguments_[0] != "train") {
            refuse(strprintf("unknown command '%s'; the only command is train, and it may be left out (--help)",
                             arguments_[0].c_str()));
        }
        at_ = 1;
    }

    // After a pattern of files most likely one of those that the shell has made of it.
    [[noreturn]] void refuse_stray(const std::string& argument) const {
        if (previous_ != "train" && previous_ != "val")
            refuse(strprintf("unexpected argument '%s'; flags start with - (--help lists all)", argument.c_str()));
        std::vector<std::string> words = {previous_value_, argument};
        for (size_t i = at_; i < arguments_.size() && arguments_[i][0] != '-'; i++) words.push_back(arguments_[i]);
        std::string name = previous_ == "val" ? parse_val_set(previous_value_).name : "";
        if (!name.empty()) name += "=";
        for (std::string& word : words)
            if (word.starts_with(name)) word.erase(0, name.size());
        refuse(
            strprintf("unexpected argument '%s': --%s takes one pattern, and the shell has made %zu words of it; quote "
                      "the pattern: --%s %s",
                      argument.c_str(), previous_.c_str(), words.size(), previous_.c_str(),
                      shell_quote(name + pattern_of(words)).c_str()));
    }

    void long_flag(const std::string& argument) {
        const size_t equals = argument.find('=');
        const std::string name = argument.substr(0, equals);
        const Flag* flag = flags_.find_long(name);
        if (flag == nullptr) refuse_unknown(flags_, name);
        if (equals == std::string::npos) {
            take(*flag, std::nullopt);
        } else {
            take(*flag, argument.substr(equals + 1));
        }
    }

    // -b 4, -b4 or -b=4. Letters attached to a letter are no value but somebody's two-letter flag.
    void short_flag(const std::string& argument) {
        const std::string next = at_ < arguments_.size() ? arguments_[at_] : "";
        if (const std::optional<std::string> answer = answer_llmc_flag(argument, next)) refuse(*answer);
        const Flag* flag = flags_.find_short(argument[1]);
        const bool attached = argument.size() > 2;
        const bool attached_value = attached && (argument[2] == '=' || is_number(argument.substr(2)));
        if (flag == nullptr || (attached && (flag->is_switch() || !attached_value))) {
            const bool one_dash_missing = flags_.find_long(argument.substr(1, argument.find('=') - 1)) != nullptr;
            refuse(strprintf("unknown flag %s%s (--help lists all)", argument.c_str(),
                             one_dash_missing ? strprintf("; did you mean -%s?", argument.c_str()).c_str() : ""));
        }
        if (attached) {
            take(*flag, argument.substr(argument[2] == '=' ? 3 : 2));
        } else {
            take(*flag, std::nullopt);
        }
    }

    // True when `argument` is a flag by itself and so most likely not the value of the flag before it.
    bool looks_like_flag(const std::string& argument) const {
        if (argument.size() > 2 && argument.compare(0, 2, "--") == 0) {
            return flags_.find_long(argument.substr(2, argument.find('=') - 2)) != nullptr;
        }
        return argument.size() == 2 && argument[0] == '-' && flags_.find_short(argument[1]) != nullptr;
    }

    void take(const Flag& flag, std::optional<std::string> value) {
        previous_ = flag.long_name;
        if (flag.long_name == "help") help = true;
        if (flag.long_name == "version") version = true;
        if (flag.is_switch()) {
            if (value && *value != "true" && *value != "false") {
                refuse(strprintf("--%s=%s: a switch is on by itself, or takes =true or =false", flag.long_name.c_str(),
                                 value->c_str()));
            }
            normal.push_back("--" + flag.long_name + (value ? "=" + *value : ""));
            return;
        }
        if (!value) {
            if (at_ >= arguments_.size() || looks_like_flag(arguments_[at_])) {
                refuse(strprintf("--%s needs a value: --%s %s", flag.long_name.c_str(), flag.long_name.c_str(),
                                 flag.value.c_str()));
            }
            value = arguments_[at_++];
        }
        normal.push_back("--" + flag.long_name);
        normal.push_back(*value);
        previous_value_ = *value;
        if (flag.long_name == "config") config_file = *value;
        if (flag.long_name == "model") model_given = true;
    }

    const FlagSet& flags_;
    std::vector<std::string> arguments_;
    size_t at_ = 0;
    std::string previous_, previous_value_;  // the last flag
};

// One entry of a configuration file, as the same arguments the command line would give.
void append_entry(const FlagSet& flags, const std::string& key, const ordered_json& value,
                  std::vector<std::string>& arguments) {
    const Flag* flag = flags.find_long(key);
    if (flag == nullptr || flag->command_line_only()) {
        if (flag != nullptr) refuse(strprintf("\"%s\" belongs on the command line", key.c_str()));
        std::vector<std::string> known;
        for (const Flag& candidate : flags.flags()) {
            if (!candidate.command_line_only()) known.push_back(candidate.long_name);
        }
        const std::optional<std::string> guess = nearest(key, known);
        refuse(strprintf("unknown key \"%s\"%s; keys are long flag names without dashes in front", key.c_str(),
                         guess ? strprintf(" (did you mean \"%s\"?)", guess->c_str()).c_str() : ""));
    }
    if (value.is_null()) return;  // "not given"
    if (flag->is_switch()) {
        if (!value.is_boolean())
            refuse(strprintf("\"%s\" is %s; it must be true or false", key.c_str(), value.dump().c_str()));
        arguments.push_back("--" + key + (value.get<bool>() ? "=true" : "=false"));
        return;
    }
    const bool list = key == "val" && value.is_array();
    for (const ordered_json& item : list ? value : ordered_json::array({value})) {
        if (!item.is_string() && !item.is_number()) {
            refuse(strprintf("\"%s\" is %s; it must be a number or a string", key.c_str(), item.dump().c_str()));
        }
        arguments.push_back("--" + key);
        arguments.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    }
}

void read_config_file(const std::string& path, Options& options) {
    std::ifstream stream(path);
    if (!stream) refuse(strprintf("cannot open the configuration file %s", path.c_str()));
    ordered_json file;
    try {
        file = ordered_json::parse(stream);
    } catch (const nlohmann::json::exception& error) {
        const std::string what = error.what();
        const size_t end_of_code = what.find("] ");
        refuse(strprintf("configuration file %s is not JSON: %s", path.c_str(),
                         what.substr(end_of_code == std::string::npos ? 0 : end_of_code + 2).c_str()));
    }
    // A run.json keeps the configuration under "config", beside what else is known about the run.
    if (file.is_object() && file.contains("config") && file["config"].is_object()) {
        const ordered_json inner = file["config"];
        file = inner;
    }
    if (!file.is_object()) refuse(strprintf("configuration file %s is not a JSON object", path.c_str()));
    try {
        FlagSet flags(options);
        std::vector<std::string> arguments;
        for (const auto& item : file.items()) append_entry(flags, item.key(), item.value(), arguments);
        flags.parse(arguments);
    } catch (const Error& error) {
        refuse(strprintf("configuration file %s: %s", path.c_str(), error.what()));
    }
}

// --overwrite removes the run in --out, so the weights to start from must not be there.
void check_weights_survive(const Options& options) {
    if (!options.overwrite || options.init_from.empty() || options.out.empty()) return;
    namespace fs = std::filesystem;
    std::error_code ignored;
    // A last component makes "dir" and "dir/" the same.
    const fs::path out = fs::weakly_canonical(fs::path(options.out) / "x", ignored).parent_path();
    const fs::path from = fs::weakly_canonical(fs::path(options.init_from) / "x", ignored).parent_path();
    if (from == out || from.parent_path() == out) {
        refuse(strprintf("--overwrite would remove the weights that --init-from %s reads; use another --out",
                         options.init_from.c_str()));
    }
}

void check_complete(const Options& options) {
    check_weights_survive(options);
    const bool planning = options.dry_run || options.estimate_scaling;
    if (!options.gpu.empty() && !planning)
        refuse("--gpu names the card to plan for; add --dry-run or --estimate-scaling");
    if (!options.profile_steps.empty() && options.out.empty())
        refuse("--profile-steps writes its traces into the run directory; add --out DIR");
    if (options.train.empty() && !planning && !options.print_config) {
        refuse(
            "no training data: give --train 'GLOB', for example -i 'data/tinyshakespeare_train*.bin' (--help lists all "
            "flags)");
    }
}

}  // namespace

std::string default_precision() {
    std::string name;
    for (char c : std::string(LLMC_TEXT_OF(LLMC_DEFAULT_PRECISION))) {
        if (std::isalnum(static_cast<unsigned char>(c))) name += static_cast<char>(std::tolower(c));
    }
    return name;
}

ValSet parse_val_set(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return {"", text};
    const std::string name = text.substr(0, equals);
    const char* const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const bool is_name = !name.empty() && name.find_first_not_of(allowed) == std::string::npos;
    if (!is_name) return {"", text};  // '=' inside a path
    if (equals + 1 == text.size()) refuse(strprintf("--val %s: no pattern after the name", text.c_str()));
    return {name, text.substr(equals + 1)};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    ParsedOptions parsed;
    Options& options = parsed.options;
    for (int i = 0; i < argc; i++) options.command_line += (i > 0 ? " " : "") + shell_quote(argv[i]);

    FlagSet flags(options);
    CommandLine line(flags, std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    line.walk();
    if (line.help) {
        parsed.text = help_text(argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "train_gpt");
    } else if (line.version) {
        parsed.text = version_text();
    } else {
        if (!line.config_file.empty()) read_config_file(line.config_file, options);
        // Another model means its own shape, not the one the file spells out for the model it names.
        if (line.model_given) options.layers = options.heads = options.channels = options.context = 0;
        flags.parse(line.normal);
        check_complete(options);
    }
    return parsed;
}

std::string version_text() {
    std::string text =
        strprintf("train_gpt %s (default precision %s)\n", version_number().c_str(), default_precision().c_str());
    for (const auto& [name, version] : build_and_library_versions()) text += name + ": " + version + "\n";
    return text;
}

std::string help_text(const std::string& program) {
    constexpr size_t kIndent = 30, kWidth = 100;
    Options defaults;
    const FlagSet flags(defaults);
    std::string text = strprintf(
        "%s: pretrains GPTs from files of tokens.\n\n"
        "usage: %s [train] FLAGS\n"
        "  %s -i 'data/*_train*.bin' -j 'data/*_val*.bin' -o runs/first\n"
        "  %s -i 'data/*_train*.bin' -e d12 -b 64 -d 524288 -x 20000 -u 700 -l 6e-4\n"
        "  %s -e gpt2-xl -b 16 -r block --dry-run --gpu h200\n\n"
        "Every flag takes a value unless none is shown. Defaults are in [brackets].\n",
        program.c_str(), program.c_str(), program.c_str(), program.c_str(), program.c_str());
    std::string group;
    for (const Flag& flag : flags.flags()) {
        if (flag.group != group) {
            group = flag.group;
            text += "\n" + group + "\n";
        }
        std::string left = flag.short_name ? strprintf("  -%c, ", flag.short_name) : std::string(6, ' ');
        left += "--" + flag.long_name + (flag.is_switch() ? "" : " " + flag.value);
        left += left.size() + 2 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - left.size(), ' ');
        const std::string shown_default = flag.default_text.empty() ? "" : " [" + flag.default_text + "]";
        text += left + wrap(flag.help + shown_default, kIndent, kWidth) + "\n";
    }
    text +=
        "\nExit codes: 0 done, 1 other failure, 2 flags or configuration, 3 data, 4 checkpoint,\n"
        "5 not enough memory or disk, or no usable device, 6 numbers went bad, 7 communication lost,\n"
        "75 stopped by a signal or a limit after saving.\n";
    return text;
}

}  // namespace llmc
