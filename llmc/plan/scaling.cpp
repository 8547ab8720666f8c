#include "llmc/plan/scaling.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"

namespace llmc {

std::vector<ScalingPoint> estimate_scaling(const ModelConfig& model, PlanInputs in,
                                           const std::function<StagePlan(int)>& plan) {
    if (const std::string why = no_prediction_because(in); !why.empty())
        throw Error(ExitCode::bad_flags, "--estimate-scaling: " + why);
    std::vector<ScalingPoint> points;
    for (in.ranks = 1; in.ranks <= 1024; in.ranks *= 2) {
        ScalingPoint p;
        p.gpus = in.ranks;
        p.plan = plan(in.ranks);
        if (!p.plan.refused.empty()) throw Error(ExitCode::bad_flags, p.plan.refused);
        p.step = predict_step(model, in, p.plan);
        p.tokens_per_s = static_cast<double>(in.tokens()) / p.step.step() * 1e3;
        p.efficiency = points.empty() ? 1 : p.tokens_per_s / p.gpus / points.front().tokens_per_s;
        p.fits = p.plan.bytes() <= in.available();
        points.push_back(p);
    }
    return points;
}

std::string describe_scaling(const ModelConfig& model, const PlanInputs& in, const std::vector<ScalingPoint>& points) {
    const std::string within = in.shard_within > 0 ? strprintf(" --shard-within %d", in.shard_within) : "";
    std::string text = strprintf(
        "Predicted scaling of %s on %s, %s, --zero %d%s: %s\n"
        "  Every GPU takes %s x %d tokens x %s per step, however many there are (weak scaling)\n",
        model.name.c_str(), in.gpu.match.c_str(), in.precision.c_str(), in.zero, within.c_str(),
        in.measured.rates.empty() ? "nothing here is measured" : "from rates that were measured",
        plural(in.batch, "sequence").c_str(), in.seq, plural(in.micro_steps, "micro-step").c_str());
    text += strprintf("  %5s %13s %12s %12s %11s %10s %10s   %s\n", "GPUs", "tokens/s", "efficiency", "compute",
                      "waits", "sent", "memory", "fits");
    for (const ScalingPoint& p : points)
        text += strprintf("  %5d %13s %10.1f %% %9.1f ms %8.1f ms %10s %10s   %s\n", p.gpus,
                          with_commas(std::llround(p.tokens_per_s)).c_str(), 100 * p.efficiency, p.step.compute,
                          p.step.waits, format_bytes(static_cast<size_t>(p.plan.sent.bytes())).c_str(),
                          format_bytes(p.plan.bytes()).c_str(), p.fits ? "yes" : "NO");
    const std::string notes =
        "efficiency: tokens/s of each GPU, over those of one GPU alone" +
        std::string(in.zero > 0 ? "; slices of the optimizer's work can lift it above 100 %" : "") +
        ". compute: the predicted step time of --dry-run. waits: for other ranks, not hidden behind the blocks' "
        "compute. sent: by each GPU per step. " +
        describe_rates(in.measured, in.gpu.fp8_tflops > 0) + " " + describe_links(in.gpu, in.measured) +
        ". Real kernels are slower: tokens/s is an upper bound, and slower kernels hide more";
    return text + "  " + wrap(notes, 2, 110) + "\n";
}

std::string scaling_json(const ModelConfig& model, const PlanInputs& in, const std::vector<ScalingPoint>& points) {
    nlohmann::ordered_json json = {
        {"predicted", true},
        {"model", {{"name", model.name}, {"parameters", model.parameters()}}},
        {"card", in.gpu.match},
        {"precision", in.precision},
        {"zero", in.zero},
        {"shard_within", in.shard_within},
        {"batch", in.batch},
        {"seq", in.seq},
        {"micro_steps", in.micro_steps},
        {"link_bytes_per_s", CardRates(in.gpu, in.measured).all_gather_gbs * 1e9},
        {"nic_bytes_per_s", kNicRate},
        {"node_gpus", kNodeGpus},
        {"points", nlohmann::ordered_json::array()},
    };
    for (const ScalingPoint& p : points)
        json["points"].push_back({{"gpus", p.gpus},
                                  {"tokens_per_s", p.tokens_per_s},
                                  {"efficiency", p.efficiency},
                                  {"compute_ms", p.step.compute},
                                  {"exposed_ms", p.step.waits},
                                  {"memory_bytes", p.plan.bytes()},
                                  {"fits", p.fits}});
    return json_text(json, 2) + "\n";
}

}  // namespace llmc
