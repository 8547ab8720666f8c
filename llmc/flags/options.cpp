// Parses the command line and configuration files into Options, row by row of the table of flags.
// build: per device, addresses, fuzzed
#include "llmc/flags/options.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/files.h"
#include "llmc/data/order.h"
#include "llmc/data/tokenizer.h"
#include "llmc/flags/flags.h"
#include "llmc/flags/help.h"
#include "llmc/log/provenance.h"

#ifndef LLMC_DEFAULT_PRECISION  // `make PRECISION=BF16` defines it as "bf16"
#define LLMC_DEFAULT_PRECISION "fp8"
#endif

namespace llmc {

// Removes `train` in front of the flags; `help` becomes --help.
static std::vector<std::string> without_command(std::vector<std::string> arguments) {
    if (arguments.empty() || arguments[0].empty() || arguments[0][0] == '-') return arguments;
    if (arguments[0] == "help") return {"--help"};
    if (arguments[0] != "train") refuse(unknown_command_text(arguments[0]));
    arguments.erase(arguments.begin());
    return arguments;
}

// Appends an entry of a configuration file to `given`.
static void append_entry(const std::string& key, const Json& value, std::vector<GivenFlag>& given) {
    if (const RemovedFlag* const removed = find_removed_flag(key)) {
        if (!removed->goes_on(value)) refuse("\"{}\" is {}, and {}", key, json_text(value), removed->text());
        return;
    }
    const Flag* flag = find_flag(key);
    if (flag == nullptr) {
        std::vector<std::string> known;
        for (const Flag& candidate : all_flags())
            if (!candidate.command_line_only) known.push_back(candidate.long_name);
        const std::optional<std::string> similar = nearest(key, known);
        refuse("unknown key \"{}\"{}; keys are long flag names without dashes in front", key,
               similar ? fmt::format(" (did you mean \"{}\"?)", *similar) : "");
    }
    if (flag->command_line_only) refuse("\"" + key + "\" belongs on the command line");
    if (value.is_null()) return;  // "not given"
    if (flag->is_switch()) {
        if (!value.is_boolean()) refuse("\"{}\" is {}; it must be true or false", key, json_text(value));
        given.push_back({flag, json_text(value)});
        return;
    }
    const bool list = flag->clear && value.is_array();
    for (const Json& item : list ? value : Json::array({value})) {
        if (!item.is_string() && !item.is_number())
            refuse("\"{}\" is {}; it must be a number or a string", key, json_text(item));
        given.push_back({flag, item.is_string() ? item.get<std::string>() : json_text(item)});
    }
}

// --overwrite removes the run in --out, so the weights to start from must not be there, nor be links to files there.
static void check_weights_survive(const Options& options) {
    if (!options.overwrite || options.init_from.empty() || options.out.empty()) return;
    std::vector<std::string> read = {options.init_from};
    for (const std::string& name : names_in(options.init_from)) read.push_back(options.init_from + "/" + name);
    for (const std::string& path : read)
        for (const std::string& root : {options.out, options.out + "/checkpoints"}) {
            const std::string file = resolved_path(path), deleted = resolved_path(root);
            if (file == deleted || file.starts_with(deleted + "/"))
                refuse("--overwrite would remove the weights that --init-from {} reads; use another --out",
                       options.init_from);
        }
}

// The default of --checkpoint-minutes is no wish for checkpoints.
static void check_checkpoints_have_a_place(const Options& o) {
    if (!o.out.empty()) return;
    const bool by_time = o.checkpoint_minutes > 0 && o.checkpoint_minutes != Options().checkpoint_minutes;
    if (o.checkpoint_every == 0 && !by_time) return;
    refuse("{}: checkpoints are written into the run directory; add --out DIR",
           by_time ? "--checkpoint-minutes" : "-n, --checkpoint-every");
}

// "--config RUN/run.json or " if --resume names a checkpoint, or a directory, of the run RUN; else "".
static std::string config_of_checkpoint(const Options& o) {
    if (o.resume != ResumeFrom::path) return "";
    const std::filesystem::path named(o.text("resume"));
    for (const auto& directory : {named, (named / "../..").lexically_normal()})
        if (const std::string file = (directory / "run.json").string(); path_exists(file))
            return "--config " + shell_quote(file) + " or ";
    return "";
}

static void check_complete(const Options& options) {
    check_weights_survive(options);
    const bool planning = options.dry_run || options.estimate_scaling;
    if (options.gpu && !planning) refuse("--gpu names the card to plan for; add --dry-run or --estimate-scaling");
    if (options.world > 1 && !planning && !options.print_config)
        refuse("--world plans for this many ranks; add --dry-run, or start that many with mpirun or srun");
    const ResumeFrom from = options.resume;
    if ((from == ResumeFrom::latest || from == ResumeFrom::automatic) && options.out.empty() && !options.bench)
        refuse("--resume {} looks for a checkpoint in the run directory; add --out DIR", options.text("resume"));
    if (options.json && options.dry_run == options.estimate_scaling)
        refuse("--json prints the plan of --dry-run or of --estimate-scaling; add one of them");
    if (options.profile_steps.any() && options.out.empty())
        refuse("--profile-steps writes its traces into the run directory; add --out DIR");
    if (!options.bench && !planning) check_checkpoints_have_a_place(options);
    if (options.bench && options.profile_steps.any())
        refuse("--bench writes nothing, so it cannot be combined with --profile-steps");
    if (options.bench && options.train.empty() && options.doc_mask)
        refuse("--bench: random tokens have no documents for --doc-mask; add --train GLOB");
    if (options.train.empty() && !options.bench && !planning && !options.print_config) {
        if (from != ResumeFrom::nothing && !options.out.empty() && options.config_file.empty())
            refuse("--resume {}: there is no run in {}, which has no run.json; check --out, or add {}--train 'GLOB'",
                   options.text("resume"), options.out, config_of_checkpoint(options));
        refuse(
            "no training data: give --train 'GLOB', for example -i 'data/*train_*.bin' (python3 -m data.prepare makes "
            "such files, --bench needs none, and --help explains the flags)");
    }
}

static Json read_json(const std::string& path) {
    constexpr InputKind kind = {"configuration file", "a JSON file of flags, or a run.json", ExitCode::bad_flags, 16};
    const std::string content = read_input(path, kind);
    try {
        const auto file = parse_json(content);
        if (file.is_object()) return file;
    } catch (const JsonError& error) {
        refuse("configuration file {} is not JSON: {}", path, error.what());
    }
    refuse("configuration file {} is not a JSON object", path);
}

// `path`: of the configuration's file, for messages.
static Options options_of(const Json& config, const std::string& path) {
    try {
        Options options;
        std::vector<GivenFlag> given;
        const Json today = current_config(config);
        for (const auto& [name, value] : today.items()) append_entry(name, value, given);
        set_flags(given, options);
        return options;
    } catch (const Error& error) {
        refuse("configuration file {}: {}", path, error.what());
    }
}

// Flags whose values follow from other flags unless they are given.
struct DerivedFlag {
    const char *name, *sources;
};
static const DerivedFlag kDerivedFlags[] = {
    {"beta2", "optimizer"},       {"momentum", "optimizer"},   {"nesterov", "optimizer"},
    {"adamw-lr", "optimizer lr"}, {"loss-scale", "precision"}, {"adamw-weight-decay", "optimizer weight-decay"},
    {"fp8-layers", "fp8-recipe"},
};

std::vector<std::string> derived_flags(const Options& options) {
    std::vector<std::string> names;
    for (const DerivedFlag& flag : kDerivedFlags)
        if (!options.given.contains(flag.name)) names.push_back(flag.name);
    return names;
}

std::string printed_config(const Options& options) {
    Json config = parse_json(config_json(options));
    if (!options.given.contains("zero")) config.erase("zero");  // it follows from the number of ranks
    config["derived"] = derived_flags(options);
    return json_text(config, 2) + "\n";
}

// The options in a resolved configuration, to be overridden by the command line. Values that followed from another flag
// (`derived`) follow it again if the command line has that flag.
static Options options_of_resolved(Json config, const Json& derived, const std::string& path, const Options& line) {
    std::vector<std::string> follow;
    for (const auto& [name, sources] : kDerivedFlags) {
        if (std::find(derived.begin(), derived.end(), Json(name)) == derived.end()) continue;
        follow.push_back(name);
        for (const std::string& source : words_in(sources))
            if (line.given.contains(source)) config.erase(name);
    }
    Options options = options_of(config, path);
    for (const std::string& name : follow) options.given.erase(name);
    return options;
}

// The configuration in a run.json. Leaves out the limits of the run's last command, and flags that the run's optimizer
// ignored, which earlier versions accepted.
static Options options_of_run(const Json& run, const std::string& path, const Options& line) {
    Json config = run.at("config");
    for (const char* name : {"stop-after", "max-minutes"}) config.erase(name);
    for (const OptimizerFlag& flag : ignored_flags(options_of(config, path))) config.erase(flag.name);
    return options_of_resolved(config, run.value("derived", Json::array()), path, line);
}

// The run.json whose configuration --resume continues with; "" if there is none. A command with --train says everything
// itself.
static std::string run_json_to_resume(const Options& o) {
    if (o.resume == ResumeFrom::nothing || o.out.empty() || !o.train.empty()) return "";
    const std::string path = (std::filesystem::path(o.out) / "run.json").string();
    return path_exists(path) ? path : "";
}

// Leaves out -z of a run on one rank, where it has no meaning.
static Options read_run_config(const std::string& path, const Options& line) {
    try {
        Json run = read_json(path);
        const Json* last = &run;
        if (run.contains("resumed") && !run["resumed"].empty()) last = &run["resumed"].back();
        if (last->at("world") == 1) run.at("config").erase("zero");
        Options options = options_of_run(run, path, line);
        options.notes.push_back("the configuration is that of " + path + ", and flags of this command override it");
        return options;
    } catch (const Json::exception& error) {
        refuse("{} is damaged ({}); give the run's flags with --config FILE", path, error.what());
    } catch (const Error& error) {
        refuse("--resume: {}; give the run's flags with --config FILE", error.what());
    }
}

// Leaves out what starts a program or writes outside of --out: somebody else may have written the file. Such flags
// count on the command line alone.
static void leave_out_commands(const Options& line, const std::string& path, Options& options) {
    const auto leave_out = [&](const char* name, const std::string& value) {
        if (!line.given.contains(name))
            options.notes.push_back(sanitize(
                fmt::format("{} has --{} {}, which counts on the command line alone, so it is left out here; to use "
                            "it, add that flag to this command",
                            path, name, shell_quote(value))));
        options.given.erase(name);
    };
    if (!options.after_checkpoint.empty()) leave_out("after-checkpoint", options.after_checkpoint);
    options.after_checkpoint.clear();
}

// The configuration file, prepared for the flags of the command line (`line`) to override it. If these name a model,
// the file's shape is dropped. -x and --epochs replace each other, except with several sources.
static Options with_config(const Options& line) {
    const std::string run_json = line.config_file.empty() ? run_json_to_resume(line) : "";
    if (line.config_file.empty() && run_json.empty()) return {};
    Options options = run_json.empty() ? read_config_file(line.config_file, line) : read_run_config(run_json, line);
    leave_out_commands(line, run_json.empty() ? line.config_file : run_json, options);
    if (!line.model_name.empty())
        options.model.layers = options.model.heads = options.model.channels = options.model.context = 0;
    if (sources_from_text(line.train.empty() ? options.train : line.train).is_mixture()) return options;
    if (line.given.contains("max-steps") && options.given.erase("epochs")) options.epochs = 0;
    if (line.given.contains("epochs") && options.given.erase("max-steps")) options.schedule.steps = -1;
    return options;
}

Options read_config_file(const std::string& path, const Options& line) {
    Json file = read_json(path);
    // A run.json keeps the configuration under "config", next to other facts about the run.
    const bool of_run = file.contains("config") && file["config"].is_object();
    for (const auto& [name, value] : file.items())
        if (of_run && find_flag(name) && name != "config" && !contains({"world", "kernels", "model"}, name))
            refuse("configuration file {}: \"{}\" is not read next to \"config\"; put it inside", path, name);
    if (of_run) return options_of_run(file, path, line);
    const Json derived = file.value("derived", Json::array());  // printed by --print-config
    file.erase("derived");
    return options_of_resolved(file, derived, path, line);
}

Options::Options() {
    batch = 4;
    precision = default_precision();
    recompute = Recompute::automatic;
    schedule.steps = -1;  // one epoch, and that is -1 until the training set's size is known
    clip = 1;
    sharding.stage = -1;  // not given = 1 with several ranks, else 0
    for (const char* flag : {"batch-schedule", "seq-schedule", "plateau", "average", "fp8-fallback", "fp8-until"})
        texts[flag] = "off";
    fp8_layers = fp8_layers_from_text(texts["fp8-layers"] = "auto");
}

std::string Options::text(const std::string& flag) const {
    const auto found = texts.find(flag);
    return found == texts.end() ? "" : found->second;
}

Precision default_precision() { return value_of_word<Precision>(LLMC_DEFAULT_PRECISION).value(); }

ValSet parse_val_set(const std::string& text, const std::string& flag) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return {"", text};
    const std::string name = text.substr(0, equals);
    const char* const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const bool is_name = !name.empty() && name.find_first_not_of(allowed) == std::string::npos;
    if (!is_name) return {"", text};  // '=' inside a path
    if (equals + 1 == text.size()) refuse("--{} {}: no pattern after the name", flag, text);
    return {name, text.substr(equals + 1)};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    ParsedOptions parsed;
    Options& options = parsed.options;
    const std::vector<GivenFlag> given =
        read_flags(without_command({argv + std::min(argc, 1), argv + argc}), all_flags(), "--help-all lists all");
    set_flags(given, options);
    if (options.help || options.help_all) {
        const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "train_gpt";
        parsed.text = help_text(usage_text(program, help_width()), options.help_all, help_width());
    } else if (options.help_markdown) {
        parsed.text = help_markdown();
    } else if (options.version) {
        parsed.text = version_text();
    } else if (!options.completion.empty()) {
        parsed.text = completion_script();
    } else if (options.model_name == "list") {
        const std::string names = joined(model_names()) + "; nano-dN for any N; or a JSON file that describes one.";
        parsed.text = options.json ? json_text(Json(model_names())) : wrap("Models for -e: " + names, 2, help_width());
        *parsed.text += "\n";
    } else {
        options = with_config(options);
        set_flags(given, options);
        check_complete(options);
    }
    if (argc > 0) options.program = shell_quote(argv[0]);
    for (int i = 0; i < argc; i++) options.command_line += (i > 0 ? " " : "") + shell_quote(argv[i]);
    return parsed;
}

