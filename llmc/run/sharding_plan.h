// The stages of --zero beside each other, for --dry-run: a rank's memory, what it sends in a step, how much of that
// hides behind compute on a card, and which stage to take.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/run/plan.h"
#include "llmc/run/wire.h"

namespace llmc {

// A rank of a run with this stage, as the code that would run it plans it.
struct StagePlan {
    int stage = 0;
    std::string refused;  // why there is no such run; "": there is
    MemoryByKind memory;
    WireSchedule wire;
};

// Milliseconds of a step.
struct StepPrediction {
    double compute = 0;                // every kernel at its best
    double wire = 0;                   // something travels
    double exposed = 0;                // and the model waits for it
    double hides_at = 0;               // as WireTime's
    double forward = 0, backward = 0;  // of the blocks, in a micro-step
    double step() const { return compute + exposed; }
};

// Why there is no ideal time for these inputs ("" if there is).
std::string no_prediction_because(const PlanInputs& inputs);
// inputs.zero and inputs.shard_ranks are the plan's.
StepPrediction predict_step(const ModelConfig& model, const PlanInputs& inputs, const StagePlan& plan);
// Whether the plan fits into the card's memory.
bool fits(const PlanInputs& inputs, const StagePlan& plan);

struct Recommendation {
    std::optional<int> stage;  // nothing: none can run
    std::string reason;
};
// Of the stages that fit, the lowest whose step takes at most 1 % longer than the shortest.
Recommendation recommend_stage(const ModelConfig& model, const PlanInputs& inputs,
                               const std::vector<StagePlan>& stages);

// The assumptions about links, in a sentence.
std::string describe_links(const GpuSpec& gpu, int ranks);
std::string describe_sharding(const ModelConfig& model, const PlanInputs& inputs, const std::vector<StagePlan>& stages);

}  // namespace llmc
