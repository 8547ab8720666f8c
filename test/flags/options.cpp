// The command line and configuration files: every value reaches its variable, and every mistake gets an answer.
#include "llmc/flags/options.h"
#include "llmc/base/json.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/flags/flags.h"
#include "llmc/flags/help.h"
#include "llmc/log/provenance.h"
#include "test/helpers.h"
#include "test/suites.h"

using namespace llmc;
using namespace llmc::test;
using nlohmann::json;

namespace {

using Arguments = std::vector<const char*>;

ParsedOptions parse(Arguments arguments) {
    arguments.insert(arguments.begin(), "train_gpt");
    return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

// Parsed with training data added, so that tests need not give any.
Options options(Arguments arguments) {
    arguments.insert(arguments.begin(), {"-i", "data"});
    ParsedOptions parsed = parse(arguments);
    CHECK(!parsed.text);
    return parsed.options;
}

// The value of every flag.
std::map<std::string, json> values_of(const Options& options) {
    std::map<std::string, json> values;
    for (const Flag& flag : all_flags()) values[flag.long_name] = *flag.get(options);
    return values;
}

std::string refusal(const Arguments& arguments) {
    return error_of([&] { parse(arguments); }, ExitCode::bad_flags);
}

struct ConfigFile {
    const TemporaryDirectory directory;
    const std::string path;
    explicit ConfigFile(const std::string& text) : path(make_file(directory / "config.json", text)) {}
};

// The error for the configuration file `text`.
std::string config_refusal(const std::string& text) {
    const ConfigFile file(text);
    const std::string message = refusal({"--config", file.path.c_str()});
    CHECK(contains(message, file.path));
    return message;
}

}  // namespace

namespace {

bool is_accepted(const std::string& text, const Flag& flag) {
    Options scratch;
    return error_of([&] { flag.set(scratch, text); }, ExitCode::bad_flags).empty();
}

// A value for the flag, other than its default, in command line form. No two numbers are equal.
std::string sample_text(const Flag& flag) {
    const std::map<std::string, std::string> with_notation = {
        {"fp8-fallback", "0.01,0.5,10"}, {"fp8-until", "94%"},
        {"loss-scale", "256"},           {"plateau", "0.5,3"},
        {"average", "ema:0.999"},        {"batch-schedule", "65536:1000"},
        {"seq-schedule", "128:1000"},    {"gpu", "h100"},
        {"profile-steps", "5"}};
    if (with_notation.contains(flag.long_name)) return with_notation.at(flag.long_name);
    if (flag.is_switch()) return "true";
    if (flag.clear) return "name=a \"text\" of a list";
    const std::string by_default = default_text(flag);
    for (const std::string& word : flag.words)
        if (word != by_default) return word;
    const double min = flag.range.min, max = flag.range.max;
    const auto position = std::to_string(100 + (&flag - all_flags().data()));
    // Large counts show that no digit is lost; a field of 32 bits could not hold them.
    for (const std::string& text :
         {"4294967" + position, "1234567" + position + ".5", "1" + position, json_text(json(min + (max - min) / 3)),
          json_text(json(max)), json_text(json(min)), std::to_string(std::isinf(max) ? 1 : std::llround(max)),
          std::to_string(std::llround(min))})
        if (text != by_default && flag.value != "PATH" && is_accepted(text, flag)) return text;
    return "a \"text\" of " + flag.long_name;
}

// The flag's value as the configuration has it.
json sample_json(const Flag& flag, const std::string& text) {
    if (flag.is_switch()) return true;
    if (flag.clear) return json{text};
    const json by_default = *flag.get(parse({"-i", "x"}).options);  // null if resolve() computes it
    // --loss-scale also takes words, so the configuration has a text.
    const std::string form = flag.value.substr(0, flag.value.find('['));
    const bool takes_number = (form == "N" || form == "X") && flag.long_name != "loss-scale";
    const bool is_number = by_default.is_number() || (by_default.is_null() && takes_number);
    return is_number ? json(parse_json(text)) : json(text);
}

// Other flags that the flag requires.
Arguments beside(const std::string& flag) {
    Arguments arguments = {"-i", "data"};
    if (flag == "gpu" || flag == "json" || flag == "world") arguments.push_back("--dry-run");
    const std::set<std::string> need_a_place = {"profile-steps", "checkpoint-every", "checkpoint-minutes"};
    if (need_a_place.contains(flag)) arguments.insert(arguments.end(), {"-o", "dir"});
    return arguments;
}

}  // namespace

// Sets the field that its row names; test_house.py sees that rows name the right ones.
TEST_CASE("options: every long flag reaches its variable, and no other" * doctest::test_suite(test::kOnce)) {
    const ConfigFile empty("{}");
    for (const Flag& flag : all_flags()) {
        CAPTURE(flag.long_name);
        if (flag.long_name.starts_with("help") || flag.long_name == "version" || flag.long_name == "completion")
            continue;  // prints, sets nothing else
        const std::string text = flag.long_name == "config" ? empty.path : sample_text(flag);
        const std::string argument = "--" + flag.long_name + "=" + text;
        CAPTURE(argument);
        Arguments arguments = flag.long_name == "train" ? Arguments() : beside(flag.long_name);
        arguments.push_back(argument.c_str());
        const Options given = parse(arguments).options;
        const Options without = parse(beside(flag.long_name)).options;
        CHECK(values_of(given) != values_of(without));
        CHECK(contains(given.command_line, "--" + flag.long_name));
        CHECK(given.given.contains(flag.long_name));
        CHECK(json(*flag.get(given)) == sample_json(flag, text));
        Options expected = without;
        flag.set(expected, text);
        expected.given.insert(flag.long_name);
        CHECK(values_of(given) == values_of(expected));
        CHECK(given.given == expected.given);
        for (const Flag& other : all_flags())
            if (&other != &flag) CHECK(*other.get(given) == *other.get(without));

        // The configuration has it under the flag's name, and reads it back.
        const json before = parse_json(config_json(without));
        const json after = parse_json(config_json(given));
        json changed = before;
        if (!flag.command_line_only) changed[flag.long_name] = after[flag.long_name];
        CHECK(changed == after);
        CHECK((before != after) == !flag.command_line_only);
        const ConfigFile printed(config_json(given));
        const bool is_command = flag.long_name == "after-checkpoint";
        CHECK(config_json(parse({"--config", printed.path.c_str()}).options) ==
              config_json(is_command ? without : given));
    }
    CHECK(all_flags().size() > 60);
    CHECK(contains(options({"--prompt", "hi there"}).command_line, "train_gpt -i data --prompt 'hi there'"));
}

TEST_CASE("options: short forms, attached values, the command, repeated flags") {
    const Options o = options({"-o", "dir",  "-e", "d24",    "-b8", "-t=16", "-d", "256", "-x", "-1",
                               "-l", "1e-3", "-k", "linear", "-u",  "2",     "-q", "1",   "-c", "0",
                               "-v", "1",    "-m", "2",      "-s",  "3",     "-g", "4",   "-r", "none"});
    CHECK(o.out == "dir");
    CHECK(o.model_name == "d24");
    CHECK(o.batch == 8);
    CHECK(o.seq == 16);
    CHECK(o.total_batch == 256);
    CHECK(o.schedule.steps == -1);
    CHECK(o.schedule.lr == 1e-3);
    CHECK(o.schedule.kind == ScheduleKind::linear);
    CHECK(o.schedule.warmup == 2);
    CHECK(o.schedule.final_fraction == 1);
    CHECK(o.optimizer.weight_decay == 0);
    CHECK(o.val_every == 1);
    CHECK(o.val_batches == 2);
    CHECK(o.sample_every == 3);
    CHECK(o.sample_tokens == 4);
    CHECK(o.recompute == Recompute::none);

    CHECK(parse({"train", "-i", "x"}).options.train == "x");
    CHECK(options({"-b", "8", "-b", "16"}).batch == 16);  // the last one counts
    CHECK(options({"-b", "010"}).batch == 10);            // not octal
    CHECK(options({"--lr=2e-4"}).schedule.lr == 2e-4);
    CHECK(options({"--prompt=--lr"}).prompt == "--lr");
    CHECK(options({"--prompt", "-dash"}).prompt == "-dash");
    CHECK(options({"--prompt", ""}).prompt == "");
    // The empty value is not followed by the next argument.
    const Options empty = options({"--prompt", "x", "--prompt=", "--lr", "1"});
    CHECK(empty.prompt == "");
    CHECK(empty.schedule.lr == 1);
    CHECK(options({"--prompt", "[a,b]"}).prompt == "[a,b]");
    CHECK(options({"--tf32", "--tf32=false"}).tf32 == false);
    CHECK(options({"-v", "20", "-v", "auto"}).val_every == options({}).val_every);
}

TEST_CASE("options: validation sets") {
    CHECK(parse_val_set("data/val*.bin") == ValSet{"", "data/val*.bin"});
    CHECK(parse_val_set("code=data/code*.bin") == ValSet{"code", "data/code*.bin"});
    CHECK(parse_val_set("a=b=c") == ValSet{"a", "b=c"});
    CHECK(parse_val_set("dir/lang=en/x.bin") == ValSet{"", "dir/lang=en/x.bin"});
    CHECK(parse_val_set("=x") == ValSet{"", "=x"});
    CHECK(options({"-j", "a=x", "-j", "y", "--val=b=z"}).val == std::vector<ValSet>{{"a", "x"}, {"", "y"}, {"b", "z"}});
    CHECK(options({"-j", "[a,b]"}).val == std::vector<ValSet>{{"", "[a,b]"}});  // a pattern, not a list
    CHECK(options({"--task", "a=x", "--task=b=z"}).task == std::vector<ValSet>{{"a", "x"}, {"b", "z"}});
    CHECK(contains(refusal({"--task", "x.bin"}), "'x.bin' has no name; use --task NAME=FILE"));
    CHECK(contains(refusal({"--task", "a=x", "--task", "a=y"}), "--task: two are named \"a\""));
    CHECK(contains(refusal({"--task", "a="}), "--task: a=: no pattern after the name"));
    CHECK(contains(refusal({"-i", "d", "-j", "a=x", "-j", "a=y"}), "--val: two are named \"a\""));
    CHECK(contains(refusal({"-i", "d", "-j", "x", "-j", "y"}), "name each one"));
    CHECK(contains(refusal({"-i", "d", "-j", "a="}), "no pattern"));
}

// Which names are near, and what other programs call a flag: test/flags/help.cpp.
TEST_CASE("options: unknown flags and commands, and arguments that are no flags") {
    CHECK(contains(refusal({"--bacth", "4"}), "did you mean --batch?"));
    CHECK(contains(refusal({"--total_batch=4"}), "did you mean --total-batch?"));
    CHECK(contains(refusal({"-batch", "4"}), "did you mean --batch?"));
    CHECK(contains(refusal({"--steps", "4"}), "here it is -x, --max-steps"));
    CHECK(contains(refusal({"-i", "x", "--doc-mask", "true"}),
                   "--doc-mask takes no value, and 'true' follows it; use --doc-mask, or --doc-mask=false"));
    CHECK(contains(refusal({"-i", "x", "--resume", "lastest"}), "did you mean latest?"));
    CHECK(parse({"-i", "x", "--resume", "runs/d12/checkpoints/step_000100"})
              .options.text("resume")
              .ends_with("step_000100"));
    CHECK(contains(refusal({"-p", "4"}), "unknown flag -p"));
    CHECK(contains(refusal({"-xx", "4"}), "unknown flag -xx"));
    CHECK(contains(refusal({"--"}), "unknown flag"));
    CHECK(contains(refusal({"eval"}), "unknown command 'eval'"));
    CHECK(contains(refusal({"-5"}), "unexpected argument '-5'"));
    CHECK(contains(refusal({"-b", "4", "stray"}), "unexpected argument 'stray'"));
}

// The shell expands patterns without quotes. A single file may be meant.
TEST_CASE("options: patterns that the shell has expanded are answered with what to type") {
    CHECK(parse({"-i", "data/a.bin", "-j", "data/b.bin"}).options.train == "data/a.bin");
    CHECK(
        contains(refusal({"-i", "data/a1.bin", "data/a2.bin"}),
                 "unexpected argument 'data/a2.bin': --train takes one pattern, and the shell has made 2 words of it; "
                 "quote the pattern: --train 'data/a*.bin'"));
    CHECK(contains(refusal({"-b", "8", "-j", "v/x1.bin", "v/x2.bin", "v/y1.bin", "v/z.bin", "-i", "a.bin", "b.bin"}),
                   "made 4 words of it; quote the pattern: --val 'v/*.bin'"));
    CHECK(contains(refusal({"-i", "a.bin", "-j", "code=data/a.bin", "code=data/b.bin", "--tf32"}),
                   "made 2 words of it; quote the pattern: --val 'code=data/*.bin'"));
    CHECK(contains(refusal({"-i", "a.bin", "-j", "code=v/a.bin", "v/b.bin"}), "--val 'code=v/*.bin'"));
    std::vector<std::string> names;
    for (int i = 0; i < 1000; i++) names.push_back("shards/train_" + std::to_string(100000 + i) + ".bin");
    Arguments many = {"--train"};
    for (const std::string& name : names) many.push_back(name.c_str());
    CHECK(contains(refusal(many), "made 1000 words of it; quote the pattern: --train 'shards/train_100*.bin'"));
    CHECK(contains(refusal({"--train=a.bin", "b.bin"}), "quote the pattern: --train '*.bin'"));
    CHECK(contains(refusal({"-o", "dir", "b.bin"}), "unexpected argument 'b.bin'; flags start with -"));
}

TEST_CASE("options: llm.c's spellings") {
    CHECK(contains(refusal({"-y", "1"}), "llm.c"));
    CHECK(contains(refusal({"-z", "4"}), "--zero"));
    CHECK(contains(refusal({"-ge", "1"}), "GELU"));  // not -g with the value "e"
    CHECK(contains(refusal({"-sl", "5"}), "llm.c"));
    CHECK(contains(refusal({"-h", "1"}), "HellaSwag"));
    CHECK(contains(refusal({"-r", "1"}), "-r gelu"));
    CHECK(contains(refusal({"-r", "2"}), "-r norm"));
    CHECK(contains(refusal({"-r", "0"}), "-r none"));
}

// One of each kind. The other flags' ranges are in their rows.
TEST_CASE("options: bad values") {
    struct Case {
        Arguments arguments;
        const char* part;
    };
    const Case cases[] = {
        {{"-b", "4x"}, "--batch: '4x' is not a whole number"},
        {{"-b", ""}, "--batch: '' is not a whole number"},
        {{"-b", "1e3"}, "'1e3' is not a whole number"},
        {{"-b", "0"}, "--batch: 0 is out of range; it must be from 1 to 2147483647"},
        {{"-b", "-4"}, "-4 is out of range"},
        {{"-b", "99999999999"}, "99999999999 is out of range; it must be from 1 to 2147483647"},
        {{"-d", "99999999999999999999"}, "--total-batch: 99999999999999999999 is out of range; it must be from 1 to "},
        {{"-x", "0"}, "-1: one epoch"},
        {{"-x", "-2"}, "--max-steps: -2"},
        {{"--max-minutes", "inf"}, "'inf' is not a number"},
        {{"-l", "0"}, "--lr: 0 is out of range; it must be above 0"},
        {{"-l", "nan"}, "'nan' is not a number"},
        {{"-l", "1e-3f"}, "'1e-3f' is not a number"},
        {{"-k", "cos"}, "'cos' is not one of cosine, linear, constant, wsd"},
        {{"-q", "1.01"}, "in [0, 1]"},
        {{"--beta1", "1"}, "in [0, 1)"},
        {{"--clip", "-1"}, "at least 0"},
        {{"-v", "-1"}, "--val-every: -1 is out of range"},
        {{"-v", "sometimes"}, "--val-every: 'sometimes' is not a whole number"},
        {{"--top-p", "0"}, "in (0, 1]"},
        {{"--seed", "-5"}, "--seed: -5 is out of range; it must be from 0 to "},
        {{"--seed", "18446744073709551616"}, "from 0 to 18446744073709551615"},
        {{"--precision", "fp16"}, "is not one of fp8, bf16, fp32, auto"},
        {{"--loss-scale", "3"}, "power of two"},
        {{"--loss-scale", "0.5"}, "power of two"},
        {{"--precision", "BF16"}, "'BF16' is not one of"},
        {{"--gpu", "h300", "--dry-run"}, "'h300' is not in the table: a100"},
        {{"--bench", "-o", "x", "--profile-steps", "3"}, "--bench writes nothing"},
        {{"--bench", "--doc-mask"}, "random tokens have no documents"},
        {{"--json", "-i", "x"}, "--json prints the plan of --dry-run or of --estimate-scaling; add one of them"},
        {{"--json", "--dry-run", "--estimate-scaling"}, "add one of them"},
        {{"--gpu", "h200", "-i", "x"}, "add --dry-run or --estimate-scaling"},
        {{"--profile-steps", "3", "-i", "x"}, "add --out"},
        {{"--profile-steps", "5:4", "-i", "x", "-o", "y"}, "--profile-steps: '5:4' is not a number of steps"},
        {{"--profile-steps", "-i", "x"}, "--profile-steps needs a value"},
        {{"--tf32=1"}, "=true or =false"},
        {{"--tf32="}, "=true or =false"},
        {{"-i", "x", "-5"}, "unexpected argument '-5'; flags start with -"},
        {{"-i", ""}, "--train: the value is empty"},
        {{"-b"}, "--batch needs a value"},
        {{"-b", "-t", "8"}, "--batch needs a value"},
        {{"-i", "--val", "x"}, "--train needs a value"},
        {{"--config", "no/such/file"}, "cannot open the configuration file no/such/file: No such file"},
        {{"--config", "a", "--config", "b"}, "--config is given twice"},
        {{"-i", "a", "--train=b"}, "--train is given twice; use one pattern, as in -i '{A,B}'"},
        {{}, "no training data"},
        {{"-b", "8"}, "no training data"},
    };
    for (const Case& c : cases) {
        std::string shown;
        for (const char* argument : c.arguments) shown += std::string(argument) + " ";
        CAPTURE(shown);
        const std::string message = refusal(c.arguments);
        CAPTURE(message);
        CHECK(contains(message, c.part));
    }
    CHECK(!parse({"--dry-run"}).text);  // planning needs no data
    CHECK(!parse({"--estimate-scaling", "--gpu", "h200"}).text);
    CHECK(!parse({"--print-config"}).text);
}

TEST_CASE("options: a whole number is kept as it is or refused with its flag and range" *
          doctest::test_suite(test::kOnce)) {
    const std::vector<std::string> numbers = split(
        "0 -1 2147483648 -2147483649 4294967296 4294967297 -4294967295 9223372036854775808 9223372036854775807 "
        "1125899906842625 -9223372036854775809 18446744073709551616 18446744073709551617",
        ' ');
    int whole = 0;
    for (const Flag& flag : all_flags()) {
        if (flag.value != "N") continue;
        CAPTURE(flag.long_name);
        whole++;
        const bool in_files = !flag.command_line_only;
        for (const std::string& number : numbers) {
            CAPTURE(number);
            const std::string name = "--" + flag.long_name, entry = "{\"" + flag.long_name + "\": " + number + "}";
            const ConfigFile file(entry);
            Arguments sources[] = {{"-i", "x", "-o", "dir", name.c_str(), number.c_str()},
                                   {"-i", "x", "-o", "dir", "--config", file.path.c_str()}};
            for (int source = 0; source < (in_files ? 2 : 1); source++) {
                CAPTURE(source);
                const std::string message = refusal(sources[source]);
                if (message.empty()) {
                    CHECK(flag_text(flag, parse(sources[source]).options) == number);
                    continue;
                }
                // JSON's own numbers end where the largest types do.
                const bool not_whole_in_json = source == 1 && contains(message, "is not a whole number");
                CHECK((not_whole_in_json || contains(message, "is out of range; it must be from ")));
                CHECK(contains(message, name));
            }
        }
    }
    CHECK(whole > 20);
}

TEST_CASE("options: --overwrite may not remove the weights to start from") {
    CHECK(contains(refusal({"-i", "x", "-o", "runs/a", "--overwrite", "--init-from", "runs/a"}),
                   "--overwrite would remove"));
    CHECK(contains(refusal({"-i", "x", "-o", "runs/a/", "--overwrite", "--init-from", "runs/b/../a/model.safetensors"}),
                   "--overwrite would remove"));
    CHECK_NOTHROW(parse({"-i", "x", "-o", "runs/a", "--overwrite", "--init-from", "runs/b"}));
    namespace fs = std::filesystem;
    TemporaryDirectory place;
    for (const char* directory : {"run", "elsewhere/step_1", "linked"}) fs::create_directories(place / directory);
    std::ofstream(place / "run/model.safetensors") << "weights";
    fs::create_directory_symlink("../elsewhere", place / "run/checkpoints");
    fs::create_directory_symlink("run", place / "link");
    fs::create_symlink("../run/model.safetensors", place / "linked/model.safetensors");
    const std::string run = place / "run";
    for (const std::string from : {"run/checkpoints/step_1", "run/checkpoints/step_1/", "link/checkpoints/step_1",
                                   "elsewhere/step_1", "link", "linked", "linked/model.safetensors"}) {
        CAPTURE(from);
        CHECK(contains(refusal({"-i", "x", "-o", run.c_str(), "--overwrite", "--init-from", (place / from).c_str()}),
                       "--overwrite would remove"));
    }
    const std::string other = place / "other", linked = place / "linked";
    CHECK_NOTHROW(parse({"-i", "x", "-o", other.c_str(), "--overwrite", "--init-from", linked.c_str()}));
}

TEST_CASE("options: configuration files, and flags over them") {
    const ConfigFile file(R"({"train": "t", "val": ["v", "code=w"], "batch": 8, "lr": 1e-3, "tf32": true, "out": null,
                              "seed": 18446744073709551615, "prompt": "x", "max-steps": -1})");
    const Options o = parse({"--config", file.path.c_str()}).options;
    CHECK(o.train == "t");
    CHECK(o.val == std::vector<ValSet>{{"", "v"}, {"code", "w"}});
    CHECK(o.batch == 8);
    CHECK(o.schedule.lr == 1e-3);
    CHECK(o.tf32);
    CHECK(o.out == "");
    CHECK(o.seed == 18446744073709551615u);
    const Options over = parse({"-b", "16", "--config", file.path.c_str(), "-j", "z", "--tf32=false"}).options;
    CHECK(over.batch == 16);  // whatever the order
    CHECK(over.schedule.lr == 1e-3);
    CHECK(over.val == std::vector<ValSet>{{"", "z"}});
    CHECK(!over.tf32);
}

