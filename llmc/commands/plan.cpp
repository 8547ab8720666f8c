#include "llmc/commands/plan.h"

#include <cstdio>
#include <filesystem>

#include "llmc/device/error.h"
#include "llmc/device/runtime.h"
#include "llmc/run/gpu_table.h"
#include "llmc/run/metrics.h"
#include "llmc/run/ranks.h"
#include "llmc/run/scaling.h"
#include "llmc/run/trainer_config.h"

namespace llmc {
namespace {

// The card that --gpu names, or the one found.
std::optional<GpuSpec> card_to_plan_for(const Options& o) {
    if (!o.gpu.empty()) return find_gpu_by_short_name(o.gpu);
    if (LLMC_CUDA == 0 || device_count() == 0) return std::nullopt;
    return find_gpu(device_info().name);
}

GpuSpec required_card(const Options& o) {
    if (const std::optional<GpuSpec> gpu = card_to_plan_for(o)) return *gpu;
    std::string names;
    for (const std::string& name : gpu_short_names()) names += (names.empty() ? "" : ", ") + name;
    throw Error(ExitCode::bad_flags, "--estimate-scaling: no card of the table is here; name one with --gpu: " + names);
}

PlanInputs inputs_of(const Options& o, const GpuSpec& gpu) {
    PlanInputs in;
    in.batch = o.batch;
    in.seq = o.seq;
    in.total_batch = o.total_batch;
    in.ranks = o.world > 1 ? o.world : 1;
    in.zero = o.zero;
    in.shard_ranks = o.shard_within;
    in.precision = o.precision;
    in.fp8_layers = o.fp8_layers;
    in.recompute = o.recompute;
    in.reserve = memory_reserve(nccl_communicators(in.ranks, in.zero == 0 ? 0 : in.shard_ranks));
    in.gpu = gpu;
    return in;
}

StagePlan plan_stage(Options o, int ranks, int stage) {
    o.zero = ranks > 1 ? stage : 0;
    if (o.zero == 0) o.shard_within = 0;
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
    const std::optional<GpuSpec> gpu = card_to_plan_for(o);
    PlanInputs in = inputs_of(o, gpu ? *gpu : *find_gpu_by_short_name("h200"));
    in.memory = plan_rank(o, planned_ranks(o, in.ranks)).memory;
    std::string text = describe_plan(o.model_config, in);
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
    const auto plan = [&](int gpus) {
        Options part = o;
        if (gpus <= o.shard_within) part.shard_within = 0;  // a group of all
        return plan_stage(part, gpus, in.zero);
    };
    const std::vector<ScalingPoint> points = estimate_scaling(o.model_config, in, plan);
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
    const Trainer<Real> trainer(trainer_config(o), comm);
    const WireLayout layout{comm.world(), o.micro_steps, sizeof(Real), comm.reduce_order() == ReduceOrder::rank};
    return {comm.world() > 1 ? o.zero : 0, "", trainer.memory(),
            wire_schedule(trainer.table(), trainer.layout().sharding(), layout)};
}

}  // namespace

StagePlan plan_rank(const Options& o, const Comm& comm) {
    return o.precision == "fp32" ? plan_rank_of<float>(o, comm) : plan_rank_of<bf16>(o, comm);
}

void plan_run(const Options& o, int zero) {
    if (o.dry_run) dry_run(o);
    if (o.estimate_scaling) print_scaling(o, zero);
}

}  // namespace llmc
