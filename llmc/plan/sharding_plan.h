// The stages of --zero beside each other, for --dry-run: a rank's memory, what it sends in a step, how long it would
// wait for that on a card's links, and which stage to take. Times are predicted.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llmc/linear/matmul.h"
#include "llmc/plan/plan.h"
#include "llmc/shard/layout.h"

namespace llmc {

// What a rank sends to others in a step, as Comm counts it; the mean, where some send and others do not. Sums of single
// values (loss, norm, amaxes: kilobytes) are left out.
struct Sent {
    struct Kind {
        double calls = 0, bytes = 0;
    };
    Kind weights, gradients;          // among ranks that share slices
    Kind between_groups;              // of gradients, where there are several such groups (--shard-within)
    Kind optimizer;                   // Muon's directions, among ranks that share slices
    double first = 0;                 // the part of all that is the embedding and the first block
    int group = 1, groups = 1;        // ranks that share slices; how many such groups
    bool exchanged = false;           // gradients go from every rank to every other, instead of round a ring
    int forwards = 0, backwards = 0;  // passes of a step in which something travels
    double bytes() const { return weights.bytes + gradients.bytes + between_groups.bytes + optimizer.bytes; }
};
// `element`: bytes of a working weight.
Sent sent_in_step(const ShardLayout& layout, int micro_steps, size_t element);

// A rank of a run with this stage, as the code that would run it plans it.
struct StagePlan {
    int stage = 0;
    std::string refused;  // why there is no such run; "": there is
    MemoryByKind memory;
    size_t reserve = 0;  // for libraries
    int slices = 1;      // of a unit
    Sent sent;
    std::map<Product, std::set<std::string>> products;  // of a micro-step, with the kinds of their layers
    size_t bytes() const { return memory.total() + reserve; }
};

// Milliseconds of a step: every kernel at its best, and what the model waits for others.
struct StepPrediction {
    double compute = 0, waits = 0;
    double step() const { return compute + waits; }
};
// What travels hides behind the blocks' compute in the same passes, but for the embedding and the first block, which
// come first and whose gradients leave last.
StepPrediction predict_step(const ModelConfig& model, const PlanInputs& inputs, const StagePlan& plan);
// Why there is no prediction for these inputs ("" if there is).
std::string no_prediction_because(const PlanInputs& inputs);

// Of the stages that run and fit, the lowest whose step takes at most 1 % longer than the shortest.
std::optional<int> recommend_stage(const ModelConfig& model, const PlanInputs& inputs,
                                   const std::vector<StagePlan>& stages);

std::string describe_sharding(const ModelConfig& model, const PlanInputs& inputs, const std::vector<StagePlan>& stages);

}  // namespace llmc
