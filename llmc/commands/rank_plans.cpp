// Prints the plan of --dry-run and the table of --estimate-scaling.
// build: per device
#include "llmc/commands/planning.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/log/metrics.h"
#include "llmc/log/run_directory.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"
#include "llmc/run/tuning.h"
#include "llmc/train/trainer.h"

namespace llmc {

// True if the card that is planned for has no memory of its own.
static bool shares_memory(const Options& o) {
    if (!o.gpu && (LLMC_CUDA == 0 || device_count() == 0)) return false;
    const std::optional<GpuSpec> gpu = o.gpu ? o.gpu : find_gpu(device_info().name);
    return gpu && gpu->shares_memory;
}

static PlannedCard required_card(const Options& o) {
    if (const std::optional<PlannedCard> card = card_to_plan_for(o)) return *card;
    refuse("--estimate-scaling: no card of the table is here; name one with --gpu: " + joined(gpu_short_names()));
}

static Json memory_json(const StagePlan& plan) {
    Json memory;
    for (size_t kind = 0; kind < kMemoryKinds; kind++) memory[kMemoryKindNames[kind]] = plan.memory[MemoryKind(kind)];
    memory["libraries"] = plan.reserve;
    memory["host"] = plan.memory.staging;
    memory["total"] = plan.bytes();
    return memory;
}

// Milliseconds of a step by kind of work.
static Json time_json(const PlannedRun& run, const StagePlan& plan) {
    const StepTime time = step_time(run, run.config.precision, plan.slices);
    return {{"matmuls", time.products},
            {"attention", time.attention},
            {"elementwise", time.elementwise},
            {"optimizer", time.optimizer},
            {"offload", time.offload}};
}

static Json change_json(const Change& change) {
    Json json = {{"flags", change.flags}, {"ranks", change.ranks}, {"total", change.bytes}};
    if (change.step_ms) json.update({{"step_ms", *change.step_ms}, {"tokens_per_s", change.tokens_per_s}});
    if (change.run_hours) json["hours"] = *change.run_hours;
    return json;
}

// Bytes, milliseconds and hours. Times are predicted.
static std::string plan_json(const Options& o, const PlannedRun& run, const StagePlan& plan,
                             const std::vector<StagePlan>& stages, const std::vector<Change>& changes,
                             const Inputs& inputs) {
    const ModelConfig& m = o.model;
    Json json = {{"model", m.name},
                 {"parameters", m.parameters()},
                 {"flops_per_token", m.flops_per_token(o.seq)},
                 {"gpu", run.gpu.match},
                 {"precision", word_of(o.precision)},
                 {"ranks", run.ranks},
                 {"zero", plan.stage},
                 {"batch", o.batch},
                 {"recompute", word_of(o.recompute)},
                 {"seq", o.seq},
                 {"micro_steps", o.micro_steps},
                 {"tokens_per_step", run.tokens()},
                 {"memory", memory_json(plan)},
                 {"available", run.available()},
                 {"fits", plan.bytes() <= run.available()}};
    if (no_prediction_because(run).empty()) {
        const double ms = predicted_ms(run, plan);
        json["step_ms"] = ms;
        json["tokens_per_s"] = 1e3 * static_cast<double>(run.tokens()) / ms;
        json["time"] = time_json(run, plan);
    }
    if (const RunLength length = length_of(o, run, plan); length.steps > 0) {
        json["steps"] = length.steps;
        json["tokens"] = length.tokens;
        if (length.hours) {
            json["hours"] = *length.hours;
            json["gpu_hours"] = length.gpu_hours(run.ranks);
        }
    }
    for (const SourceUse& use : inputs.sources_after(o, o.schedule.steps))
        json["sources"][use.pattern] = {{"tokens", use.tokens}, {"passes", use.passes()}};
    for (const StagePlan& stage : stages)
        if (stage.refused.empty()) json["stages"].push_back({{"zero", stage.stage}, {"memory", memory_json(stage)}});
    for (const Change& change : changes) json["would_fit"].push_back(change_json(change));
    return json_text(json, 2) + "\n";
}

static std::string plan_text(const Options& o, const PlannedRun& run, const AutomaticChoice& choice,
                             const std::vector<StagePlan>& stages, const std::vector<Change>& changes,
                             const Inputs& inputs) {
    std::string text;
    for (const std::string& note : o.notes)  // the other notes describe this machine, not the planned one
        if (note.starts_with("--depth") || note.starts_with("--fit") || note.starts_with("-r auto") ||
            note.starts_with("--offload auto"))
            text += "note: " + note + "\n";
    text += describe_plan(run, choice.plan);
    if (const RunLength length = length_of(o, run, choice.plan); length.steps > 0)
        text += describe_length(length, run.ranks) + describe_schedule(run.config.schedule);
    text += inputs.describe_sources(o);
    if (!stages.empty()) text += describe_sharding(run, stages);
    if (!choice.fits) text += describe_changes(changes, run.ranks);
    return text;
}

// Plans ranks that do not exist.
static AutomaticChoice choose_for_planned(const Options& options, int ranks, const Room& room) {
    const Comm comm = planned_ranks(options, ranks);
    return choose_automatic(
        options, [&](const Options& o) { return plan_rank(o, comm); },
        [&](const StagePlan& plan) { return room.holds(plan); });
}

// Returns no_resources if the run does not fit.
static ExitCode dry_run(const AskedRun& asked, Options o, const Inputs& inputs) {
    if (!card_to_plan_for(o)) o.gpu = find_gpu_by_short_name("h200");
    const PlannedCard card = required_card(o);
    const int ranks = std::max(o.world, 1);
    const Room room{run_of(o, card, ranks).available()};
    if (o.fit) o = fit_plan(asked, o, ranks, room, card);
    std::vector<StagePlan> stages;
    for (int stage = 0; stage <= 3 && ranks > 1; stage++) stages.push_back(plan_stage(o, ranks, stage, room));
    const AutomaticChoice choice = choose_for_planned(o, ranks, room);
    o = choice.options;
    const PlannedRun run = run_of(o, card, ranks);
    std::vector<Change> changes;
    if (!choice.fits) changes = changes_that_fit(asked, o, ranks, room, card);
    const std::string text = o.json ? plan_json(o, run, choice.plan, stages, changes, inputs)
                                    : plan_text(o, run, choice, stages, changes, inputs);
    std::fputs(text.c_str(), stdout);
    return choice.fits ? ExitCode::ok : ExitCode::no_resources;
}

static void print_scaling(const Options& o, int zero) {
    PlannedRun run = run_of(o, required_card(o), std::max(o.world, 1));
    const int stage = zero < 0 ? 1 : zero;
    run.config.sharding.stage = stage;
    const std::vector<ScalingPoint> points =
        estimate_scaling(run, [&](int gpus) { return plan_stage(o, gpus, stage, {run.available()}); });
    const std::string json = scaling_json(run, points);
    std::fputs((o.json ? json : describe_scaling(run, points)).c_str(), stdout);
    if (o.out.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(o.out, ignored);
    if (!std::filesystem::is_directory(o.out, ignored))
        refuse("cannot write into " + o.out + ": it is not a directory");
    const std::string path = o.out + "/scaling.json";
    write_file(path, json);
    if (!o.json) print_line("written to {}; python3 scripts/plot_scaling.py draws it", path);
}

template <class Real>
static StagePlan plan_rank_of(const Options& o, const Comm& comm) {
    Trainer<Real> trainer(o, comm);
    const ShardLayout& layout = trainer.layout();
    StagePlan plan;
    plan.stage = layout.stage();
    plan.recompute = trainer.config().recompute;
    plan.memory = trainer.memory(o.gpu ? std::optional(o.gpu->capability) : std::nullopt);
    plan.products = trainer.kinds_of_products();
    plan.sent = sent_in_step(layout, o.micro_steps, sizeof(Real));
    if (const Muon<Real>* muon = trainer.optimizer().muon())
        plan.sent.optimizer = {muon->sent_in_step().calls, muon->sent_in_step().bytes};
    plan.slices = layout.is_sliced() ? plan.sent.group : 1;
    plan.reserve = memory_reserve(nccl_communicators(comm.world(), static_cast<int>(layout.group_size())) +
                                  (trainer.optimizer().muon() && comm.world() > 1 ? 1 : 0));
    return plan;
}

std::optional<PlannedCard> card_to_plan_for(const Options& o) {
    if (o.gpu) return PlannedCard{*o.gpu};
    if (LLMC_CUDA == 0 || device_count() == 0) return std::nullopt;
    const DeviceInfo device = device_info();
    const MeasuredRates measured = kept_rates(device);
    std::optional<GpuSpec> gpu = find_gpu(device.name);
    if (!gpu) gpu = measured_card(device, measured);
    return gpu ? std::optional(PlannedCard{*gpu, measured}) : std::nullopt;
}

PlannedRun run_of(const Options& o, const PlannedCard& card, int ranks) { return {o, ranks, card.gpu, card.measured}; }

StagePlan plan_stage(Options o, int ranks, int stage, const Room& room) {
    o.sharding.stage = ranks > 1 ? stage : 0;
    if (o.sharding.stage == 0 || ranks <= o.sharding.within) o.sharding.within = 0;  // a group of all
    try {
        return choose_for_planned(o, ranks, room).plan;
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_flags) throw;
        StagePlan refused;
        refused.stage = stage;
        refused.refused = error.what();
        return refused;
    }
}

double predicted_ms(const PlannedRun& run, const StagePlan& plan) {
    return run.ranks > 1 ? predict_step(run, plan).step() : step_time(run, run.config.precision, plan.slices).total();
}

RunLength length_of(const Options& o, const PlannedRun& run, const StagePlan& plan) {
    RunLength length;
    if (o.schedule.steps <= 0) return length;
    length.steps = o.schedule.steps;
    length.tokens = o.batches.tokens_until(o.schedule.steps);
    if (!no_prediction_because(run).empty()) return length;
    length.hours =
        predicted_ms(run, plan) * static_cast<double>(length.tokens) / static_cast<double>(run.tokens()) / 3.6e6;
    return length;
}

StagePlan plan_rank(const Options& o, const Comm& comm) {
    StagePlan plan = o.precision == Precision::fp32 ? plan_rank_of<float>(o, comm) : plan_rank_of<bf16>(o, comm);
    if (!o.checkpoint_local.empty()) plan.memory.staging = 0;
    if (shares_memory(o)) plan.shared_copy = plan.memory.staging + plan.memory.offloaded;
    return plan;
}

std::optional<double> predicted_seconds(const Options& o, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device) {
    constexpr double kFlopsPerThread = 50e9;  // the best that matmuls on a CPU reach
    if (device.is_host)
        return o.model.flops_per_token(o.seq) * static_cast<double>(o.total_batch) /
               (kFlopsPerThread * device.multiprocessors * comm.world());
    const std::optional<PlannedCard> card = card_to_plan_for(o);
    if (!card) return std::nullopt;
    const PlannedRun run = run_of(o, *card, comm.world());
    return no_prediction_because(run).empty() ? std::optional(1e-3 * predicted_ms(run, plan)) : std::nullopt;
}

ExitCode plan_run(const AskedRun& asked, const Options& o, const Inputs& inputs) {
    const ExitCode code = o.dry_run ? dry_run(asked, o, inputs) : ExitCode::ok;
    if (o.estimate_scaling) print_scaling(o, asked.flags.sharding.stage);
    return code;
}

}  // namespace llmc
