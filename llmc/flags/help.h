// --help, --help-all and --help-markdown: texts made from the table of flags, and their layout, which the commands'
// own help shares.
#pragma once
#include <string>
#include <vector>

namespace llmc {

// One flag as help shows it.
struct HelpRow {
    std::string names;  // "-b, --batch N"
    std::string help;
    std::string default_text;  // empty: none is shown
};

// Rows in two columns, no line longer than `width`.
std::string help_rows(const std::vector<HelpRow>& rows, size_t width);

// A Markdown table of flag, default and meaning.
std::string markdown_table(const std::vector<HelpRow>& rows);

// The width for help: COLUMNS, else the terminal's, else 80; never below 60 or above 120.
size_t help_width();

// The text of --help; with `all`, of --help-all.
std::string help_text(const std::string& program, bool all, size_t width);

// The page of --help-markdown without the commands' own flags, which run_command() (train_gpt.cu) adds.
std::string help_markdown();

}  // namespace llmc
