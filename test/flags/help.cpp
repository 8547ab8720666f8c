// The texts of --help. Flags of llm.c and other programs are answered with those of this one; flags that it shares are
// left alone.
#include "llmc/flags/help.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "llmc/flags/flags.h"
#include "test/helpers.h"

using namespace llmc;
using namespace llmc::test;

namespace {

std::string help_of(const char* program, bool all, size_t width) {
    return help_text(usage_text(program, width), all, width);
}

size_t longest_line(const std::string& text) {
    size_t longest = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
    return longest;
}

// The lines of `help` that begin with a flag.
std::vector<std::string> flags_in(const std::string& help) {
    std::vector<std::string> flags;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("  -") || line.starts_with("      --")) flags.push_back(line);
    return flags;
}

}  // namespace

TEST_CASE("llm.c flags: each is answered by name") {
    for (const char* flag :
         {"-y", "-nk", "-nm", "-w", "-f", "-ge", "-a", "-sl", "-sg", "-lg", "-pn", "-pr", "-pg", "-pi", "-ps", "-pf"}) {
        CAPTURE(flag);
        const auto answer = answer_llmc_flag(flag, "1");
        REQUIRE(answer);
        CHECK(answer->find(flag) == 0);
        CHECK(answer->find("llm.c") != std::string::npos);
    }
    CHECK(answer_llmc_flag("-f", "1")->find("--tf32") != std::string::npos);
    CHECK(answer_llmc_flag("-sl", "5")->find("use --skip-spikes") != std::string::npos);
    CHECK(answer_llmc_flag("-sg", "5")->find("use --skip-spikes") != std::string::npos);
}

TEST_CASE("llm.c flags: an answer names only flags that there are") {
    for (char first = 'a'; first <= 'z'; first++)
        for (char second = 'a' - 1; second <= 'z'; second++) {  // a letter alone, then with each other
            const auto answer =
                answer_llmc_flag(std::string{'-', first} + (second < 'a' ? "" : std::string{second}), "1");
            if (!answer) continue;
            CAPTURE(*answer);
            for (size_t at = answer->find("--"); at != std::string::npos; at = answer->find("--", at + 2)) {
                const size_t end = answer->find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at + 2);
                CHECK(find_flag(answer->substr(at + 2, end - at - 2)) != nullptr);
            }
        }
}

TEST_CASE("llm.c flags: -h with a number is HellaSwag, alone it is help") {
    CHECK(answer_llmc_flag("-h", "1")->find("use --hellaswag FILE") != std::string::npos);
    CHECK(!answer_llmc_flag("-h", ""));
    CHECK(!answer_llmc_flag("-h", "-b"));
}

TEST_CASE("llm.c flags: flags that this program has too are not answered") {
    for (const char* flag :
         {"-i", "-j", "-o", "-e", "-b", "-t", "-d", "-x", "-k", "-l", "-u", "-q", "-c", "-v", "-m", "-s", "-g", "-r"}) {
        CAPTURE(flag);
        CHECK(!answer_llmc_flag(flag, "1"));
    }
}

namespace {

std::string answer(const std::string& flag) { return unknown_flag_text(flag, all_flags(), "SEE"); }

}  // namespace

TEST_CASE("other programs: their flags are answered with ours") {
    CHECK(answer("--batch-size") ==
          "unknown flag --batch-size; here it is -b, --batch (sequences per micro-step and rank)");
    for (const char* spelling : {"--batch_size", "--batch-size=4", "--micro-batch-size", "--device_batch_size=4"})
        CHECK(contains(answer(spelling), "; here it is -b, --batch ("));
    const std::pair<const char*, const char*> cases[] = {
        {"--learning_rate", "-l, --lr"},          {"--block_size", "-t, --seq"},
        {"--max_iters", "-x, --max-steps"},       {"--n_layer", "--layers"},
        {"--weight_decay", "-c, --weight-decay"}, {"--resume_from_checkpoint", "-y, --resume"}};
    for (const auto& [theirs, ours] : cases) {
        CAPTURE(theirs);
        // Their name with an underscore may be ours with a dash.
        const bool ours_too = contains(theirs, "weight_decay");
        CHECK(contains(answer(theirs), ours_too ? "did you mean --weight-decay?" : "here it is " + std::string(ours)));
    }
    for (const char* flag : {"--gradient-accumulation-steps", "--global-batch-size", "--max-tokens", "--wandb",
                             "--compile", "--device", "--nproc_per_node", "--tensor-model-parallel-size"}) {
        CAPTURE(flag);
        CHECK(contains(answer(flag), std::string(flag) + "; "));
        CHECK(!contains(answer(flag), "did you mean"));
    }
}

TEST_CASE("other programs: names in the table are no flags of this program, and stand for flags that exist") {
    CHECK(other_names().size() > 150);
    const std::set<std::string> of_commands = {"from", "to", "tokens", "num-samples"};
    for (const auto& [theirs, ours] : other_names()) {
        CAPTURE(theirs);
        CHECK((find_flag(ours) || of_commands.contains(ours)));
        if (find_flag(ours)) CHECK(!find_flag(theirs));
        CHECK(!contains(theirs, "_"));
    }
}