TEST_CASE("options: checkpoints need a run directory") {
    CHECK(contains(refusal({"-i", "x", "-n", "5"}), "add --out DIR"));
    CHECK(contains(refusal({"-i", "x", "--checkpoint-minutes", "5"}), "--checkpoint-minutes: checkpoints are written"));
    CHECK(contains(refusal({"-i", "x", "-o", ""}), "--out: the value is empty"));
    CHECK_NOTHROW(parse({"-i", "x", "-n", "5", "--bench"}));
    CHECK_NOTHROW(parse({"-i", "x", "-n", "5", "--dry-run"}));
    CHECK_NOTHROW(parse({"-i", "x", "-n", "0", "--checkpoint-minutes", "0"}));
    const ConfigFile printed(config_json(parse({"-i", "x"}).options));
    CHECK_NOTHROW(parse({"--config", printed.path.c_str()}));
}

TEST_CASE("options: --resume continues with the configuration of the run's run.json") {
    const TemporaryDirectory run;
    const std::string out = run.path.string();
    const auto write = [&](const char* extra) {
        std::ofstream(run.path / "run.json")
            << R"({"world": 1, "config": {"train": "t", "batch": 8, "lr": 1e-3, "zero": 0,
            "out": "old place", "stop-after": 3, "max-minutes": 2, "tensorboard": true, "checkpoint-minutes": 7,
            "optimizer": "muon", "muon-cautious-decay": true}
            )"
            << extra << "}";
    };
    write("");
    const Options o = parse({"-o", out.c_str(), "--resume", "latest", "--lr", "2e-3"}).options;
    CHECK(o.train == "t");
    CHECK(o.batch == 8);
    CHECK(o.schedule.lr == 2e-3);  // flags win
    CHECK(o.out == out);
    CHECK(o.stop_after == 0);  // limits of the last command
    CHECK(o.max_minutes == 0);
    CHECK(o.sharding.stage == -1);  // on one rank it has no effect
    CHECK(o.checkpoint_minutes == 7);
    CHECK(o.optimizer.cautious_decay);  // under its earlier name
    CHECK(contains(o.notes.at(0), out + "/run.json"));
    write(R"(, "resumed": [{"world": 2}])");
    CHECK(parse({"-o", out.c_str(), "--resume", "auto"}).options.sharding.stage == 0);
    // The configuration in the directory is ignored by a new run, with --config, and by a command with training data.
    CHECK(parse({"-o", out.c_str(), "-i", "x"}).options.batch == 4);
    const ConfigFile config("{\"train\": \"u\"}");
    CHECK(parse({"-o", out.c_str(), "--resume", "latest", "--config", config.path.c_str()}).options.batch == 4);
    CHECK(parse({"-o", out.c_str(), "-i", "x", "--resume", "latest"}).options.batch == 4);
    CHECK(contains(refusal({"--resume", "latest"}), "looks for a checkpoint in the run directory; add --out DIR"));
    CHECK(contains(refusal({"-o", "runs/none", "--resume", "latest"}),
                   "--resume latest: there is no run in runs/none, which has no run.json; check --out"));
    for (const char* damaged : {"{", "{}", R"({"world": 1, "config": 3})", R"({"config": {}, "resumed": [3]})"}) {
        CAPTURE(damaged);
        std::ofstream(run.path / "run.json") << damaged;
        CHECK(contains(refusal({"-o", out.c_str(), "--resume", "latest"}), "--config FILE"));
    }
}

