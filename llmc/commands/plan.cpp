// Prints the plan of --dry-run and the table of --estimate-scaling.
// build: per device
#include "llmc/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/commands/check.h"
#include "llmc/log/metrics.h"
#include "llmc/plan/plan.h"
#include "llmc/run/ranks.h"
#include "llmc/run/reports.h"

namespace llmc {
namespace {

struct PlannedCard {
    GpuSpec gpu;
    MeasuredRates measured = {};
};

// The card that --gpu names, or the one found, with what was measured of it.
std::optional<PlannedCard> card_to_plan_for(const Options& o) {
    if (o.gpu.value) return PlannedCard{*o.gpu.value};
    if (LLMC_CUDA == 0 || device_count() == 0) return std::nullopt;
    const DeviceInfo device = device_info();
    const MeasuredRates measured = kept_rates(device);
    std::optional<GpuSpec> gpu = find_gpu(device.name);
    if (!gpu) gpu = measured_card(device, measured);
    return gpu ? std::optional(PlannedCard{*gpu, measured}) : std::nullopt;
}

// True if the card that is planned for has no memory of its own.
bool shares_memory(const Options& o) {
    if (!o.gpu.value && (LLMC_CUDA == 0 || device_count() == 0)) return false;
    const std::optional<GpuSpec> gpu = o.gpu.value ? o.gpu.value : find_gpu(device_info().name);
    return gpu && gpu->shares_memory;
}

PlannedCard required_card(const Options& o) {
    if (const std::optional<PlannedCard> card = card_to_plan_for(o)) return *card;
    std::string names;
    for (const std::string& name : gpu_short_names()) names += (names.empty() ? "" : ", ") + name;
    throw Error(ExitCode::bad_flags, "--estimate-scaling: no card of the table is here; name one with --gpu: " + names);
}

PlannedRun run_of(const Options& o, const PlannedCard& card) {
    return {trainer_config(o), o.precision, std::max(o.world, 1), card.gpu, card.measured};
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

// ---- a run that does not fit ---------------------------------------------------------------------------------------

// Flags with which a rank of the run would take `bytes`.
struct Remedy {
    std::string flags;
    size_t bytes = 0;
};

// Finds changes of the options that make a rank fit into `available` bytes.
class Remedies {
public:
    Remedies(const Options& options, int ranks, size_t available)
        : options_(options), ranks_(ranks), available_(available) {}

    std::vector<Remedy> find() {
        recompute();
        smaller_batch(options_, "");
        smaller_moments(options_, "");
        if (found_.empty()) {
            Options all = options_;
            all.recompute = Recompute::block;
            smaller_batch(all, "-r block ") || smaller_moments(all, "-r block ");
        }
        more_ranks();
        return found_;
    }

private:
    bool fits(Options o, int ranks, const std::string& flags) {
        o.micro_steps = static_cast<int>(std::max<int64_t>(1, o.total_batch / (int64_t{o.batch} * o.seq * ranks)));
        const StagePlan plan = plan_stage(o, ranks, o.zero);
        if (!plan.refused.empty() || plan.bytes() > available_) return false;
        found_.push_back({flags, plan.bytes()});
        return true;
    }
    // The least that is enough.
    void recompute() {
        bool more = false;
        for (const auto& [name, level] : kWords<Recompute>) {
            Options o = options_;
            o.recompute = level;
            if (more && fits(o, ranks_, std::string("-r ") + name)) return;
            more |= options_.recompute == level;
        }
    }
    // The largest that fits, with as many tokens a step.
    bool smaller_batch(Options o, const std::string& flags) {
        const std::string total = fmt::format(" -d {}", o.total_batch);
        while (--o.batch > 0) {
            if (o.total_batch % (int64_t{o.batch} * o.seq * ranks_) != 0) continue;
            if (fits(o, ranks_, flags + "-b " + std::to_string(o.batch) + total)) return true;
        }
        return false;
    }
    bool smaller_moments(Options o, const std::string& flags) {
        if (o.adam_moments == MomentFormat::bf16 || !(o.optimizer == OptimizerKind::adamw || is_muon(o.optimizer)))
            return false;
        o.adam_moments = MomentFormat::bf16;
        return fits(o, ranks_, flags + "--adam-moments bf16");
    }
    void more_ranks() {
        Options o = options_;
        o.zero = 3;
        for (int ranks = options_.zero == 3 ? 2 * ranks_ : std::max(2, ranks_); ranks <= 1024; ranks *= 2)
            if (fits(o, ranks, fmt::format("--world {} -z 3", ranks))) return;
    }

    const Options& options_;
    const int ranks_;
    const size_t available_;
    std::vector<Remedy> found_;
};

std::string describe_remedies(const std::vector<Remedy>& remedies) {
    if (remedies.empty()) return "Nothing that -r, -b, --adam-moments and up to 1024 ranks can change makes it fit.\n";
    std::string text = "What would fit, each by itself\n";
    for (const Remedy& remedy : remedies) text += fmt::format("  {:32} {}\n", remedy.flags, format_bytes(remedy.bytes));
    return text;
}

// ---- --dry-run -----------------------------------------------------------------------------------------------------

double predicted_ms(const PlannedRun& run, const StagePlan& plan) {
    return run.ranks > 1 ? predict_step(run, plan).step() : step_time(run, run.precision, plan.slices).total();
}

RunLength length_of(const Options& o, const PlannedRun& run, const StagePlan& plan) {
    RunLength length;
    if (o.max_steps <= 0) return length;
    length.steps = o.max_steps;
    length.tokens = o.batches.tokens_until(o.max_steps);
    if (!no_prediction_because(run).empty()) return length;
    length.hours =
        predicted_ms(run, plan) * static_cast<double>(length.tokens) / static_cast<double>(run.tokens()) / 3.6e6;
    return length;
}

nlohmann::ordered_json memory_json(const StagePlan& plan, bool shares_memory) {
    nlohmann::ordered_json memory;
    for (size_t kind = 0; kind < kMemoryKinds; kind++) memory[kMemoryKindNames[kind]] = plan.memory[MemoryKind(kind)];
    memory["libraries"] = plan.reserve - (shares_memory ? plan.memory.staging : 0);
    memory["host"] = plan.memory.staging;
    memory["total"] = plan.bytes();
    return memory;
}

// Milliseconds of a step by kind, and the constants of the model that dev/virtual_gpu/predict.py shares.
nlohmann::ordered_json time_json(const PlannedRun& run, const StagePlan& plan) {
    const StepTime time = step_time(run, run.precision, plan.slices);
    const TimeModel model(run.gpu, run.measured);
    return {{"matmuls", time.products},
            {"attention", time.attention},
            {"elementwise", time.elementwise},
            {"optimizer", time.optimizer},
            {"elementwise_rate", model.element_wise_rate()},
            {"launch", kLaunch},
            {"tensor_share", kTensorKernelShare},
            {"mma_sync_share", model.mma_sync_share()},
            {"calibration", kCalibration}};
}

// Bytes, milliseconds and hours. Times are predicted.
std::string plan_json(const Options& o, const PlannedRun& run, const StagePlan& plan,
                      const std::vector<StagePlan>& stages, const std::vector<Remedy>& remedies) {
    const ModelConfig& m = o.model_config;
    const bool known = no_prediction_because(run).empty();
    nlohmann::ordered_json json = {{"model", m.name},
                                   {"parameters", m.parameters()},
                                   {"flops_per_token", m.flops_per_token(o.seq)},
                                   {"gpu", run.gpu.match},
                                   {"precision", word_of(o.precision)},
                                   {"ranks", run.ranks},
                                   {"zero", plan.stage},
                                   {"batch", o.batch},
                                   {"seq", o.seq},
                                   {"micro_steps", o.micro_steps},
                                   {"tokens_per_step", run.tokens()},
                                   {"memory", memory_json(plan, run.gpu.shares_memory)},
                                   {"available", run.available()},
                                   {"fits", plan.bytes() <= run.available()}};
    if (known) {
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
    for (const StagePlan& stage : stages)
        if (stage.refused.empty())
            json["stages"].push_back({{"zero", stage.stage}, {"memory", memory_json(stage, run.gpu.shares_memory)}});
    for (const Remedy& remedy : remedies)
        json["would_fit"].push_back({{"flags", remedy.flags}, {"total", remedy.bytes}});
    return json_text(json, 2) + "\n";
}

// Returns no_resources if the run does not fit.
ExitCode dry_run(const Options& o) {
    const std::optional<PlannedCard> card = card_to_plan_for(o);
    const PlannedRun run = run_of(o, card ? *card : PlannedCard{*find_gpu_by_short_name("h200")});
    const StagePlan plan = plan_rank(o, planned_ranks(o, run.ranks));
    std::vector<StagePlan> stages;
    for (int stage = 0; stage <= 3 && run.ranks > 1; stage++) stages.push_back(plan_stage(o, run.ranks, stage));
    const bool fits = plan.bytes() <= run.available();
    std::vector<Remedy> remedies;
    if (!fits) remedies = Remedies(o, run.ranks, run.available()).find();
    std::string text;
    if (o.json) {
        text = plan_json(o, run, plan, stages, remedies);
    } else {
        for (const std::string& note : o.notes)
            if (note.starts_with("--depth")) text += "note: " + note + "\n";  // others are of the machine at hand
        text += describe_plan(run, plan.memory, plan.reserve, plan.slices);
        if (const RunLength length = length_of(o, run, plan); length.steps > 0)
            text += describe_length(length, run.ranks);
        if (!stages.empty()) text += describe_sharding(run, stages);
        if (!fits) text += describe_remedies(remedies);
    }
    std::fputs(text.c_str(), stdout);
    return fits ? ExitCode::ok : ExitCode::no_resources;
}

void print_scaling(const Options& o, int zero) {
    PlannedRun run = run_of(o, required_card(o));
    const int stage = run.config.sharding.stage = zero < 0 ? 1 : zero;
    const std::vector<ScalingPoint> points =
        estimate_scaling(run, [&](int gpus) { return plan_stage(o, gpus, stage); });
    std::fputs(describe_scaling(run, points).c_str(), stdout);
    if (o.out.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(o.out, ignored);
    if (!std::filesystem::is_directory(o.out, ignored))
        throw Error(ExitCode::bad_flags, "cannot write into " + o.out + ": it is not a directory");
    const std::string path = o.out + "/scaling.json";
    write_file(path, scaling_json(run, points));
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
        for (const Product& product : muon->products()) plan.products[product].insert(word_of(o.optimizer));
    }
    plan.slices = layout.is_sliced() ? plan.sent.group : 1;
    plan.reserve = memory_reserve(nccl_communicators(comm.world(), static_cast<int>(layout.group_size())) +
                                  (trainer.optimizer().muon() && comm.world() > 1 ? 1 : 0));
    return plan;
}

}  // namespace

StagePlan plan_rank(const Options& o, const Comm& comm) {
    StagePlan plan = o.precision == Precision::fp32 ? plan_rank_of<float>(o, comm) : plan_rank_of<bf16>(o, comm);
    if (!o.checkpoint_local.empty()) plan.memory.staging = 0;
    if (shares_memory(o)) plan.reserve += plan.memory.staging;
    return plan;
}

std::optional<double> predicted_seconds(const Options& o, const StagePlan& plan, const Comm& comm,
                                        const DeviceInfo& device) {
    if (device.is_host) return predicted_cpu_seconds(o, device.multiprocessors * comm.world());
    const std::optional<PlannedCard> card = card_to_plan_for(o);
    if (!card || o.precision == Precision::fp32 || (o.precision == Precision::fp8 && card->gpu.fp8_tflops == 0))
        return std::nullopt;
    PlannedRun run = run_of(o, *card);
    run.ranks = comm.world();
    return 1e-3 * predicted_ms(run, plan);
}

ExitCode plan_run(const Options& o, int zero) {
    const ExitCode code = o.dry_run ? dry_run(o) : ExitCode::ok;
    if (o.estimate_scaling) print_scaling(o, zero);
    return code;
}

}  // namespace llmc
