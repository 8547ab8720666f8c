// The ZeRO stages compared: what each sends and waits for, which one to take, and how the run scales over GPUs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "llmc/base/json.h"
#include "llmc/plan/plan.h"

namespace llmc {

// Latencies in seconds, of a call and of a step over each link: the lowest ones in NCCL's own model of a ring (LL in
// tuning.cc of 2.28).
constexpr double kCallLatency = 6.6e-6, kNvlinkLatency = 0.6e-6, kPcieLatency = 1.0e-6, kNetLatency = 2.7e-6;

// Multiprocessors that NCCL's kernels hold while a collective runs: a ring over NVLink without registered buffers has
// 16 to 24 (published), and one over PCIe few (assumed). Kernels that run meanwhile take longer by a factor of their
// kind. Ours take their work by tickets, or have far more blocks than multiprocessors, and use the rest: 132 / 108 with
// 24 held (dev/notes/work_by_tickets.md: 1.23, simulated). cuBLASLt's matmuls have one block per multiprocessor and
// divide the tiles beforehand, so blocks without a multiprocessor start when others have ended (published,
// pytorch#143988; not measured here).
constexpr double kSlowedMatmul = 2;
constexpr double kNvlinkMultiprocessors = 24, kPcieMultiprocessors = 4;

constexpr double kAsGood = 1.01;  // a step that is up to 1 % longer counts as equal

// Milliseconds of collectives among `size` ranks, `per_node` of them in a node, with links of this rate. On a ring
// every byte enters a node once, through all its NICs. If ranks exchange, each rank's bytes leave through its own NIC.
static double milliseconds(const Sent::Kind& sent, int size, int per_node, bool exchanged, Link link, double gbs) {
    if (size == 1) return 0;
    const int nodes = (size + per_node - 1) / per_node;
    const double in_node = link == Link::nvlink ? kNvlinkLatency : kPcieLatency;
    const double steps = (size - nodes) * in_node + (nodes - 1) * kNetLatency;
    const double latency = exchanged ? std::max(in_node, nodes > 1 ? kNetLatency : 0) : steps;
    const double rate = nodes == 1 ? gbs * 1e9 : std::min(gbs * 1e9, (exchanged ? 1 : per_node) * kNicRate);
    return 1e3 * (sent.calls * (kCallLatency + latency) + sent.bytes / rate);
}

// Bytes of `count` elements that go to one rank.
static double wire_bytes(size_t count, Wire wire) {
    if (wire == Wire::fp8) return static_cast<double>(Fp8Piece{count}.bytes());
    return static_cast<double>(count) * (wire == Wire::bf16 ? sizeof(bf16) : sizeof(float));
}

// "  -r norm", if -r auto chose another level for this plan than for the run. Where it has not chosen, it means none.
static std::string other_level(const PlannedRun& run, const StagePlan& plan) {
    return plan.recompute == std::max(run.config.recompute, Recompute::none)
               ? ""
               : fmt::format("  -r {}", word_of(plan.recompute));
}

static std::string stage_row(const PlannedRun& run, const StagePlan& plan, bool advised) {
    std::string text = fmt::format("  {:<6}", plan.stage);
    if (!plan.refused.empty()) return text + "   " + wrap(plan.refused, 11, 110) + "\n";
    const MemoryByKind& m = plan.memory;
    const size_t sent = static_cast<size_t>(std::llround(plan.sent.bytes()));
    for (const size_t part : {m.weights, m.gradients, m.optimizer, plan.bytes(), sent})
        text += fmt::format(" {:>10}", format_bytes(part));
    if (no_prediction_because(run).empty()) {
        const StepPrediction p = predict_step(run, plan);
        text += fmt::format(" {:>8.1f} ms {:>8.1f} ms", p.waits, p.step());
    }
    if (plan.bytes() > run.available()) text += "  does not fit";
    if (advised) text += "  recommended";
    if (plan.stage == run.config.sharding.stage) text += "  this run";
    return text + other_level(run, plan) + "\n";
}

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
        // Elements of the slice that are in FP8. If there are any, the slice is sent as codes, and the rest as copies
        // too.
        double fp8 = 0;
        for (const ParameterTensor& tensor : table.unit(u).tensors)
            if (tensor.codes == CodesFrom::masters) fp8 += static_cast<double>(tensor.count()) / (others + 1);
        // Stage 3 keeps the last two blocks between forward and backward, and embedding and final norm throughout.
        int gathers = layout.is_sliced();
        if (layout.stage() == 3 && u > 2 && u <= blocks) gathers += micro_steps - 1;
        if (layout.stage() == 3 && u > 0 && u + 1 < blocks) gathers += micro_steps;
        add(sent.weights, gathers, others * ((fp8 > 0 ? slice : 0) + (slice - fp8) * static_cast<double>(element)));
        add(sent.gradients, sent.backwards, others * wire_bytes(layout.summed(u).count, sharding.wire));
        if (!layout.is_sliced())
            add(sent.gradients, 1, others * slice * static_cast<double>(bytes_of(sharding.gradients)));
        if (groups == 1) continue;
        add(sent.between_groups, 1, share * wire_bytes(1, layout.wire_between_groups()));
        add(sent.between_groups, 1, share * sizeof(float));
    }
    return sent;
}

