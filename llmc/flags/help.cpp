// Builds the help of all flags as text, wrapped to the width of the terminal, and as Markdown.
#include "llmc/flags/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "llmc/base/error.h"
#include "llmc/base/text.h"
#include "llmc/flags/flags.h"

namespace llmc {
namespace {

constexpr size_t kHelpColumn = 28;  // where the help of a flag starts

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 other failure, 2 flags or configuration, 3 data, 4 checkpoint, 5 not enough memory or disk "
    "or no usable device, 6 numbers went bad, 7 communication lost, 75 stopped by a signal or limit after saving.";

// `left` in the first column, then `right` wrapped from `column` on; on a line of its own if `left` is too long.
std::string two_columns(const std::string& left, const std::string& right, size_t column, size_t width) {
    const bool fits = left.size() + 2 <= column;
    const std::string gap = fits ? std::string(column - left.size(), ' ') : "\n" + std::string(column, ' ');
    return left + gap + wrap(right, column, width) + "\n";
}

std::vector<HelpRow> rows_of(const std::string& group, bool all) {
    std::vector<HelpRow> rows;
    for (const Flag& flag : all_flags())
        if (flag.group == group && (all || flag.common))
            rows.push_back(
                {names_text(flag) + (flag.is_switch() ? "" : " " + flag.value), flag.help, default_text(flag)});
    return rows;
}

std::vector<std::string> groups() {
    std::vector<std::string> names;
    for (const Flag& flag : all_flags())
        if (names.empty() || names.back() != flag.group) names.push_back(flag.group);
    return names;
}

std::string usage(const std::string& program, size_t width) {
    struct {
        const char *command, *help;
    } const commands[] = {
        {"train", "train a model; this word may be left out"},
        {"check", "test this card's kernels, matmuls and links for a run with these flags"},
        {"eval", "print a model's loss on validation sets, and its scores in tasks (eval --help)"},
        {"sample", "generate text with a model (sample --help)"},
        {"export", "write a model's weights for Hugging Face or llm.c (export --help)"},
    };
    std::string text = program + ": pretrains GPTs in FP8 from shards of tokens.\n\nUsage: " + program +
                       " [COMMAND] FLAGS\n\nCommands\n";
    for (const auto& [command, help] : commands) text += two_columns(fmt::format("  {}", command), help, 11, width);
    const std::string p = "  " + program;
    text += "\nExamples\n" + p + " -i 'data/*train_*.bin' -j 'data/*val_*.bin' -o runs/first\n" + p +
            " -o runs/first --resume latest\n" + p +
            " -i 'data/*train_*.bin' -o runs/small -e tiny -x 500  # on a CPU\n" + p +
            " -e gpt2-xl -b 16 --dry-run --gpu h200\n";
    return text + "\n" + wrap("Every flag takes a value unless none is shown. Defaults are in [brackets].", 0, width) +
           "\n";
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
        if (c == '<') {
            result += "&lt;";
            continue;
        }
        if (c == '|' || c == '*') result += '\\';
        result += c;
    }
    return result;
}

}  // namespace

std::string help_rows(const std::vector<HelpRow>& rows, size_t width) {
    std::string text;
    for (const HelpRow& row : rows) {
        const std::string indent = row.names.starts_with("--") ? "      " : "  ";
        const std::string by_default = row.default_text.empty() ? "" : " [" + row.default_text + "]";
        text += two_columns(indent + row.names, row.help + by_default, kHelpColumn, width);
    }
    return text;
}

std::string markdown_table(const std::vector<HelpRow>& rows) {
    std::string text = "| flag | default | meaning |\n|---|---|---|\n";
    for (const HelpRow& row : rows) {
        std::string names = row.names;  // a pipe would end the cell even in code
        for (size_t at = 0; (at = names.find('|', at)) != std::string::npos; at += 2) names.insert(at, "\\");
        text += "| `" + names + "` | " + escaped(row.default_text) + " | " + escaped(row.help) + " |\n";
    }
    return text;
}

size_t help_width() {
    constexpr long kNarrowest = 60, kWidest = 120;
    long width = 80;
    winsize size = {};
    const char* const columns = std::getenv("COLUMNS");
    if (columns && std::atol(columns) > 0)
        width = std::atol(columns);
    else if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        width = size.ws_col;
    return static_cast<size_t>(std::clamp(width, kNarrowest, kWidest));
}

std::string help_text(const std::string& program, bool all, size_t width) {
    std::string text = usage(program, width);
    for (const std::string& group : groups())
        if (const std::vector<HelpRow> rows = rows_of(group, all); !rows.empty())
            text += "\n" + wrap(group, 0, width) + "\n" + help_rows(rows, width);
    if (!all) {
        const std::string others = fmt::format("{} --help-all lists all {} flags.", program, all_flags().size());
        text += "\n" + wrap(others, 0, width) + "\n";
    }
    return text + "\n" + wrap(kExitCodes, 0, width) + "\n";
}

std::string help_markdown() {
    std::string text =
        "# Flags\n\nAll flags of `train_gpt`, as `train_gpt --help-markdown` prints them. "
        "Most take a value; those shown without one are switches.\n";
    for (const std::string& group : groups()) text += "\n## " + group + "\n\n" + markdown_table(rows_of(group, true));
    return text;
}

}  // namespace llmc
