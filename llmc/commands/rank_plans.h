// Plans of a run's ranks: the memory they would need and the time they would take. The ranks need not exist, and no GPU
// is needed. --dry-run and --estimate-scaling print them; a run's start and --fit compare them with the memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "llmc/plan/plan.h"
#include "llmc/run/inputs.h"

namespace llmc {

// The card to plan for, with what was measured of it.
struct PlannedCard {
    GpuSpec gpu;
    MeasuredRates measured = {};
};
// The one that --gpu names, or the one found.
std::optional<PlannedCard> card_to_plan_for(const Options& options);
PlannedRun run_of(const Options& options, const PlannedCard& card, int ranks);
// The memory for a rank's plan.
struct Room {
    size_t bytes = 0;
    size_t loaded = 0;       // bytes of the plan's libraries that are already in use
    size_t host = SIZE_MAX;  // host memory for what --offload moves there
    size_t needed(const StagePlan& plan) const { return plan.bytes() - std::min(plan.reserve, loaded); }
    bool holds(const StagePlan& plan) const { return needed(plan) <= bytes && plan.memory.offloaded <= host; }
};
// Plans a rank with this stage. -r auto chooses for this stage alone. A refusal is in StagePlan::refused.
StagePlan plan_stage(Options options, int ranks, int stage, const Room& room);
// Milliseconds of a step of all ranks. Call it only if no_prediction_because() returns "".
double predicted_ms(const PlannedRun& run, const StagePlan& plan);
// The length of the whole run; no steps if it has no end. `hours` is absent if there is no prediction.
RunLength length_of(const Options& options, const PlannedRun& run, const StagePlan& plan);

// Plans a rank of the run that the options describe, as its Trainer does. The ranks of `comm` need not exist. Throws if
// such a run is refused.
StagePlan plan_rank(const Options& options, const Comm& comm);

// The least time that a step of the planned rank takes on this rank's device, in seconds. It follows from the card's
// rates on a GPU, and from the number of threads on a CPU. Nothing for unknown GPUs.
std::optional<double> predicted_seconds(const Options& options, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device);

// Prints the plan of --dry-run or --estimate-scaling. `options` are `asked` resolved for --world ranks. Returns
// no_resources if the run of --dry-run does not fit.
struct AskedRun;
ExitCode plan_run(const AskedRun& asked, const Options& options, const Inputs& inputs);

}  // namespace llmc
