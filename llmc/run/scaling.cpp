#include "llmc/run/scaling.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/device/error.h"
#include "llmc/run/text.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;

ScalingPoint point_of(const ModelConfig& model, PlanInputs in, int gpus, const StagePlan& plan) {
    if (!plan.refused.empty()) throw Error(ExitCode::bad_flags, plan.refused);
    in.total_batch = int64_t{in.batch} * in.seq * micro_steps(in) * gpus;
    in.ranks = gpus;
    in.zero = plan.stage;
    in.shard_ranks = plan.wire.shard_ranks;
    if (in.reserve > 0) in.reserve = memory_reserve(nccl_communicators(in.ranks, in.shard_ranks));
    ScalingPoint point;
    point.gpus = gpus;
    point.step = predict_step(model, in, plan);
    point.tokens_per_s = static_cast<double>(in.total_batch) / point.step.step() * 1e3;
    point.sent = plan.wire.total();
    point.memory = plan.memory.total() + in.reserve;
    point.fits = fits(in, plan);
    return point;
}

std::string point_row(const ScalingPoint& p) {
    return strprintf("  %5d %13s %10.1f %% %9.1f ms %8.1f ms %8.1f ms %10s %10s   %s\n", p.gpus,
                     with_commas(std::llround(p.tokens_per_s)).c_str(), 100 * p.efficiency, p.step.compute, p.step.wire,
                     p.step.exposed, format_bytes(static_cast<size_t>(p.sent.bytes())).c_str(),
                     format_bytes(p.memory).c_str(), p.fits ? "yes" : "NO");
}

std::string entry(const char* name, const std::string& text) {
    constexpr int kIndent = 14;
    return strprintf("  %-*s", kIndent - 2, name) + wrap(text, kIndent, 110) + "\n";
}

}  // namespace

std::vector<ScalingPoint> estimate_scaling(const ModelConfig& model, const PlanInputs& in,
                                           const std::function<StagePlan(int)>& plan) {
    if (const std::string why = no_prediction_because(in); !why.empty())
        throw Error(ExitCode::bad_flags, "--estimate-scaling: " + why);
    std::vector<ScalingPoint> points;
    for (int gpus = 1; gpus <= kMostGpus; gpus *= 2) {
        points.push_back(point_of(model, in, gpus, plan(gpus)));
        points.back().efficiency = points.back().tokens_per_s / gpus / points.front().tokens_per_s;
    }
    return points;
}

std::string describe_scaling(const ModelConfig& model, const PlanInputs& in, const std::vector<ScalingPoint>& points) {
    const int64_t times = micro_steps(in);
    const std::string within = in.shard_ranks > 0 ? strprintf(" --shard-within %d", in.shard_ranks) : "";
    std::string text = strprintf(
        "Predicted scaling of %s on %s, %s, --zero %d%s: nothing here is measured\n"
        "  Every GPU takes %d sequences x %d tokens x %lld micro-step%s a step, however many there are (weak "
        "scaling)\n",
        model.name.c_str(), card_name(in).c_str(), in.precision.c_str(), in.zero, within.c_str(), in.batch, in.seq,
        static_cast<long long>(times), times == 1 ? "" : "s");
    text += strprintf("  %5s %13s %12s %12s %11s %11s %10s %10s   %s\n", "GPUs", "tokens/s", "efficiency", "compute",
                      "wire", "waits", "sent", "memory", "fits");
    for (const ScalingPoint& point : points) text += point_row(point);
    const StepPrediction& one = points[0].step;
    text += entry("efficiency", std::string("tokens/s of each GPU, over those of one GPU alone") +
                                    (in.zero > 0 ? "; slices of the optimizer's work can lift it above 100 %" : ""));
    text += entry("compute", "ideal step time: every kernel alone at the best public rate (--dry-run shows the parts)");
    text += entry("wire", "time in which something travels. " + describe_links(*in.gpu, kMostGpus));
    text +=
        entry("waits", strprintf("the part of it that does not hide behind the blocks' compute, forward %.1f ms and "
                                 "backward %.1f ms a micro-step",
                                 one.forward, one.backward));
    text += entry("sent", "by each GPU to others in a step");
    text += entry("memory", strprintf("of each GPU; %s has %s", card_name(in).c_str(),
                                      format_bytes(available_memory(in)).c_str()));
    return text + "  Real kernels are slower: tokens/s is an upper bound, and slower kernels hide more.\n";
}

std::string scaling_json(const ModelConfig& model, const PlanInputs& in, const std::vector<ScalingPoint>& points) {
    const Interconnect net = interconnect_of(*in.gpu);
    ordered_json json = {
        {"predicted", true},
        {"model", {{"name", model.name}, {"parameters", model.parameters()}}},
        {"card", card_name(in)},
        {"precision", in.precision},
        {"zero", in.zero},
        {"shard_within", in.shard_ranks},
        {"batch", in.batch},
        {"seq", in.seq},
        {"micro_steps", micro_steps(in)},
        {"link_bytes_per_s", net.link},
        {"nic_bytes_per_s", net.nic},
        {"node_gpus", net.node_gpus},
        {"block_forward_ms", points[0].step.forward},
        {"block_backward_ms", points[0].step.backward},
        {"points", ordered_json::array()},
    };
    for (const ScalingPoint& p : points)
        json["points"].push_back({{"gpus", p.gpus},
                                  {"tokens_per_s", p.tokens_per_s},
                                  {"efficiency", p.efficiency},
                                  {"compute_ms", p.step.compute},
                                  {"wire_ms", p.step.wire},
                                  {"exposed_ms", p.step.exposed},
                                  {"sent_weights", p.sent.weights.bytes + p.sent.pieces.bytes},
                                  {"sent_gradients", p.sent.bytes() - p.sent.weights.bytes - p.sent.pieces.bytes},
                                  {"memory_bytes", p.memory},
                                  {"fits", p.fits}});
    return json.dump(2) + "\n";
}

}  // namespace llmc
