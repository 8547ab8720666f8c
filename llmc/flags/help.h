// Texts that help a user with flags: the help, made from the table of flags, and answers to flags and commands that the
// program does not have. The commands' own help has the same layout.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace llmc {

struct CommandFlags;
struct Flag;

// ---- --help, --help-all and --help-markdown -------------------------------------------------------------------------

// The width for help: COLUMNS, else the terminal's, else 80; never below 60 or above 120.
size_t help_width();

// The purpose of train_gpt, its commands and examples.
std::string usage_text(const std::string& program, size_t width);
// The text of --help behind `usage`; with `all`, of --help-all.
std::string help_text(const std::string& usage, bool all, size_t width);
// The text of `train_gpt COMMAND --help`.
std::string command_help(const CommandFlags& command, size_t width);

// The page of --help-markdown: the flags of training, then those of each command.
std::string help_markdown();

// The script of --completion bash: names of flags and commands, words that flags accept, and files.
std::string completion_script();

// ---- unknown flags and commands -------------------------------------------------------------------------------------
// People who come from other programs type flags and commands that have another name here, mean something else, or do
// not exist.

// The answer to llm.c's `flag` ("-y", "-ge") followed by `value`; nothing if it is a flag of this program as well.
std::optional<std::string> answer_llmc_flag(const std::string& flag, const std::string& value);

// "unknown flag --batch-size; here it is -b, --batch (sequences per micro-step and rank)", or "unknown flag --bacth;
// did you mean --batch? (SEE)", or "unknown flag --bacth (SEE)". `argument` may have a value: --batch-size=4. `known`
// are the flags of the program, or of one of its commands.
std::string unknown_flag_text(const std::string& argument, const std::vector<Flag>& known, const std::string& see);

// "unknown command 'evaluate'; did you mean eval? Commands are ...".
std::string unknown_command_text(const std::string& command);

// Names in the table behind unknown_flag_text() and the flags that they stand for, for tests.
std::vector<std::pair<std::string, std::string>> other_names();

}  // namespace llmc