StepPrediction predict_step(PlannedRun run, const StagePlan& plan) {
    run.config.recompute = plan.recompute;
    const StepTime kernels = step_time(run, run.config.precision, plan.slices);
    const Sent& sent = plan.sent;
    const int in_node = std::min(sent.group, kNodeGpus), of_groups = std::clamp(kNodeGpus / sent.group, 1, sent.groups);
    const CardRates card(run.gpu, run.measured);
    const double gathers = card.all_gather_gbs, reduces = card.reduce_scatter_gbs;
    const double weights = milliseconds(sent.weights, sent.group, in_node, false, run.gpu.link, gathers);
    const double gradients =
        milliseconds(sent.gradients, sent.group, in_node, sent.exchanged, run.gpu.link, reduces) +
        milliseconds(sent.between_groups, sent.groups, of_groups, sent.exchanged, run.gpu.link, reduces);
    const int passes = plan.stage == 3 ? sent.forwards + sent.backwards : 1;  // in which weights are gathered
    const double alone = sent.first * (weights / passes + gradients);
    const double compute =
        (sent.forwards * kernels.blocks_forward + sent.backwards * kernels.blocks_backward) / run.config.micro_steps;
    const double overlapped = std::min(weights + gradients - alone, compute);
    const double held = run.gpu.link == Link::nvlink ? kNvlinkMultiprocessors : kPcieMultiprocessors;
    const double matmuls = kernels.blocks_static / (kernels.blocks_forward + kernels.blocks_backward);
    const double slowed_others = run.gpu.multiprocessors / (run.gpu.multiprocessors - held);
    const double slowed = overlapped * (matmuls * kSlowedMatmul + (1 - matmuls) * slowed_others - 1);
    // Muon's exchange runs in the compute stream, so nothing overlaps it.
    const double directions = milliseconds(sent.optimizer, sent.group, in_node, true, run.gpu.link, gathers);
    return {kernels.total(), directions + alone + slowed + weights + gradients - alone - overlapped};
}

std::string no_prediction_because(const PlannedRun& run) {
    if (run.config.precision == Precision::fp32) return "step times are known for bf16 and fp8 alone";
    if (run.config.precision == Precision::fp8 && run.gpu.fp8_tflops == 0)
        return run.gpu.match + " has no FP8: use --precision bf16";
    return "";
}

std::optional<int> recommend_stage(const PlannedRun& run, const std::vector<StagePlan>& stages) {
    const bool known = no_prediction_because(run).empty();
    std::optional<int> stage;
    double shortest = INFINITY;
    for (const StagePlan& plan : stages) {
        if (!plan.refused.empty() || plan.bytes() > run.available()) continue;
        const double step = known ? predict_step(run, plan).step() : 0;
        if (stage && kAsGood * step >= shortest) continue;
        stage = plan.stage;
        shortest = step;
    }
    return stage;
}

std::string describe_sharding(const PlannedRun& run, const std::vector<StagePlan>& stages) {
    const std::optional<int> advised = recommend_stage(run, stages);
    const std::string why = no_prediction_because(run);
    std::string text =
        fmt::format("Sharding: each of {} ranks, stage by stage\n  {:6} {:>10} {:>10} {:>10} {:>10} {:>10}", run.ranks,
                    "--zero", "weights", "gradients", "optimizer", "total", "sent");
    text += why.empty() ? fmt::format(" {:>11} {:>11}\n", "waits", "step") : "\n";
    for (const StagePlan& plan : stages) text += stage_row(run, plan, plan.stage == advised);
    if (!advised) text += "  no stage fits: use a smaller -b, -r auto or more ranks\n";
    const std::string notes = why.empty() ? "sent: to other ranks per step. waits: predicted, for other ranks and for "
                                            "multiprocessors that NCCL holds. step: the predicted step time and "
                                            "waits. " +
                                                describe_links(run.gpu, run.measured)
                                          : "sent: to other ranks per step. No times: " + why;
    return text + "  " + wrap(notes, 2, 110) + "\n";
}

