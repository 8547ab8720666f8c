// Reads the arguments of eval, sample and export, with --help and refusals in the style of training's flags.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace llmc {

// Checks of a command's own options.
CLI::Validator one_of(const std::vector<std::string>& words);
CLI::Validator whole_number_from(int lowest);

// Reads the arguments of `app`, which is called "train_gpt COMMAND". Returns false if --help or --help-markdown was
// given, and printed. Throws Error(bad_flags) if an argument is wrong or missing.
bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace llmc