TEST_CASE("options: values of a run that followed from another flag follow it again, unless they were given") {
    const TemporaryDirectory run;
    const std::string out = run.path.string(), file = out + "/run.json";
    const auto resolved = [](Options o) {
        o.train = "t";
        ResolveInputs inputs;
        inputs.train_tokens = 1 << 20;
        resolve(o, inputs);
        return o;
    };
    // Runs with these flags, and returns the options of a run that is configured with what the first one left: its
    // run.json, read by --config or --resume, or what --print-config printed.
    enum class By { config, resume, print };
    const auto again = [&](const Arguments& first, const Arguments& more, By by) {
        const Options o = resolved(parse(first).options);
        const json run = {{"world", 1}, {"config", parse_json(config_json(o))}, {"derived", derived_flags(o)}};
        std::ofstream(file) << (by == By::print ? printed_config(o) : run.dump());
        Arguments line =
            by == By::resume ? Arguments{"-o", out.c_str(), "--resume", "latest"} : Arguments{"--config", file.c_str()};
        line.insert(line.end(), more.begin(), more.end());
        return resolved(parse(line).options);
    };
    const Arguments base = {"-i", "t", "-x", "9", "-o", out.c_str(), "--stop-after", "3", "--max-minutes", "4"};
    const auto with = [&](const Arguments& more) {
        Arguments all = base;
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    for (const By by : {By::config, By::resume, By::print}) {
        CAPTURE(by);
        const Arguments muon = with({"--optimizer", "muon", "--lr", "1e-3"});
        const Options lower = again(muon, {"--lr", "1e-6", "--weight-decay", "0"}, by);
        CHECK(lower.optimizer.adamw_lr == 1e-6);
        CHECK(lower.optimizer.vector_lr == 1e-6);
        CHECK(lower.optimizer.adamw_weight_decay == 0);
        CHECK((lower.stop_after == 0) == (by != By::print));  // limits of the last command
        CHECK((lower.max_minutes == 0) == (by != By::print));
        const Arguments own = with({"--optimizer", "muon", "--lr", "1e-3", "--adamw-lr", "5e-4"});
        CHECK(again(own, {"--lr", "1e-6"}, by).optimizer.adamw_lr == 5e-4);
        const Arguments part = with({"--optimizer", "muon", "--lr", "1e-3", "--adamw-lr", "embedding=0.5"});
        const OptimizerConfig raised = again(part, {"--lr", "0.25"}, by).optimizer;
        CHECK(raised.embedding_lr == 0.5);
        CHECK(raised.complete(0.25).vector_lr == 0.25);
        CHECK(again(muon, {}, by).optimizer.adamw_lr == 1e-3);
        const Options changed = again(with({"--optimizer", "adamw"}), {"--optimizer", "muon"}, by);
        CHECK(changed.optimizer.momentum == 0.95);
        CHECK(changed.optimizer.nesterov == Nesterov::on);
        CHECK(again(with({}), {"--optimizer", "lion"}, by).optimizer.beta2 == 0.99);
        CHECK(again(muon, {"--optimizer", "adamw"}, by).optimizer.adamw_lr < 0);
        CHECK(again(with({"--precision", "bf16"}), {"--precision", "fp8"}, by).text("loss-scale") == "dynamic");
        CHECK(again(with({"--precision", "fp8"}), {"--precision", "bf16"}, by).text("loss-scale") == "off");
        CHECK(again(with({"--precision", "fp8"}), {"--fp8-recipe", "mxfp8", "--fp8-emulation"}, by)
                  .text("fp8-layers")
                  .find("lm_head") == std::string::npos);
    }
    // After a resume, values still follow as in the first run.
    const Options second = again(with({"--optimizer", "muon"}), {}, By::resume);
    CHECK(contains(derived_flags(second), "adamw-lr"));
}

TEST_CASE("options: what starts a program or writes elsewhere is not taken from a file") {
    const TemporaryDirectory run;
    const std::string out = run.path.string(), file = out + "/run.json";
    const auto write = [&](const char* flags) {
        std::ofstream(file) << R"({"world": 1, "config": {"train": "t", )" << flags << "}}";
    };
    const auto has = [](const Options& o, const std::string& part) {
        return std::any_of(o.notes.begin(), o.notes.end(), [&](const auto& note) { return contains(note, part); });
    };
    for (Arguments from : {Arguments{"-o", out.c_str(), "--resume", "latest"}, {"-o", "x", "--config", file.c_str()}}) {
        write(R"("after-checkpoint": "rm -rf \u001b[2J ~")");
        const Options o = parse(from).options;
        CHECK(o.after_checkpoint == "");
        CHECK(!o.given.contains("after-checkpoint"));
        CHECK(has(o, file + " has --after-checkpoint 'rm -rf "));
        CHECK(has(o, "add that flag to this command"));
        CHECK(!has(o, "\x1b"));
        write(R"("after-checkpoint": "theirs")");
        from.insert(from.end(), {"--after-checkpoint", "mine"});
        const Options mine = parse(from).options;
        CHECK(mine.after_checkpoint == "mine");
        CHECK(!has(mine, "theirs"));
    }
}

TEST_CASE("options: flags that a run's optimizer ignored in earlier versions are refused on the command line alone") {
    const TemporaryDirectory run;
    const std::string out = run.path.string(), file = out + "/run.json";
    std::ofstream(file) << R"({"world": 1, "config": {"train": "t", "optimizer": "lion", "nesterov": "on",
        "muon-ns": "p", "muon-scale": "spectral", "beta1": 0.7}})";
    const auto resolved = [](const std::vector<const char*>& arguments) {
        Options o = parse(arguments).options;
        resolve(o, {});
        return o;
    };
    for (const std::vector<const char*>& from :
         {std::vector{"-o", out.c_str(), "--resume", "latest"}, {"--config", file.c_str()}}) {
        const Options o = resolved(from);
        CHECK(o.optimizer.nesterov == Nesterov::off);
        CHECK(o.optimizer.muon_ns == MuonSteps::k);
        CHECK(o.optimizer.muon_scale == MuonScale::rms);
        CHECK(o.optimizer.beta1 == 0.7);
        std::vector<const char*> asking = from;
        asking.insert(asking.end(), {"--nesterov", "on"});
        CHECK(contains(test::error_of([&] { resolved(asking); }), "--nesterov needs --optimizer adamw, sgd"));
    }
    const ConfigFile written(R"({"train": "t", "optimizer": "lion", "nesterov": "on"})");
    CHECK(contains(test::error_of([&] { resolved({"--config", written.path.c_str()}); }), "--nesterov needs"));
}