TEST_CASE("other programs: unknown flags name the nearest of those the command has") {
    CHECK(answer("--bacth") == "unknown flag --bacth; did you mean --batch? (SEE)");
    CHECK(answer("--total_batch=4") == "unknown flag --total_batch; did you mean --total-batch? (SEE)");
    CHECK(answer("--completely-different") == "unknown flag --completely-different (SEE)");
    const std::vector<Flag> few = {{.short_name = 'g', .long_name = "tokens", .help = "the most"},
                                   {.long_name = "from", .help = "a run"}};
    CHECK(unknown_flag_text("--max_new_tokens", few, "SEE") ==
          "unknown flag --max_new_tokens; here it is -g, --tokens (the most)");
    CHECK(unknown_flag_text("--form", few, "SEE") == "unknown flag --form; did you mean --from? (SEE)");
    CHECK(unknown_flag_text("--batch-size", few, "SEE") == "unknown flag --batch-size (SEE)");
}

TEST_CASE("other programs: unknown commands are answered") {
    CHECK(contains(unknown_command_text("evaluate"), "unknown command 'evaluate'; did you mean eval?"));
    CHECK(contains(unknown_command_text("generate"), "did you mean sample?"));
    CHECK(contains(unknown_command_text("exprot"), "did you mean export?"));
    CHECK(contains(unknown_command_text("resume"), "add --resume latest"));
    CHECK(contains(unknown_command_text("xyz"), "unknown command 'xyz' (commands: train, eval, sample, export"));
}

TEST_CASE("options: --help-all shows every flag with its true default") {
    const std::string help = help_of("train_gpt_cpu", true, 100);
    CHECK(contains(help, "Usage: train_gpt_cpu [COMMAND] FLAGS"));
    CHECK(flags_in(help).size() == all_flags().size());
    std::set<std::string> long_names;
    std::set<char> short_names;
    for (const Flag& flag : all_flags()) {
        CAPTURE(flag.long_name);
        CHECK(contains(help, "--" + flag.long_name));
        CHECK(contains(help, "\n" + flag.group + "\n"));
        CHECK(contains(help_markdown(), "--" + flag.long_name));
        CHECK(long_names.insert(flag.long_name).second);
        if (flag.short_name != 0) CHECK(short_names.insert(flag.short_name).second);
    }
    // In the form that people write them. All others are in dev/guide/flags.md, which test_run_files.py compares.
    CHECK(default_text(*find_flag("lr")) == "3e-4");
    CHECK(default_text(*find_flag("eps")) == "1e-8");
    CHECK(default_text(*find_flag("max-steps")) == "one epoch");
    CHECK(default_text(*find_flag("val-every")) == "auto");
    CHECK(default_text(*find_flag("top-p")) == "1");
    CHECK(default_text(*find_flag("batch")) == "4");
    CHECK(default_text(*find_flag("recompute")) == "auto");
}

TEST_CASE("options: --help shows the flags that matter most, on little more than a page") {
    const std::string help = help_of("train_gpt", false, 100);
    size_t common = 0;
    for (const Flag& flag : all_flags()) common += flag.common;
    CHECK(flags_in(help).size() == common);
    CHECK(common >= 15);
    CHECK(common <= 26);
    CHECK(std::count(help.begin(), help.end(), '\n') < 85);
    for (const char* part : {"--train GLOB", "--model", "--batch", "--precision", "--zero", "--resume", "--val-every",
                             "--dry-run", "\nSeveral GPUs", "sample --help", "--help-all", "Exit codes: 0 done"})
        CHECK(contains(help, part));
    CHECK(!contains(help, "--muon-ns"));
}

TEST_CASE("options: help fits the width of the terminal") {
    for (const bool all : {false, true})
        for (const size_t width : {80, 100, 120}) {
            const std::string help = help_of("train_gpt_cpu", all, width);
            CHECK(longest_line(help) <= width);
            CHECK(longest_line(help) + 10 > width);
            CHECK(!contains(help, " \n"));
        }
    CommandFlags command = {"x", "About x."};
    command.flags = {{'b', "batch", "N", "aaa bbb", "4"}, {0, "a-very-long-name-of-a-flag", "N", "ccc", "d"}};
    CHECK(command_help(command, 60) ==
          "Usage: train_gpt x [FLAGS]\n\nAbout x.\n\n  -b, --batch N             aaa bbb [4]\n"
          "      --a-very-long-name-of-a-flag N\n                            ccc [d]\n");
    const char* const before = std::getenv("COLUMNS");
    const std::string kept = before ? before : "";
    const std::map<const char*, size_t> widths = {{"100", 100}, {"20", 60}, {"500", 120}, {"-3", 80}, {"x", 80}};
    for (const auto& [columns, width] : widths) {
        setenv("COLUMNS", columns, 1);
        if (isatty(STDOUT_FILENO) == 0 || width != 80) CHECK(help_width() == width);
    }
    before ? setenv("COLUMNS", kept.c_str(), 1) : unsetenv("COLUMNS");
}
