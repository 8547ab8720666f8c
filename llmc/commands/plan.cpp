#include "llmc/commands/plan.h"

#include <cstdio>
#include <filesystem>

#include "llmc/commands/check.h"
#include "llmc/device/error.h"
#include "llmc/run/metrics.h"
#include "llmc/run/ranks.h"
#include "llmc/run/scaling.h"
#include "llmc/run/summary.h"
#include "llmc/run/trainer_config.h"

namespace llmc {
namespace {

struct PlannedCard {
    GpuSpec gpu;
    MeasuredRates measured = {};
};

// The card that --gpu names, or the one found, with what was measured of it.
std::optional<PlannedCard> card_to_plan_for(const Options& o) {
    if (!o.gpu.empty()) return PlannedCard{*find_gpu_by_short_name(o.gpu)};
    if (LLMC_CUDA == 0 || device_count() == 0) return std::nullopt;
    const DeviceInfo device = device_info();
    const MeasuredRates measured = kept_rates(device);
    std::optional<GpuSpec> gpu = find_gpu(device.name);
    if (!gpu) gpu = measured_card(device, measured);
    return gpu ? std::optional(PlannedCard{*gpu, measured}) : std::nullopt;
}

PlannedCard required_card(const Options& o) {
    if (const std::optional<PlannedCard> card = card_to_plan_for(o)) return *card;
    std::string names;
    for (const std::string& name : gpu_short_names()) names += (names.empty() ? "" : ", ") + name;
    throw Error(ExitCode::bad_flags, "--estimate-scaling: no card of the table is here; name one with --gpu: " + names);
}

PlanInputs inputs_of(const Options& o, const PlannedCard& card) {
    return {card.gpu,    o.batch,        o.seq,          o.micro_steps, o.world > 1 ? o.world : 1,
            o.zero,      o.shard_within, o.precision,    o.fp8_layers,  o.recompute,
            o.optimizer, o.muon_ns,      o.adam_moments, o.reduce,      card.measured};
}

StagePlan plan_stage(Options o, int ranks, int stage) {
    o.zero = ranks > 1 ? stage : 0;
    if (o.zero == 0 || ranks <= o.shard_within) o.shard_within = 0;  // a group of all
    try {
        return plan_rank(o, planned_ranks(o, ranks));
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_flags) throw;
        StagePlan plan;
        plan.stage = stage;
        plan.refused = error.what();
        return plan;
    }
}

void dry_run(const Options& o) {
    const std::optional<PlannedCard> card = card_to_plan_for(o);
    const PlanInputs in = inputs_of(o, card ? *card : PlannedCard{*find_gpu_by_short_name("h200")});
    const StagePlan plan = plan_rank(o, planned_ranks(o, in.ranks));
    std::string text;
    for (const std::string& note : o.notes)
        if (note.starts_with("--depth")) text += "note: " + note + "\n";  // others are of the machine at hand
    text += describe_plan(o.model_config, in, plan.memory, plan.reserve, plan.slices);
    if (in.ranks > 1) {
        std::vector<StagePlan> stages;
        for (int stage = 0; stage <= 3; stage++) stages.push_back(plan_stage(o, in.ranks, stage));
        text += describe_sharding(o.model_config, in, stages);
    }
    std::fputs(text.c_str(), stdout);
}

void print_scaling(const Options& o, int zero) {
    PlanInputs in = inputs_of(o, required_card(o));
    in.zero = zero < 0 ? 1 : zero;
    const std::vector<ScalingPoint> points =
        estimate_scaling(o.model_config, in, [&](int gpus) { return plan_stage(o, gpus, in.zero); });
    std::fputs(describe_scaling(o.model_config, in, points).c_str(), stdout);
    if (o.out.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(o.out, ignored);
    if (!std::filesystem::is_directory(o.out, ignored))
        throw Error(ExitCode::bad_flags, "cannot write into " + o.out + ": it is no directory");
    const std::string path = o.out + "/scaling.json";
    write_file(path, scaling_json(o.model_config, in, points));
    std::printf("written to %s; scripts/plot_scaling.py draws it\n", path.c_str());
}

template <class Real>
StagePlan plan_rank_of(const Options& o, const Comm& comm) {
    Trainer<Real> trainer(trainer_config(o), comm);
    const ShardLayout& layout = trainer.layout();
    StagePlan plan;
    plan.stage = layout.stage();
    plan.memory = trainer.memory();
    plan.products = trainer.model().linear().products(o.batch * o.seq);
    plan.sent = sent_in_step(layout, o.micro_steps, sizeof(Real));
    if (const Muon<Real>* muon = trainer.optimizer().muon()) {
        plan.sent.optimizer = {muon->sent_in_step().calls, muon->sent_in_step().bytes};
        for (const Product& product : muon->products()) plan.products[product].insert(o.optimizer);
    }
    plan.slices = layout.is_sliced() ? plan.sent.group : 1;
    plan.reserve = memory_reserve(nccl_communicators(comm.world(), static_cast<int>(layout.group_size())) +
                                  (trainer.optimizer().muon() && comm.world() > 1 ? 1 : 0));
    return plan;
}

}  // namespace

StagePlan plan_rank(const Options& o, const Comm& comm) {
    return o.precision == "fp32" ? plan_rank_of<float>(o, comm) : plan_rank_of<bf16>(o, comm);
}

std::optional<double> predicted_seconds(const Options& o, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device) {
    if (device.is_host) return predicted_cpu_seconds(o, device.multiprocessors * comm.world());
    const std::optional<PlannedCard> card = card_to_plan_for(o);
    if (!card || o.precision == "fp32" || (o.precision == "fp8" && card->gpu.fp8_tflops == 0)) return std::nullopt;
    PlanInputs in = inputs_of(o, *card);
    in.ranks = comm.world();
    return 1e-3 * ideal_step_time(o.model_config, in, o.precision, plan.slices).total();
}

ExitCode plan_run(const Options& o, int zero) {
    if (o.dry_run) dry_run(o);
    if (o.estimate_scaling) print_scaling(o, zero);
    return ExitCode::ok;
}

}  // namespace llmc
