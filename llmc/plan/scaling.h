// --estimate-scaling: what the plan predicts of the same run on 1 to 1024 GPUs, each with the same batch (weak
// scaling).
#pragma once
#include <functional>

#include "llmc/plan/sharding_plan.h"

namespace llmc {

struct ScalingPoint {
    int gpus = 1;
    double tokens_per_s = 0;
    double efficiency = 1;  // tokens a second and GPU, over those of one GPU alone
    StepPrediction step;
    StagePlan plan;
    bool fits = true;
};

// `plan(gpus)`: a rank of that run. `inputs` say the batch and micro-steps of a rank; their number of ranks does not
// matter. Throws Error(bad_flags) for a run whose step time is not known.
std::vector<ScalingPoint> estimate_scaling(const ModelConfig& model, PlanInputs inputs,
                                           const std::function<StagePlan(int)>& plan);

std::string describe_scaling(const ModelConfig& model, const PlanInputs& inputs,
                             const std::vector<ScalingPoint>& points);
// What scripts/plot_scaling.py draws.
std::string scaling_json(const ModelConfig& model, const PlanInputs& inputs, const std::vector<ScalingPoint>& points);

}  // namespace llmc
