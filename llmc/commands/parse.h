// How a command of its own reads its arguments.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace llmc {

// `app` is called "train_gpt COMMAND". False: help was asked for, and printed. Throws Error(bad_flags) where they are
// none of its arguments.
bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace llmc
