// --dry-run and --estimate-scaling print a run's predicted memory and time, without a GPU.
#pragma once
#include "llmc/comm/comm.h"
#include "llmc/device/runtime.h"
#include "llmc/flags/options.h"
#include "llmc/plan/plan.h"

namespace llmc {

// A rank of the run that the options describe, among the ranks of `comm`, which need not exist, as the Trainer plans
// it. Throws where there is no such run.
StagePlan plan_rank(const Options& options, const Comm& comm);

// How long a step of the planned rank takes at least on this rank's device: on a GPU of the table from its rates, on a
// CPU from its threads; nothing for another GPU.
std::optional<double> predicted_seconds(const Options& options, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device);

// `options` are resolved for --world ranks; `zero` is what was asked for before that, -1 for nothing.
// Returns no_resources if the run of --dry-run does not fit.
ExitCode plan_run(const Options& options, int zero);

}  // namespace llmc
