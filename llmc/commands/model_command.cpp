// Arguments of eval, sample and export, and the model that they load.
#include "llmc/commands/model_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ranges>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/flags/help.h"
#include "llmc/log/metrics.h"

namespace llmc {
namespace {

// ---- arguments -----------------------------------------------------------------------------------------------------

// "-g, --tokens"
std::string names_of(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    return joined(names);
}

// "--from PATH"
std::string with_value(const CLI::Option& option) {
    return "--" + option.get_lnames().at(0) +
           (option.get_items_expected_max() == 0 ? "" : " " + option.get_type_name());
}

std::vector<HelpRow> rows_of(const CLI::App& app) {
    std::vector<HelpRow> rows;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group().empty()) continue;  // hidden
        const bool is_switch = option->get_items_expected_max() == 0;
        rows.push_back({names_of(*option) + (is_switch ? "" : " " + option->get_type_name()), option->get_description(),
                        option->get_required() ? "required" : option->get_default_str()});
    }
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());  // CLI11 has --help first
    return rows;
}

std::string help_of(const CLI::App& app) {
    const size_t width = help_width();
    std::string text = "Usage: " + app.get_name();
    for (const CLI::Option* option : app.get_options())
        if (option->get_required()) text += " " + with_value(*option);
    text += " [FLAGS]\n\n" + wrap(app.get_description(), 0, width) + "\n\n" + help_rows(rows_of(app), width);
    return app.get_footer().empty() ? text : text + "\n" + app.get_footer() + "\n";
}

[[noreturn]] void refuse_plainly(const CLI::App& app, const std::string& text) {
    const std::string command = app.get_name().substr(app.get_name().rfind(' ') + 1);
    throw Error(ExitCode::bad_flags, command + ": " + text);
}

[[noreturn]] void refuse(const CLI::App& app, const std::string& text) {
    refuse_plainly(app, text + " (" + app.get_name() + " --help)");
}

// Refuses the first argument that is no flag or value of the command.
[[noreturn]] void refuse_rest(const CLI::App& app) {
    const std::vector<std::string> rest = app.remaining();
    const auto flag = std::find_if(rest.begin(), rest.end(), [](const auto& word) { return word.starts_with("-"); });
    if (flag == rest.end()) refuse(app, "unexpected argument '" + rest.at(0) + "'; flags start with -");
    std::vector<FlagName> known;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames())
            known.push_back({name, names_of(*option), option->get_description()});
    refuse_plainly(app, unknown_flag_text(*flag, known, app.get_name() + " --help lists all"));
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& words) {
    const auto mistake = [words](const std::string& text) {
        return contains(words, text) ? "" : "'" + text + "' is not one of " + joined(words);
    };
    return CLI::Validator(mistake, "");
}

CLI::Validator whole_number_from(int lowest) {
    const auto mistake = [lowest](const std::string& text) {
        int value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc::invalid_argument || end != text.data() + text.size())
            return "'" + text + "' is not a whole number";
        const bool in_range = error == std::errc{} && value >= lowest;
        return in_range ? "" : fmt::format("{} is out of range; it must be from {} on", text, lowest);
    };
    return CLI::Validator(mistake, "");
}

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
    app.get_help_ptr()->description("print this and exit");
    if (arguments == std::vector<std::string>{"--help-markdown"}) {
        std::printf("\n## %s\n\n%s\n\n%s", app.get_name().c_str(), app.get_description().c_str(),
                    markdown_table(rows_of(app)).c_str());
        return false;
    }
    std::vector<std::string> last_first;  // as CLI11 takes them, which reads "--prompt= x" as "--prompt x"
    for (const std::string& argument : arguments | std::views::reverse) {
        const bool empty_value = argument.starts_with("--") && argument.find('=') + 1 == argument.size();
        if (empty_value) last_first.push_back("");
        last_first.push_back(argument.substr(0, argument.size() - empty_value));
    }
    try {
        app.parse(last_first);
        return true;
    } catch (const CLI::CallForHelp&) {
        std::fputs(help_of(app).c_str(), stdout);
        return false;
    } catch (const CLI::ExtrasError&) {
        refuse_rest(app);
    } catch (const CLI::RequiredError&) {
        if (app.remaining_size() > 0) refuse_rest(app);
        for (const CLI::Option* option : app.get_options())
            if (option->get_required() && option->count() == 0)
                refuse(app, with_value(*option) + " is missing: " + option->get_description());
        throw;
    } catch (const CLI::ArgumentMismatch&) {
        for (const CLI::Option* option : app.get_options())
            if (!arguments.empty() && option->check_name(arguments.back()))
                refuse(app, names_of(*option) + " needs a value: " + with_value(*option));
        refuse(app, "a flag lacks its value");
    } catch (const CLI::ParseError& error) {
        refuse(app, error.what());
    }
}

// ---- the model -----------------------------------------------------------------------------------------------------

namespace {

namespace fs = std::filesystem;

// The directory of the weights, the run directory that a checkpoint belongs to, and the directory of its shards.
std::vector<std::string> directories_of(const std::string& from) {
    std::error_code ignored;
    const fs::path path = fs::absolute(from, ignored).lexically_normal();
    const fs::path directory = fs::is_directory(path, ignored) && path.has_filename() ? path : path.parent_path();
    std::vector<std::string> directories{directory.string()};
    if (directory.parent_path().filename() == "checkpoints")
        directories.push_back(directory.parent_path().parent_path().string());
    const nlohmann::ordered_json run = read_run_json(directories.back());
    const auto train = nlohmann::ordered_json::json_pointer("/config/train");
    if (run.is_object() && run.contains(train) && run[train].is_string())
        directories.push_back(fs::path(run[train].get<std::string>()).parent_path().string());
    return directories;
}

}  // namespace

TokenizerSearch find_tokenizer(const std::string& given, const std::string& from, const WeightSource& weights) {
    const int vocab = weights.model().vocab;
    TokenizerSearch search;
    if (given.empty()) {
        search = find_tokenizer(directories_of(from), vocab);
    } else {
        search.tokenizer = TokenDecoder::open(given);
        require_tokens_fit(given, search.tokenizer->vocab(), vocab);
    }
    if (search.tokenizer && weights.end_token() >= 0) search.tokenizer->set_end_token(weights.end_token());
    return search;
}

void resolve_for(const ModelConfig& model, Options& o, ResolveInputs surroundings, const Ranks& ranks) {
    o.vocab = model.vocab;  // not the data's
    surroundings.model = &model;
    ranks.describe(surroundings);
    resolve(o, surroundings);
}

}  // namespace llmc