TEST_CASE("options: a removed flag may be in a configuration with its default, and an error names its substitute") {
    const TemporaryDirectory run;
    const std::string out = run.path.string(), run_json = out + "/run.json";
    const auto with = [&](const json& config, bool of_run) {
        std::ofstream(run_json) << (of_run ? json{{"world", 1}, {"config", config}} : config).dump();
        return of_run ? std::vector{"-o", out.c_str(), "--resume", "latest"}
                      : std::vector{"--config", run_json.c_str()};
    };
    for (const RemovedFlag& removed : removed_flags()) {
        CAPTURE(removed.name);
        CHECK(find_flag(removed.name) == nullptr);
        CHECK(contains(refusal({"-i", "x", ("--" + removed.name + "=1").c_str()}),
                       "--" + removed.name + " has been removed: " + removed.instead));
        for (const bool of_run : {false, true}) {
            for (const json& value : {json(), json::parse(removed.default_value)}) {
                const Options o = parse(with({{"train", "t"}, {"batch", 7}, {removed.name, value}}, of_run)).options;
                CHECK(o.batch == 7);
                CHECK(!o.given.contains(removed.name));
            }
            const std::vector<const char*> other = with({{"train", "t"}, {removed.name, "another"}}, of_run);
            if (removed.observes)
                CHECK_NOTHROW(parse(other));
            else
                CHECK(contains(refusal(other), "\"" + removed.name + "\" is \"another\", and " + removed.text()));
        }
    }
}

