// Finds changes that make a run fit into memory. --dry-run and the refusal of a real run list them, and --fit makes the
// first one.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/commands/rank_plans.h"
#include "llmc/run/ranks.h"

namespace llmc {

// A run as its user asked for it: flags without the defaults of resolve(), and the surroundings that decide these.
struct AskedRun {
    Options flags;
    ResolveInputs surroundings;
    // Resolves the run as if its user had also given `flags` ("-b 8 -r block") and had started this many ranks. Throws
    // if resolve() refuses it.
    Options with(const std::string& flags, int ranks) const;
};

// A run without -r auto and --offload auto, and its plan.
struct AutomaticChoice {
    Options options;
    StagePlan plan;
    bool fits = false;
};
// Replaces -r auto by the least recomputation with which the run fits, or by block if it fits with none. A note names
// the level if it costs time. --offload auto does the same first: it leaves memory on the card if some level fits.
// Every choice gives the same bits.
AutomaticChoice choose_automatic(Options options, const std::function<StagePlan(const Options&)>& plan_of,
                                 const std::function<bool(const StagePlan&)>& fits);

// ---- changes that fit ----------------------------------------------------------------------------------------------

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
// each listed change with fewer flags. The order is by predicted tokens per second. Among changes within 1 %,
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
