// Command lines of eval, sample and export: values, defaults that differ from training's, and refusals.
#include <doctest/doctest.h>

#include "llmc/base/text.h"
#include "llmc/flags/flags.h"
#include "llmc/flags/help.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

Options options(const std::string& command, const std::string& arguments) {
    const ParsedOptions parsed = parse_command(command, words_in(arguments));
    CHECK(!parsed.text);
    return parsed.options;
}

std::string command_refusal(const std::string& command, const std::string& arguments) {
    return error_of([&] { parse_command(command, words_in(arguments)); }, ExitCode::bad_flags);
}

}  // namespace

TEST_CASE("commands: each has its flags, with its own defaults") {
    const Options eval = options("eval", "--from runs/a -j v.bin --val=b=w.bin -b4 -o losses.json --average");
    CHECK(eval.from == "runs/a");
    CHECK(eval.val == std::vector<ValSet>{{"", "v.bin"}, {"b", "w.bin"}});
    CHECK(eval.batch == 4);
    CHECK(eval.out == "losses.json");
    CHECK(eval.of_average);
    CHECK(eval.precision == Precision::bf16);
    CHECK(eval.val_batches == -1);

    const Options sample = options("sample", "--checkpoint runs/a --prompt= --num-samples 3");
    CHECK(sample.from == "runs/a");
    CHECK(sample.given.contains("prompt"));
    CHECK(sample.num_samples == 3);
    CHECK(sample.sample_tokens == 256);
    CHECK(!sample.no_cache);
    CHECK(options("sample", "--from runs/a -g 7 --no-cache").sample_tokens == 7);

    const Options exported = options("export", "--from a --to b --format llmc --dtype bf16 --overwrite");
    CHECK(exported.to == "b");
    CHECK(exported.format == ExportFormat::llmc);
    CHECK(exported.dtype == StateFormat::bf16);
    CHECK(exported.overwrite);
}

TEST_CASE("commands: wrong, missing and foreign flags are refused by the command's name") {
    CHECK(command_refusal("eval", "").starts_with("eval: --from PATH is missing: a checkpoint, "));
    CHECK(contains(command_refusal("export", "--from a"), "export: --to PATH is missing: "));
    CHECK(contains(command_refusal("export", "--from a"), "(train_gpt export --help)"));
    CHECK(command_refusal("export", "--from") == "export: --from needs a value: --from PATH");
    CHECK(command_refusal("export", "--from a --to b --dtype fp16") ==
          "export: --dtype: 'fp16' is not one of fp32, bf16, fp8");
    CHECK(command_refusal("export", "--from a --to b --overwrite yes")
              .starts_with("export: --overwrite takes no value, and 'yes' follows it"));
    CHECK(command_refusal("sample", "--from a -g 0")
              .starts_with("sample: --tokens: 0 is out of range; it must be from 1 to "));
    CHECK(command_refusal("sample", "--max_new_tokens 5")
              .starts_with("sample: unknown flag --max_new_tokens; here it is -g, "));
    CHECK(command_refusal("eval", "--from a --lr 1") == "eval: unknown flag --lr (train_gpt eval --help lists all)");
    CHECK(contains(command_refusal("eval", "--from a b"), "eval: unexpected argument 'b'; flags start with -"));
    CHECK(contains(command_refusal("eval", "--from a -j x1.bin x2.bin"), "quote the pattern: --val 'x*.bin'"));
}

TEST_CASE("commands: help shows every flag") {
    for (const CommandFlags& command : all_commands()) {
        CAPTURE(command.name);
        const std::optional<std::string> help = parse_command(command.name, {"--from", "x", "--help"}).text;
        REQUIRE(help);
        CHECK(help->starts_with("Usage: train_gpt " + command.name + " --from PATH "));
        CHECK(contains(help_markdown(), "\n## train_gpt " + command.name + "\n"));
        for (const Flag& flag : command.flags) CHECK(contains(*help, "--" + flag.long_name));
    }
}
