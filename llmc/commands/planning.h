// Planning a run before it starts: plans of its ranks, which --dry-run and --estimate-scaling print and a run's start
// compares with the memory, and changes that make a run fit. --dry-run and the refusal of a run list such changes, and
// --fit makes the first one.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/flags/options.h"
#include "llmc/plan/plan.h"

namespace llmc {

struct Inputs;
struct Ranks;

// ---- plans of ranks (rank_plans.cpp) --------------------------------------------------------------------------------
// The memory that ranks would need and the time they would take. The ranks need not exist, and no GPU is needed.

// A run as its user asked for it: flags without the defaults of resolve(), and the surroundings that decide these.
struct AskedRun {
    Options flags;
    ResolveInputs surroundings;
    // Resolves the run as if its user had also given `flags` ("-b 8 -r block") and had started this many ranks. Throws
    // if resolve() refuses it.
    Options with(const std::string& flags, int ranks) const;
};

// The card to plan for, with its measured rates.
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
// Plans a rank with this stage. -r auto chooses only for this stage. A refusal is in StagePlan::refused.
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
ExitCode plan_run(const AskedRun& asked, const Options& options, const Inputs& inputs);

// ---- changes that make a run fit into memory (fit.cpp) --------------------------------------------------------------

// A run without -r auto and --offload auto, and its plan.
struct AutomaticChoice {
    Options options;
    StagePlan plan;
    bool fits = false;
};
// Replaces -r auto by the least recomputation with which the run fits, or by block if it fits with none. A note names
// the level if it costs time. --offload auto does the same first: it leaves memory on the card if some level fits.
// Every choice gives the same bits.
AutomaticChoice choose_automatic(const Options& options, const std::function<StagePlan(const Options&)>& plan_of,
                                 const std::function<bool(const StagePlan&)>& fits);

// Flags with which a run fits.
struct Change {
    std::string flags;  // "-b 8 -d 65536 -r block"; "--world 4 -z 3" for a run on more ranks
    int ranks = 1;
    size_t bytes = 0;                 // that a rank needs, as Room counts them
    std::optional<double> step_ms;    // predicted; absent if unknown
    double tokens_per_s = 0;          // all ranks together; 0 if unknown
    std::optional<double> run_hours;  // predicted, if the run has a length
};

// Finds the changes with which a rank fits into the room. A change is listed only if it is more than 1 % faster than
// every change with only some of its flags. The order is by predicted tokens per second. Among changes within 1 %,
// those come first that leave the optimizer's state and the precision alone. Runs on more ranks come last.
// --precision bf16 is tried only if no other flag helps on these ranks.
std::vector<Change> changes_that_fit(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                                     const std::optional<PlannedCard>& card);
// A table of the changes of a run on `ranks` ranks, or a sentence that says that nothing fits.
std::string describe_changes(const std::vector<Change>& changes, int ranks);

// Refuses a run that does not fit on some rank, and lists what would fit on standard output. With --fit it returns the
// run with the first change that needs no more ranks. A collective; all ranks return the same options.
Options fit_into_memory(const AskedRun& asked, const Options& options, const Ranks& ranks);
// The same for a plan. Returns `options` if they fit, or if nothing makes them fit.
Options fit_plan(const AskedRun& asked, const Options& options, int ranks, const Room& room,
                 const std::optional<PlannedCard>& card);

}  // namespace llmc
