// --dry-run and --estimate-scaling: what a run would need and take, printed without a GPU.
#pragma once
#include <functional>

#include "llmc/comm/comm.h"
#include "llmc/run/options.h"
#include "llmc/run/sharding_plan.h"

namespace llmc {

// A rank of the run that the options describe, among the ranks of `comm`, which need not exist. Throws where there is
// no such run.
using PlanRank = std::function<StagePlan(const Options&, const Comm&)>;

// Ranks that do not exist, on GPUs, talking as the options say.
Comm planned_ranks(const Options& options, int world);
// `options` are resolved for --world ranks; `zero` is what was asked for before that, -1 for nothing.
void plan_run(const Options& options, int zero, const PlanRank& plan_rank);

}  // namespace llmc
