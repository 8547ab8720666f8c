#include "llmc/plan/sharding_plan.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {
namespace {

// The lowest latencies of NCCL's own model of a ring, seconds: of a call, and of a step over each link (LL in tuning.cc
// of 2.28).
constexpr double kCallLatency = 6.6e-6, kNvlinkLatency = 0.6e-6, kPcieLatency = 1.0e-6, kNetLatency = 2.7e-6;

constexpr double kAsGood = 1.01;  // steps so much longer count as equal

// Milliseconds of collectives among `size` ranks, `per_node` of them in a node, whose links have this rate. Round a
// ring every byte comes into a node once, through all its NICs; exchanged, every rank's bytes leave through its own.
double milliseconds(const Sent::Kind& sent, int size, int per_node, bool exchanged, Link link, double gbs) {
    if (size == 1) return 0;
    const int nodes = (size + per_node - 1) / per_node;
    const double in_node = link == Link::nvlink ? kNvlinkLatency : kPcieLatency;
    const double steps = (size - nodes) * in_node + (nodes - 1) * kNetLatency;
    const double latency = exchanged ? std::max(in_node, nodes > 1 ? kNetLatency : 0) : steps;
    const double rate = nodes == 1 ? gbs * 1e9 : std::min(gbs * 1e9, (exchanged ? 1 : per_node) * kNicRate);
    return 1e3 * (sent.calls * (kCallLatency + latency) + sent.bytes / rate);
}

// Of so many elements that go to one rank.
double wire_bytes(size_t count, Wire wire) {
    if (wire == Wire::fp8) return static_cast<double>(Fp8Piece{count}.bytes());
    return static_cast<double>(count) * (wire == Wire::bf16 ? sizeof(bf16) : sizeof(float));
}

std::string stage_row(const ModelConfig& model, const PlanInputs& in, const StagePlan& plan, bool advised) {
    std::string text = strprintf("  %-6d", plan.stage);
    if (!plan.refused.empty()) return text + "   " + wrap(plan.refused, 11, 110) + "\n";
    const MemoryByKind& m = plan.memory;
    const size_t sent = static_cast<size_t>(std::llround(plan.sent.bytes()));
    for (const size_t part : {m.weights, m.gradients, m.optimizer, plan.bytes(), sent})
        text += strprintf(" %10s", format_bytes(part).c_str());
    if (no_prediction_because(in).empty()) {
        const StepPrediction p = predict_step(model, in, plan);
        text += strprintf(" %8.1f ms %8.1f ms", p.waits, p.step());
    }
    if (plan.bytes() > in.available()) text += "  does not fit";
    if (advised) text += "  recommended";
    if (plan.stage == in.zero) text += "  this run";
    return text + "\n";
}

}  // namespace

Sent sent_in_step(const ShardLayout& layout, int micro_steps, size_t element) {
    Sent sent;
    if (layout.comm().world() == 1) return sent;
    const ParameterTable& table = layout.table();
    const Sharding& sharding = layout.sharding();
    const size_t blocks = layout.units() - 2;  // units: embedding, blocks from 1 on, final norm
    const double groups = static_cast<double>(layout.groups()), others = static_cast<double>(layout.group_size()) - 1;
    sent.group = static_cast<int>(layout.group_size());
    sent.groups = static_cast<int>(layout.groups());
    sent.exchanged = sharding.wire != Wire::fp32 || layout.comm().reduce_order() == ReduceOrder::rank;
    sent.first = static_cast<double>(table.unit(0).count + table.unit(1).count) / static_cast<double>(table.count());
    sent.forwards = layout.stage() == 3 ? micro_steps : layout.is_sliced();
    sent.backwards = layout.accumulates() ? 1 : micro_steps;
    const auto add = [](Sent::Kind& kind, double calls, double bytes) {
        kind.calls += calls, kind.bytes += calls * bytes;
    };
    for (size_t u = 0; u < layout.units(); u++) {
        const double slice = static_cast<double>(layout.summed(u).count), share = (groups - 1) / groups * slice;
        double fp8 = 0;  // of the slice: then all of it travels as codes, and what is not FP8 as a working copy too
        for (const ParameterTensor& tensor : table.unit(u).tensors)
            if (tensor.codes == CodesFrom::masters) fp8 += static_cast<double>(tensor.count()) / (others + 1);
        // Stage 3 keeps the two blocks at which the model turns round, the embedding and the final norm.
        int gathers = layout.is_sliced();
        if (layout.stage() == 3 && u > 2 && u <= blocks) gathers += micro_steps - 1;
        if (layout.stage() == 3 && u > 0 && u + 1 < blocks) gathers += micro_steps;
        add(sent.weights, gathers, others * ((fp8 > 0 ? slice : 0) + (slice - fp8) * static_cast<double>(element)));
        add(sent.gradients, sent.backwards, others * wire_bytes(layout.summed(u).count, sharding.wire));
        if (!layout.is_sliced()) add(sent.gradients, 1, others * slice * sizeof(float));
        if (groups == 1) continue;
        add(sent.between_groups, 1, share * wire_bytes(1, layout.wire_between_groups()));
        add(sent.between_groups, 1, share * sizeof(float));
    }
    return sent;
}