TEST_CASE("options: a value that had a flag of its own is part of another flag's") {
    const struct {
        const char* flag;
        json value;
        const char* removed;
        json part;
        const char* now;
    } rows[] = {
        {"keep", 3, "keep-every", 1000, "3,1000"},
        {"restart-every", 400, "restart-factor", 2, "400,2"},
        {"adamw-lr", 0.002, "embedding-lr", 0.3, "0.002,embedding=0.3"},
        {"adamw-lr", "0.002,embedding=0.3", "head-lr", 0.04, "0.002,embedding=0.3,head=0.04"},
        {"adamw-lr", 0.002, "vector-lr", 1e-05, "0.002,vector=1e-05"},
        {"momentum", 0.95, "muon-momentum-warmup", 300, "0.95,300"},
        {"loss-scale", "dynamic:2", "loss-scale-growth-interval", 500, "dynamic:2,500"},
    };
    for (const auto& [flag, value, removed, part, now] : rows) {
        CAPTURE(removed);
        CAPTURE(now);
        const ConfigFile file(json{{"train", "t"}, {flag, value}, {removed, part}}.dump());
        const Options o = parse({"--config", file.path.c_str()}).options;
        CHECK(flag_text(*find_flag(flag), o) == now);
        CHECK(o.given == std::set<std::string>{"config", "train", flag});
        // The text of the value is read again. Without the part, it has its default.
        Options again;
        find_flag(flag)->set(again, now);
        CHECK(*find_flag(flag)->get(again) == *find_flag(flag)->get(o));
        find_flag(flag)->set(again, std::string(now).substr(0, std::string_view(now).rfind(',')));
        CHECK(*find_flag(flag)->get(again) == value);
        const std::string name = std::string("--") + flag, too_long = std::string(now) + ",1,2,3,4";
        CHECK(contains(refusal({"-i", "t", name.c_str(), too_long.c_str()}), name + ": '" + too_long + "' is not "));
        const std::string wrong = std::string(now) + "x";
        CHECK(contains(refusal({"-i", "t", name.c_str(), wrong.c_str()}), name + ": '"));
    }
}

