// Finds the command that the first argument names, and runs it.
#include "llmc/commands/commands.h"

#include <cstdio>

#include "llmc/check/card_check.h"
#include "llmc/commands/check.h"
#include "llmc/flags/help.h"

namespace llmc {
namespace {

// dev/guide/flags.md: the flags of training, then those of each command.
ExitCode print_flags_page(LaunchInfo& launch) {
    std::fputs(help_markdown().c_str(), stdout);
    for (const char* command : {"eval", "sample", "export"}) run_command({command, "--help-markdown"}, launch);
    return ExitCode::ok;
}

}  // namespace

std::optional<ExitCode> run_command(const std::vector<std::string>& arguments, LaunchInfo& launch) {
    if (arguments.empty()) return std::nullopt;
    if (arguments[0] == "--help-markdown") return print_flags_page(launch);
    const std::vector<std::string> flags(arguments.begin() + 1, arguments.end());
    if (arguments[0] == "check" && !flags.empty() && flags[0] == kWorkerArgument)
        return check_worker(kernel_use_from_text);
    if (arguments[0] == "export") return export_weights(flags);
    if (arguments[0] == "sample") return sample_text(flags);
    if (arguments[0] != "eval") return std::nullopt;
    launch = launch_environment();
    return evaluate_weights(flags, launch);
}

}  // namespace llmc
