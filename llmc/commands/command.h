// What the program does beside training, by the word in front of the flags: eval, export, sample.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/launch.h"
#include "llmc/device/error.h"

namespace llmc {

// Runs the command that the first argument names; nothing where it names none of these. `launch` becomes that of this
// process, for a command that runs on several ranks.
std::optional<ExitCode> run_command(const std::vector<std::string>& arguments, LaunchInfo& launch);

}  // namespace llmc
