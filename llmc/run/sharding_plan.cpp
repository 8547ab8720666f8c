#include "llmc/run/sharding_plan.h"

#include <algorithm>
#include <cmath>

#include "llmc/device/error.h"
#include "llmc/run/text.h"

namespace llmc {
namespace {

constexpr double kAsGood = 1.01;              // steps so much longer count as equal
constexpr size_t kWidth = 110, kIndent = 11;  // of the explanations

PlanInputs with_stage(PlanInputs in, const StagePlan& plan) {
    in.zero = plan.stage;
    in.shard_ranks = plan.wire.shard_ranks;
    return in;
}

// in.reserve with the communicators of this stage.
size_t reserve_of(const PlanInputs& in, const StagePlan& plan) {
    return in.reserve > 0 ? memory_reserve(nccl_communicators(in.ranks, plan.wire.shard_ranks)) : 0;
}

std::string bytes(double n) { return format_bytes(static_cast<size_t>(std::llround(n))); }
std::string ms(double time) {
    return time < 9999.5 ? strprintf("%.*f ms", time < 99.95 ? 1 : 0, time) : strprintf("%.1f s", time / 1e3);
}

std::string hidden_from(const StepPrediction& p, int64_t tokens) {
    if (p.hides_at == 0) return "-";
    return with_commas(std::llround(std::ceil(p.hides_at * static_cast<double>(tokens))));
}

std::string stage_row(const ModelConfig& model, const PlanInputs& in, const StagePlan& plan, bool recommended) {
    std::string text = strprintf("  %-6d", plan.stage);
    if (!plan.refused.empty()) return text + "   " + wrap(plan.refused, kIndent, kWidth) + "\n";
    const MemoryByKind& m = plan.memory;
    for (const size_t part : {m.weights, m.gradients, m.optimizer, m.total() + reserve_of(in, plan)})
        text += strprintf(" %10s", format_bytes(part).c_str());
    text += strprintf(" %10s", bytes(plan.wire.total().bytes()).c_str());
    const bool known = no_prediction_because(in).empty();
    if (known) {
        const StepPrediction p = predict_step(model, with_stage(in, plan), plan);
        text += strprintf(" %7s %7s %7s %9s", ms(p.wire).c_str(), ms(p.exposed).c_str(), ms(p.step()).c_str(),
                          hidden_from(p, int64_t{in.batch} * in.seq).c_str());
    } else if (in.gpu) {
        const double seconds = wire_seconds(plan.wire.total(), plan.wire, interconnect_of(*in.gpu));
        text += strprintf(" %7s %7s %7s %9s", ms(1e3 * seconds).c_str(), "?", "?", "?");
    }
    std::string notes;
    const auto note = [&](const char* words) { notes += (notes.empty() ? "  " : ", ") + std::string(words); };
    if (!fits(in, plan)) note("does not fit");
    if (recommended) note("recommended");
    if (plan.stage == in.zero) note("this run");
    return text + notes + "\n";
}

std::string entry(const char* name, const std::string& text) {
    return strprintf("  %-*s", static_cast<int>(kIndent) - 2, name) + wrap(text, kIndent, kWidth) + "\n";
}

// What the columns of the table mean.
std::string legend(const ModelConfig& model, const PlanInputs& in, const StagePlan& plan) {
    const WireSchedule& wire = plan.wire;
    const int times = wire.layout.micro_steps;
    std::string what = wire.layout.element == 4 ? "FP32" : wire.fp8_weights ? "FP8 (the rest as BF16)" : "BF16";
    what = wire.total().weights.bytes > 0 ? "weights as " + what + ", gradients as " : "gradients as ";
    what += wire.gradients_as == Wire::bf16 ? "BF16" : "FP32";
    std::string text = entry("total", strprintf("with activations and workspace, %s in every stage%s",
                                                format_bytes(plan.memory.activations + plan.memory.workspace).c_str(),
                                                in.reserve > 0 ? ", and what is left to libraries" : ""));
    text += entry("sent", strprintf("to other ranks in a step of %d micro-step%s: %s", times, times == 1 ? "" : "s",
                                    what.c_str()));
    if (!in.gpu) return text;
    text += entry("wire", "time of that. " + describe_links(*in.gpu, in.ranks));
    if (const std::string why = no_prediction_because(in); !why.empty())
        return text + entry("waits", "not known: " + why);
    const StepPrediction p = predict_step(model, with_stage(in, plan), plan);
    text +=
        entry("waits", strprintf("the part of it that does not hide behind the blocks' ideal %s time, forward %s and "
                                 "backward %s a micro-step. The embedding and the first block have nothing to hide "
                                 "behind",
                                 in.precision.c_str(), ms(p.forward).c_str(), ms(p.backward).c_str()));
    text += entry("step", "ideal " + in.precision + " time and waits: real kernels are slower");
    return text + entry("hides", strprintf("from so many tokens a micro-step on everything else is hidden; now -b %d x "
                                           "-t %d = %s",
                                           in.batch, in.seq, with_commas(int64_t{in.batch} * in.seq).c_str()));
}

std::string header(const PlanInputs& in) {
    std::string text =
        strprintf("  %-6s %10s %10s %10s %10s %10s", "--zero", "weights", "gradients", "optimizer", "total", "sent");
    if (in.gpu) text += strprintf(" %7s %7s %7s %9s", "wire", "waits", "step", "hides");
    return text + "\n";
}

}  // namespace

std::string no_prediction_because(const PlanInputs& in) {
    if (!in.gpu) return "name a card with --gpu";
    if (in.precision == "fp32") return "ideal times are known for bf16 and fp8 alone";
    if (in.precision == "fp8" && in.gpu->fp8_tflops == 0) return card_name(in) + " has no FP8: use --precision bf16";
    return "";
}

StepPrediction predict_step(const ModelConfig& model, const PlanInputs& in, const StagePlan& plan) {
    const StepTime ideal = ideal_step_time(model, in, *in.gpu, in.precision);
    const double times = static_cast<double>(micro_steps(in));
    StepPrediction p;
    p.compute = ideal.total();
    p.forward = ideal.blocks_forward / times;
    p.backward = ideal.blocks_backward / times;
    const WireTime wire = wire_time(plan.wire, interconnect_of(*in.gpu), p.forward / 1e3, p.backward / 1e3);
    p.wire = 1e3 * wire.total;
    p.exposed = 1e3 * wire.exposed;
    p.hides_at = wire.hides_at;
    return p;
}

bool fits(const PlanInputs& in, const StagePlan& plan) {
    const size_t available = available_memory(in);
    return available == 0 || plan.memory.total() + reserve_of(in, plan) <= available;
}

Recommendation recommend_stage(const ModelConfig& model, const PlanInputs& in, const std::vector<StagePlan>& stages) {
    std::vector<const StagePlan*> possible;
    for (const StagePlan& plan : stages)
        if (plan.refused.empty() && fits(in, plan)) possible.push_back(&plan);
    if (possible.empty()) return {{}, "no stage fits: use a smaller -b, more recomputation (-r block) or more ranks"};
    const StagePlan& lowest = *possible.front();
    if (possible.size() == 1) return {lowest.stage, "no other stage runs and fits"};
    if (!no_prediction_because(in).empty()) return {lowest.stage, "the lowest that fits; times are not known"};
    std::vector<StepPrediction> steps;
    double best = INFINITY;
    for (const StagePlan* plan : possible) {
        steps.push_back(predict_step(model, with_stage(in, *plan), *plan));
        best = std::min(best, steps.back().step());
    }
    size_t chosen = 0;
    while (steps[chosen].step() > kAsGood * best) chosen++;
    const auto of = [&](size_t i) { return ms(steps[i].step()) + " a step"; };
    std::string reason =
        chosen == 0 ? "the lowest stage that fits, and none is faster"
                    : "fits, and takes " + of(chosen) + ", --zero " + std::to_string(lowest.stage) + " " + of(0);
    reason += strprintf("; %s of it waiting", ms(steps[chosen].exposed).c_str());
    return {possible[chosen]->stage, reason};
}

std::string describe_links(const GpuSpec& gpu, int ranks) {
    const Interconnect net = interconnect_of(gpu);
    std::string text = strprintf("%s at %.0f GB/s a direction (%.0f %% of %.0f)", net.nvlink ? "NVLink" : "PCIe",
                                 net.link / 1e9, net.link / gpu.link_gbs / 1e7, gpu.link_gbs);
    if (ranks > net.node_gpus)
        text += strprintf(" in nodes of %d GPUs; between nodes a NIC of 400 Gb/s (%.0f GB/s) for every GPU",
                          net.node_gpus, net.nic / 1e9);
    return text + "; latencies of NCCL's own model of a ring. Assumed, not measured";
}

std::string describe_sharding(const ModelConfig& model, const PlanInputs& in, const std::vector<StagePlan>& stages) {
    const Recommendation advice = recommend_stage(model, in, stages);
    std::string text = strprintf("Sharding: each of %d ranks, stage by stage", in.ranks);
    if (in.shard_ranks > 0) text += strprintf(", in groups of %d", in.shard_ranks);
    text += "\n" + header(in);
    const StagePlan* shown = nullptr;
    for (const StagePlan& plan : stages) {
        text += stage_row(model, in, plan, plan.stage == advice.stage);
        if (plan.refused.empty()) shown = &plan;
    }
    if (shown) text += legend(model, in, *shown);
    const std::string advised = advice.stage ? strprintf("Recommended: --zero %d: ", *advice.stage) : "";
    return text + "  " + wrap(advised + advice.reason, 4, kWidth) + "\n";
}

}  // namespace llmc