std::vector<ScalingPoint> estimate_scaling(PlannedRun run, const std::function<StagePlan(int)>& plan) {
    if (const std::string why = no_prediction_because(run); !why.empty()) refuse("--estimate-scaling: " + why);
    std::vector<ScalingPoint> points;
    for (run.ranks = 1; run.ranks <= 1024; run.ranks *= 2) {
        ScalingPoint p;
        p.gpus = run.ranks;
        p.plan = plan(run.ranks);
        if (!p.plan.refused.empty()) refuse(p.plan.refused);
        p.step = predict_step(run, p.plan);
        p.tokens_per_s = static_cast<double>(run.tokens()) / p.step.step() * 1e3;
        p.efficiency = p.step.compute / p.step.step();
        p.fits = p.plan.bytes() <= run.available();
        points.push_back(p);
    }
    return points;
}

std::string describe_scaling(const PlannedRun& run, const std::vector<ScalingPoint>& points) {
    const TrainerConfig& config = run.config;
    const std::string within =
        config.sharding.within > 0 ? fmt::format(" --shard-within {}", config.sharding.within) : "";
    std::string text = fmt::format(
        "Predicted scaling of {} on {}, {}, --zero {}{}: {}\n"
        "  Every GPU takes {} x {} tokens x {} per step, however many there are (weak scaling)\n",
        config.model.name, run.gpu.match, word_of(run.config.precision), config.sharding.stage, within,
        run.measured.rates.empty() ? "nothing here is measured" : "from rates that were measured",
        plural(config.batch, "sequence"), config.seq, plural(config.micro_steps, "micro-step"));
    text += fmt::format("  {:>5} {:>13} {:>12} {:>12} {:>11} {:>10} {:>10}   {}\n", "GPUs", "tokens/s", "efficiency",
                        "compute", "waits", "sent", "memory", "fits");
    for (const ScalingPoint& p : points)
        text += fmt::format("  {:5} {:>13} {:>10.1f} % {:>9.1f} ms {:>8.1f} ms {:>10} {:>10}   {}\n", p.gpus,
                            with_commas(std::llround(p.tokens_per_s)), 100 * p.efficiency, p.step.compute, p.step.waits,
                            format_bytes(static_cast<size_t>(p.plan.sent.bytes())), format_bytes(p.plan.bytes()),
                            (p.fits ? "yes" : "NO") + other_level(run, p.plan));
    const std::string notes =
        "efficiency: compute's share of the step. compute: the predicted step time of --dry-run" +
        std::string(config.sharding.stage > 0 ? ", with a slice of the optimizer's work" : "") +
        ". waits: for other ranks, not hidden behind the blocks' compute, and for multiprocessors that NCCL holds. "
        "sent: by each GPU per step. " +
        describe_rates(run.measured, run.gpu.fp8_tflops > 0) + " " + describe_links(run.gpu, run.measured) +
        ". Steps of this program were measured on one H100, and none on several";
    return text + "  " + wrap(notes, 2, 110) + "\n";
}

std::string scaling_json(const PlannedRun& run, const std::vector<ScalingPoint>& points) {
    const TrainerConfig& config = run.config;
    Json json = {
        {"predicted", true},
        {"model", {{"name", config.model.name}, {"parameters", config.model.parameters()}}},
        {"card", run.gpu.match},
        {"precision", word_of(run.config.precision)},
        {"zero", config.sharding.stage},
        {"shard_within", config.sharding.within},
        {"batch", config.batch},
        {"seq", config.seq},
        {"micro_steps", config.micro_steps},
        {"link_bytes_per_s", CardRates(run.gpu, run.measured).all_gather_gbs * 1e9},
        {"nic_bytes_per_s", kNicRate},
        {"node_gpus", kNodeGpus},
        {"points", Json::array()},
    };
    for (const ScalingPoint& p : points)
        json["points"].push_back({{"gpus", p.gpus},
                                  {"tokens_per_s", p.tokens_per_s},
                                  {"efficiency", p.efficiency},
                                  {"compute_ms", p.step.compute},
                                  {"exposed_ms", p.step.waits},
                                  {"memory_bytes", p.plan.bytes()},
                                  {"recompute", word_of(p.plan.recompute)},
                                  {"fits", p.fits}});
    return json_text(json, 2) + "\n";
}

}  // namespace llmc