std::string config_json(const Options& options) {
    Json config;
    for (const Flag& flag : all_flags())
        if (!flag.command_line_only) config[flag.long_name] = *flag.get(options);
    // Paths and prompts may hold bytes that are not UTF-8.
    return json_text(config, 2) + "\n";
}

std::string collective_flags(const Options& o) {
    return fmt::format(
        "--bench {:d}\n--fit {:d}\n--profile-steps {}\n--resume {}\n--rewind {}\n--skip-data {}\n--new-data {:d}\n",
        o.bench, o.fit, o.text("profile-steps"), o.text("resume"), o.rewind, o.skip_data, o.new_data);
}

std::string version_text() {
    std::string text =
        fmt::format("train_gpt {} (default precision {})\n", version_number(), word_of(default_precision()));
    Json others = versions_json();
    others.erase("train_gpt");
    for (const auto& [name, version] : others.items()) text += name + ": " + version.get<std::string>() + "\n";
    return text;
}

// ---- --batch-schedule and --seq-schedule ----------------------------------------------------------------------------

int64_t TokenSchedule::tokens_of(int64_t step) const {
    for (const TokenStage& stage : stages_) {
        if (step <= stage.steps) return stage.tokens;
        step -= stage.steps;
    }
    return last_;
}

int64_t TokenSchedule::tokens_until(int64_t step) const {
    int64_t tokens = 0;
    for (const TokenStage& stage : stages_) {
        const int64_t steps = std::min(step, stage.steps);
        tokens += steps * stage.tokens;
        step -= steps;
    }
    return tokens + step * last_;
}

