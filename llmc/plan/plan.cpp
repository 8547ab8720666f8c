// The plan of one rank: memory, and the time of a step on a named card.
#include "llmc/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "llmc/log/progress.h"

namespace llmc {

static std::string row(const char* name, const std::string& value, const std::string& note = "") {
    std::string text = fmt::format("  {:18} {:>14}   {}", name, value, note);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

static std::string windows(const ModelConfig& m) {
    if (m.short_layers() == 0) return "";
    return fmt::format(", windows of {} tokens in {} of {} layers", m.window, m.short_layers(), m.layers);
}

static std::string model_section(const ModelConfig& m, int T) {
    const double attention = m.attention_flops_per_token(T);
    std::string text =
        fmt::format("Model {}: {} layers, {} heads of {}, {} channels, vocabulary {} (padded to {}), context {}\n",
                    m.name, m.layers, m.heads, m.head_dim(), m.channels, m.vocab, m.padded_vocab(), m.context);
    if (m.architecture != &kGpt2)
        text +=
            fmt::format("  {}: {} heads of keys and values, {} channels in the MLP, {} head{}\n", m.architecture->name,
                        m.key_value_heads(), m.mlp_channels(), m.tied ? "tied" : "untied", windows(m));
    text +=
        row("parameters", with_commas(m.parameters()), m.parameters() < 1000000 ? "" : format_count(m.parameters()));
    text += row("FLOPs per token", format_scaled(m.flops_per_token(T)),
                fmt::format("forward and backward at T={}; {:.0f}% of it attention", T,
                            100 * attention / m.flops_per_token(T)));
    return text;
}

static std::string batch_section(const PlannedRun& run) {
    return fmt::format("Step: {}\n  {} x {} x {} x {}\n", plural(run.tokens(), "token"),
                       plural(run.config.batch, "sequence"), plural(run.config.seq, "token"), plural(run.ranks, "rank"),
                       plural(run.config.micro_steps, "micro-step"));
}

static std::string offloaded_parts(const TrainerConfig& config) {
    std::string parts = "pinned";
    if (config.sharding.offload_state) parts += ", masters and moments";
    if (config.offload_residuals) parts += ", inputs of blocks";
    return parts;
}

static std::string memory_section(const PlannedRun& run, const StagePlan& plan) {
    const TrainerConfig& config = run.config;
    const OptimizerConfig& optimizer = config.optimizer;
    const MemoryByKind& m = plan.memory;
    std::string text = run.ranks == 1 ? "Memory\n" : "Memory, each rank\n";
    text += row("weights", format_bytes(m.weights));
    text += row("gradients", format_bytes(m.gradients),
                config.sharding.wire == Wire::fp8 && run.ranks > 1
                    ? "with the residuals of --reduce fp8: 2 bytes per parameter on every rank"
                : config.sharding.gradients == StateFormat::bf16 ? "sums BF16, four units of a micro-step FP32"
                                                                 : "");
    text +=
        row("optimizer", format_bytes(m.optimizer),
            std::string(word_of(optimizer.kind)) + (optimizer.masters == StateFormat::bf16 ? ", masters BF16" : "") +
                (optimizer.adam_moments == StateFormat::fp8    ? ", moments FP8 and BF16"
                 : optimizer.adam_moments == StateFormat::bf16 ? ", moments BF16"
                                                               : "") +
                (optimizer.averages() ? ", average FP32" : ""));
    text += row("activations", format_bytes(m.activations),
                fmt::format("-b {}, -r {}", config.batch, word_of(config.recompute)));
    text += row("workspace", format_bytes(m.workspace));
    std::string host =
        row("host memory", format_bytes(m.staging), "pinned, a checkpoint's copy; none with --checkpoint-local");
    if (m.offloaded > 0)
        host += row("host memory", format_bytes(m.offloaded), offloaded_parts(config) + " (--offload)");
    text += row("libraries", format_bytes(plan.reserve),
                std::string("estimate for CUDA and cuBLASLt") + (run.ranks == 1 ? "" : " and NCCL"));
    if (run.gpu.shares_memory) text += host;
    text += row("total", format_bytes(plan.bytes()),
                fmt::format("{} {}, which has {}", plan.bytes() <= run.available() ? "fits into" : "DOES NOT FIT into",
                            run.gpu.match, format_bytes(run.available())));
    return text + (run.gpu.shares_memory ? "  this card has no memory of its own: the total includes the host's copy\n"
                                         : host);
}

static std::string speed_line(const PlannedRun& run, Precision precision, double ms) {
    const bool fp8 = precision == Precision::fp8;
    const double tokens_per_s = static_cast<double>(run.tokens()) / ms * 1000;
    const double mfu = model_flops_utilization(run.config.model.flops_per_token(run.config.seq), tokens_per_s,
                                               fp8 ? run.gpu.fp8_tflops : run.gpu.bf16_tflops, run.ranks);
    return fmt::format("  {:18} {} tok/s, MFU {:.1f}% of the {} peak{}\n", word_of(precision),
                       with_commas(std::llround(tokens_per_s)), 100 * mfu, fp8 ? "FP8" : "BF16",
                       precision == run.config.precision ? "; this run" : "");
}

static std::string time_section(const PlannedRun& run, int slices) {
    if (run.config.precision == Precision::fp32)
        return "Predicted step time: only known for bf16 and fp8 (this is fp32)\n";
    std::vector<Precision> precisions = {Precision::bf16};
    if (run.gpu.fp8_tflops > 0) precisions.push_back(Precision::fp8);
    std::vector<StepTime> times;
    const TimeModel time(run.gpu, run.measured);
    const CardRates& card = time.card();
    std::string text = fmt::format("Predicted step time on {}, from {} rates\n{:>18}", run.gpu.match,
                                   run.measured.rates.empty() ? "public" : "measured and public", "");
    for (const Precision precision : precisions) {
        times.push_back(step_time(run, precision, slices));
        text += fmt::format(" {:>14}", word_of(precision));
    }
    const auto line = [&](const char* name, const auto& part) {
        text += fmt::format("\n  {:18}", name);
        for (const StepTime& t : times) text += fmt::format(" {:>11.1f} ms", std::invoke(part, t));
    };
    line("matmuls", &StepTime::products);
    line("attention", &StepTime::attention);
    line("element-wise", &StepTime::elementwise);
    line("optimizer", &StepTime::optimizer);
    if (times.front().offload > 0) line("offload", &StepTime::offload);
    line("total", &StepTime::total);
    text += "\n";
    for (size_t i = 0; i < times.size(); i++) text += speed_line(run, precisions[i], times[i].total());
    if (run.gpu.fp8_tflops == 0)
        text += fmt::format("  {} has no FP8{}\n", run.gpu.match,
                            run.config.precision == Precision::fp8 ? ": use --precision bf16 there" : "");
    return text +
           fmt::format(
               "  Large matmuls at {:.0f} TFLOP/s in bf16 and {:.0f} in fp8, others by their shapes; element-wise\n"
               "  kernels at {:.1f} TB/s. Without communication. The model was within 10 % of the steps that were\n"
               "  measured on an H100, before some kernels were replaced; these are only predicted.\n",
               card.bf16_tflops, card.fp8_tflops, time.element_wise_rate() / 1e12) +
           "  " + wrap(describe_rates(run.measured, run.gpu.fp8_tflops > 0), 2, 110) + "\n";
}

std::string describe_plan(const PlannedRun& run, const StagePlan& plan) {
    return model_section(run.config.model, run.config.seq) + batch_section(run) + memory_section(run, plan) +
           time_section(run, plan.slices);
}

std::string describe_length(const RunLength& length, int ranks) {
    std::string text = "Run: " + plural(length.steps, "step") + ", " + counted(length.tokens, "token") + "\n";
    if (length.hours)
        text += row("predicted", format_duration(3600 * *length.hours),
                    fmt::format("{:.3g} GPU-hours on {}", length.gpu_hours(ranks), plural(ranks, "GPU")));
    return text;
}

std::string describe_schedule(const ScheduleConfig& schedule) {
    constexpr int kRows = 8, kColumns = 60;
    const int64_t last = schedule.steps - 1;
    double rates[kColumns];
    for (int c = 0; c < kColumns; c++) rates[c] = learning_rate(schedule, last * c / (kColumns - 1));
    std::string text = fmt::format("Learning rate: {:.3g} in step 1, at most {:.3g}, {:.3g} in the last step\n",
                                   rates[0], *std::max_element(rates, rates + kColumns), rates[kColumns - 1]);
    for (int r = kRows; r > 0; r--) {
        std::string line(kColumns, ' ');
        for (int c = 0; c < kColumns; c++)
            if (rates[c] > schedule.lr * (r - 0.5) / kRows) line[c] = '#';
        text += fmt::format("  {:>8} |{}", r == kRows ? fmt::format("{:.3g}", schedule.lr) : "", line);
        text.erase(text.find_last_not_of(' ') + 1);
        text += "\n";
    }
    return text + fmt::format("  {:>8} +{:-<{}}\n  {:>8}  1{:>{}}\n", "0", "", kColumns, "step",
                              with_commas(schedule.steps), kColumns - 1);
}

int nccl_communicators(int ranks, int shard_ranks) {
    if (ranks <= 1) return 0;
    const int group = shard_ranks > 0 ? shard_ranks : ranks;
    return 1 + (group > 1 ? 2 : 0) + (group < ranks ? 1 : 0);
}

void check_memory(const MemoryByKind& needed, size_t reserve, size_t available, const std::string& device_name,
                  bool may_offload) {
    const size_t total = needed.total() + reserve;
    if (available == 0 || total <= available) return;
    const size_t fixed = needed.weights + needed.gradients + needed.optimizer + reserve;
    const std::string libraries = reserve > 0 ? ", libraries (estimated) " + format_bytes(reserve) : "";
    const bool too_large = fixed > available, forward_only = needed.gradients == 0;  // eval and sample have fewer flags
    const std::string advice =
        !too_large ? forward_only ? "reduce -b" : "reduce -b, or use -r auto"
        : forward_only
            ? "share the model among more ranks with -z 3, or use a larger device"
            : fmt::format(
                  "the model's own state is too large for any -b: share it among more ranks with -z 3, halve it with "
                  "--adam-moments bf16, --master bf16 and --gradients bf16, {}or use a smaller model or a larger "
                  "device",
                  may_offload ? "keep it in host memory with --offload optimizer, " : "");
    throw Error(
        ExitCode::no_resources,
        "this run needs {} and {} has {}: weights {}, gradients {}, optimizer {}, activations {}, workspace {}{}; {}",
        format_bytes(total), device_name, format_bytes(available), format_bytes(needed.weights),
        format_bytes(needed.gradients), format_bytes(needed.optimizer), format_bytes(needed.activations),
        format_bytes(needed.workspace), libraries, advice);
}

void check_host_memory(const MemoryByKind& needed, size_t available) {
    if (needed.offloaded <= available) return;
    throw Error(ExitCode::no_resources,
                "--offload needs {} of host memory per rank, and this machine has {} available; shrink the state "
                "(--adam-moments bf16, a higher -z, a smaller model) or leave --offload out",
                format_bytes(needed.offloaded), format_bytes(available));
}

}  // namespace llmc