StepPrediction predict_step(const ModelConfig& model, const PlanInputs& in, const StagePlan& plan) {
    const StepTime ideal = ideal_step_time(model, in, in.precision, plan.slices);
    const Sent& sent = plan.sent;
    const int in_node = std::min(sent.group, kNodeGpus), of_groups = std::clamp(kNodeGpus / sent.group, 1, sent.groups);
    const CardRates card(in.gpu, in.measured);
    const double gathers = card.all_gather_gbs, reduces = card.reduce_scatter_gbs;
    const double weights = milliseconds(sent.weights, sent.group, in_node, false, in.gpu.link, gathers);
    const double gradients =
        milliseconds(sent.gradients, sent.group, in_node, sent.exchanged, in.gpu.link, reduces) +
        milliseconds(sent.between_groups, sent.groups, of_groups, sent.exchanged, in.gpu.link, reduces);
    const int passes = plan.stage == 3 ? sent.forwards + sent.backwards : 1;  // in which weights are gathered
    const double alone = sent.first * (weights / passes + gradients);
    const double compute =
        (sent.forwards * ideal.blocks_forward + sent.backwards * ideal.blocks_backward) / in.micro_steps;
    // Nothing hides the optimizer's.
    const double directions = milliseconds(sent.optimizer, sent.group, in_node, true, in.gpu.link, gathers);
    return {ideal.total(), directions + alone + std::max(0.0, weights + gradients - alone - compute)};
}

std::string no_prediction_because(const PlanInputs& in) {
    if (in.precision == "fp32") return "step times are known for bf16 and fp8 alone";
    if (in.precision == "fp8" && in.gpu.fp8_tflops == 0) return in.gpu.match + " has no FP8: use --precision bf16";
    return "";
}

std::optional<int> recommend_stage(const ModelConfig& model, const PlanInputs& in,
                                   const std::vector<StagePlan>& stages) {
    const bool known = no_prediction_because(in).empty();
    std::optional<int> stage;
    double shortest = INFINITY;
    for (const StagePlan& plan : stages) {
        if (!plan.refused.empty() || plan.bytes() > in.available()) continue;
        const double step = known ? predict_step(model, in, plan).step() : 0;
        if (stage && kAsGood * step >= shortest) continue;
        stage = plan.stage;
        shortest = step;
    }
    return stage;
}

std::string describe_sharding(const ModelConfig& model, const PlanInputs& in, const std::vector<StagePlan>& stages) {
    const std::optional<int> advised = recommend_stage(model, in, stages);
    const std::string why = no_prediction_because(in);
    std::string text = strprintf("Sharding: each of %d ranks, stage by stage\n  %-6s %10s %10s %10s %10s %10s",
                                 in.ranks, "--zero", "weights", "gradients", "optimizer", "total", "sent");
    text += why.empty() ? strprintf(" %11s %11s\n", "waits", "step") : "\n";
    for (const StagePlan& plan : stages) text += stage_row(model, in, plan, plan.stage == advised);
    if (!advised) text += "  no stage fits: use a smaller -b, more recomputation (-r block) or more ranks\n";
    const std::string notes = why.empty() ? "sent: to other ranks per step. waits: predicted, not hidden behind the "
                                            "blocks' compute. step: the predicted step time and waits. " +
                                                describe_links(in.gpu, in.measured)
                                          : "sent: to other ranks per step. No times: " + why;
    return text + "  " + wrap(notes, 2, 110) + "\n";
}

}  // namespace llmc