int64_t TokenSchedule::steps_within(int64_t tokens) const {
    int64_t all = 0;
    for (const TokenStage& stage : stages_) {
        const int64_t steps = std::min(tokens / stage.tokens, stage.steps);
        all += steps;
        tokens -= steps * stage.tokens;
        if (steps < stage.steps) return all;
    }
    return all + tokens / last_;
}

static TokenStages stages_from_text(const char* flag, const char* example, const std::string& text) {
    TokenStages stages;
    if (text == "off") return stages;
    const auto fail = [&](const std::string& problem) {
        refuse("{} {}: {}; expected off, or TOKENS:STEPS,... with growing numbers of tokens, as in {}", flag, text,
               problem, example);
    };
    constexpr int64_t kMost = 1 << 28;  // limits both, so that tokens * steps can be added up
    for (const std::string& word : split(text, ',')) {
        const size_t colon = std::min(word.find(':'), word.size());
        const int64_t tokens = number_in<int64_t>(word.substr(0, colon)).value_or(0);
        const int64_t steps = colon == word.size() ? 0 : number_in<int64_t>(word.substr(colon + 1)).value_or(0);
        if (std::min(tokens, steps) < 1 || std::max(tokens, steps) > kMost) fail("'" + word + "' is not a stage");
        if (!stages.empty() && tokens <= stages.back().tokens) fail("'" + word + "' has no more tokens than before");
        stages.push_back({tokens, steps});
    }
    return stages;
}

TokenStages batch_stages_from_text(const std::string& text) {
    return stages_from_text("--batch-schedule", "65536:1000,131072:2000", text);
}
TokenStages seq_stages_from_text(const std::string& text) {
    return stages_from_text("--seq-schedule", "128:1000,512:2000", text);
}

}  // namespace llmc
