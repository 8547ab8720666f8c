// The commands besides training and its card check (check.h): eval, sample, export, and the plans of --dry-run and
// --estimate-scaling.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/comm/launch.h"
#include "llmc/flags/options.h"
#include "llmc/plan/plan.h"

namespace llmc {

// Runs the command that the first argument names, or --help-markdown. Returns nothing if it names neither. Sets
// `launch` for a command that runs on several ranks.
std::optional<ExitCode> run_command(const std::vector<std::string>& arguments, LaunchInfo& launch);

// The commands, with the arguments after their name.
ExitCode evaluate_weights(const std::vector<std::string>& arguments, const LaunchInfo& launch);  // losses and tasks
ExitCode sample_text(const std::vector<std::string>& arguments);
ExitCode export_weights(const std::vector<std::string>& arguments);  // into other programs' files

// --dry-run and --estimate-scaling: prints what a run would need and how long it would take, without a GPU. `options`
// are `asked` resolved for --world ranks. Returns no_resources if the run of --dry-run does not fit.
struct AskedRun;
struct Inputs;
ExitCode plan_run(const AskedRun& asked, const Options& options, const Inputs& inputs);

// Plans a rank of the run that the options describe, as its Trainer does. The ranks of `comm` need not exist. Throws if
// such a run is refused.
StagePlan plan_rank(const Options& options, const Comm& comm);

// The least time that a step of the planned rank takes on this rank's device, in seconds. It follows from the card's
// rates on a GPU, and from the number of threads on a CPU. Nothing for unknown GPUs.
std::optional<double> predicted_seconds(const Options& options, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device);

}  // namespace llmc