TEST_CASE("options: --adamw-lr may name some rates and leave out the others") {
    const ConfigFile file(R"({"train": "t", "optimizer": "muon", "lr": 0.004, "adamw-lr": "0.002,head=0.1"})");
    const Options o = parse({"--config", file.path.c_str(), "--adamw-lr", "embedding=0.03"}).options;
    CHECK(flag_text(*find_flag("adamw-lr"), o) == "embedding=0.03");  // nothing of the file's value is left
    const OptimizerConfig complete = o.optimizer.complete(o.schedule.lr);
    CHECK(complete.adamw_lr == 0.004);
    CHECK(complete.head_lr == 0.004);
    CHECK(complete.embedding_lr == 0.03);
    const Options two = parse({"-i", "t", "--adamw-lr", "head=0.1,embedding=0.03"}).options;
    CHECK(flag_text(*find_flag("adamw-lr"), two) == "embedding=0.03,head=0.1");
    CHECK(contains(refusal({"-i", "t", "--adamw-lr", "embedding=0.03,0.1"}), "'embedding=0.03,0.1' is not X[,emb"));
    CHECK(contains(refusal({"-i", "t", "--adamw-lr", "heads=0.1"}), "'heads=0.1' is not a number"));
    CHECK(contains(refusal({"-i", "t", "--adamw-lr", "head=0"}), "0 is out of range"));
}

