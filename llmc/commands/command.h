// The commands besides training and its check: eval, export and sample, named by the first argument.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/launch.h"

namespace llmc {

// Runs the command that the first argument names, or --help-markdown; returns nothing if it names neither. Sets
// `launch` for a command that runs on several ranks.
std::optional<ExitCode> run_command(const std::vector<std::string>& arguments, LaunchInfo& launch);

}  // namespace llmc