TEST_CASE("options: -x and --epochs replace each other") {
    const ConfigFile steps(R"({"train": "t", "max-steps": 30})"), epochs(R"({"train": "t", "epochs": 3})");
    const Options by_epochs = parse({"--config", steps.path.c_str(), "--epochs", "2"}).options;
    CHECK(by_epochs.schedule.steps == -1);
    CHECK(by_epochs.epochs == 2);
    const Options by_steps = parse({"--config", epochs.path.c_str(), "-x", "2"}).options;
    CHECK(by_steps.schedule.steps == 2);
    CHECK(by_steps.epochs == 0);
    // With several sources, -x is the length and --epochs limits the passes over each.
    const ConfigFile mixture(R"({"train": "a:1,b:1", "max-steps": 30, "epochs": 3})");
    const Options longer = parse({"--config", mixture.path.c_str(), "-x", "40"}).options;
    CHECK(longer.schedule.steps == 40);
    CHECK(longer.epochs == 3);
    const Options one_source = parse({"--config", mixture.path.c_str(), "-i", "t", "-x", "40"}).options;
    CHECK(one_source.epochs == 0);
}

TEST_CASE("options: another model does not inherit the file's shape") {
    const ConfigFile file(
        R"({"train": "t", "model": "d12", "layers": 3, "heads": 12, "channels": 768, "context": 64})");
    Options same = parse({"--config", file.path.c_str()}).options;
    resolve(same, {});
    CHECK(same.model.layers == 3);
    Options other = parse({"--config", file.path.c_str(), "-e", "d24", "--layers", "2"}).options;
    resolve(other, {});
    CHECK(other.model.layers == 2);
    CHECK(other.model.channels == 1024);
    CHECK(other.model.context == 1024);
}

TEST_CASE("options: bad configuration files") {
    CHECK(contains(config_refusal(R"({"bacth": 4})"), "unknown key \"bacth\" (did you mean \"batch\"?)"));
    CHECK(contains(config_refusal(R"({"total_batch": 4})"), "\"total-batch\""));
    CHECK(contains(config_refusal(R"({"batch": 4.5})"), "'4.5' is not a whole number"));
    CHECK(contains(config_refusal(R"({"batch": 0})"), "--batch: 0"));
    CHECK(contains(config_refusal(R"({"batch": [1]})"), "must be a number or a string"));
    CHECK(contains(config_refusal(R"({"batch": true})"), "must be a number or a string"));
    CHECK(contains(config_refusal(R"({"tf32": "yes"})"), "must be true or false"));
    for (const char* key : {"dry-run", "estimate-scaling", "print-config", "config", "overwrite", "gpu",
                            "profile-steps", "bench", "help", "version"}) {
        CAPTURE(key);
        CHECK(contains(config_refusal(std::string("{\"") + key + "\": true}"), "belongs on the command line"));
    }
    CHECK(contains(config_refusal("["), "is not JSON"));
    CHECK(contains(config_refusal("[1]"), "is not a JSON object"));
}

TEST_CASE("options: a printed configuration is accepted and prints the same") {
    const std::string long_line =
        "-e gpt3-350m -t 2048 -b 2 -d 8192 -x 100 -u 10 -l 0.1 -j a=x -j y --tf32 --prompt "
        "\"quoted\"\n --max-minutes 0.1 -r norm -c 1e-17 --seed 18446744073709551615 -o runs/a --precision fp32 -q "
        "0.3333333333333333";
    for (const std::string& line :
         {std::string(), long_line, std::string("--layers 2 --heads 2 --channels 64 -t 32 --vocab 256")}) {
        std::vector<std::string> words = split(line, ' ');
        std::erase(words, "");
        Arguments arguments;
        for (const std::string& word : words) arguments.push_back(word.c_str());
        Options first = options(arguments);
        resolve(first, {});
        const std::string printed = config_json(first);
        const ConfigFile file(printed);
        Options second = parse({"--config", file.path.c_str()}).options;
        CHECK(config_json(second) == printed);
        resolve(second, {});
        CHECK(config_json(second) == printed);
        CHECK(second.model == first.model);
        CHECK(second.micro_steps == first.micro_steps);
        // A run.json holds the same under "config". Flags next to it would not be read.
        const ConfigFile run(json_text(json{{"world", 1}, {"config", parse_json(printed)}}));
        Options of_run = parse({"--config", run.path.c_str()}).options;
        of_run.stop_after = second.stop_after, of_run.max_minutes = second.max_minutes;  // of the run's last command
        CHECK(config_json(of_run) == printed);
    }
    const ConfigFile beside(R"({"model": {"name": "d12"}, "config": {"train": "t"}, "lr": 1e-2})");
    CHECK(refusal({"--config", beside.path.c_str()}) ==
          "configuration file " + beside.path + ": \"lr\" is not read next to \"config\"; put it inside");
}

TEST_CASE("options: -e list names the models that -e takes, without training data") {
    const std::optional<std::string> text = parse({"-e", "list"}).text;
    REQUIRE(text);
    for (const std::string& name : model_names()) CHECK(contains(*text, name));
    CHECK(parse({"--model=list", "-i", "x"}).text == text);
    CHECK(parse_json(*parse({"-e", "list", "--json"}).text) == Json(model_names()));
}

TEST_CASE("options: help and version win over everything else") {
    for (const Arguments& arguments :
         {Arguments{"--help"}, Arguments{"-h"}, Arguments{"help"}, Arguments{"train", "-h"},
          Arguments{"-b", "4", "--help", "--unknown"}, Arguments{"-h", "-b"}}) {
        const ParsedOptions parsed = parse(arguments);
        REQUIRE(parsed.text);
        CHECK(*parsed.text == help_text(usage_text("train_gpt", help_width()), false, help_width()));
    }
    CHECK(*parse({"--help-all"}).text == help_text(usage_text("train_gpt", help_width()), true, help_width()));
    CHECK(*parse({"-i", "x", "--help-markdown"}).text == help_markdown());
    CHECK(contains(*parse({"--version"}).text, "train_gpt " + version_number()));
    CHECK(contains(*parse({"--version"}).text, word_of(default_precision())));
}
