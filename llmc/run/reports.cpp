// Completes and writes the records of steps, and builds the text at the start and the end of a run.
#include "llmc/run/reports.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "llmc/fp8/registry.h"
#include "llmc/log/card_meter.h"
#include "llmc/log/metrics.h"
#include "llmc/log/provenance.h"
#include "llmc/log/run_directory.h"
#include "llmc/run/inputs.h"
#include "llmc/run/ranks.h"

namespace llmc {

static std::string passes_of(const Options& o, int64_t train_tokens) {
    if (train_tokens <= 1) return "";
    const double passes =
        static_cast<double>(o.batches.tokens_until(o.schedule.steps)) / static_cast<double>(train_tokens);
    return fmt::format(", {} passes over the {} of training data",
                       passes < 0.1 ? fmt::format("{:.2g}", passes) : fmt::format("{:.1f}", passes),
                       counted(train_tokens, "token"));
}

static std::string length_line(const Options& o, const RunOutlook& outlook) {
    return fmt::format("{} of {} in {}{}: {}{}\n", counted(o.schedule.steps, "step"), counted(o.total_batch, "token"),
                       counted(o.micro_steps, "micro-step"), o.schedule.steps == 1 ? "" : " each",
                       counted(o.batches.tokens_until(o.schedule.steps), "token"), passes_of(o, outlook.train_tokens));
}

// On a GPU the predicted time; on a CPU only a warning if steps will be slow.
static std::string time_note(const Options& o, const DeviceInfo& device, const RunOutlook& outlook) {
    constexpr double kSurprising = 20;  // seconds per step
    const int64_t steps = o.last_step() - outlook.first_step + 1;
    if (!outlook.seconds_per_step || steps <= 0) return "";
    const double seconds = *outlook.seconds_per_step;
    if (!device.is_host)
        return fmt::format("predicted: {:.1f} ms per step, {} for {} (from a model of its kernels; see --dry-run)\n",
                           1e3 * seconds, format_duration(seconds * static_cast<double>(steps)),
                           counted(steps, "step"));
    if (seconds < kSurprising) return "";
    return fmt::format(
        "note: these are {} parameters on {}: predicted {:.1f} minutes or more per step, {} for the run; for a small "
        "run try -e tiny or scripts/demo.sh\n",
        format_count(o.model.parameters()), counted(device.multiprocessors, "CPU thread"), seconds / 60,
        format_duration(seconds * static_cast<double>(steps)));
}

static std::string next_commands(const Options& o) {
    const std::string& program = o.program;
    const std::string out = shell_quote(o.out);
    const std::string tokenizer = o.tokenizer.empty() ? "" : " --tokenizer " + shell_quote(o.tokenizer);
    std::string text = "next: " + program + " sample --from " + out + tokenizer + "\n";
    if (!o.val.empty())
        text += "      " + program + " eval --from " + out + " --val " + shell_quote(o.val[0].glob) + "\n";
    return text + "      python3 scripts/report.py " + out + "\n";
}

// A validation after the last step says more about the weights than that step's loss, which may be why the step was
// skipped.
static bool is_validated(const RunResults& seen) {
    return seen.val && (!seen.train || seen.val->step >= seen.train->step);
}

static bool ends_badly(const RunResults& seen) {
    const std::optional<SeenLoss>& last = is_validated(seen) ? seen.val : seen.train;
    return last && !std::isfinite(last->loss);
}

std::string describe_start(const Options& o, const Ranks& ranks, const RunOutlook& outlook) {
    const Comm& comm = ranks.comm;
    std::string text;
    for (const std::string& note : o.notes) text += "note: " + note + "\n";
    if (o.out.empty() && !o.bench) text += "note: no --out, so nothing will be saved\n";
    if (comm.world() > 1)
        text += fmt::format("{} ranks over {}, --zero {}{}\n", comm.world(), comm.name(), o.sharding.stage,
                            o.sharding.within > 0 ? fmt::format(" --shard-within {}", o.sharding.within) : "");
    return text +
           fmt::format("{}{} of {} channels, {}, {}, on {}\n", o.model.name == "custom" ? "" : o.model.name + ": ",
                       counted(o.model.layers, "layer"), o.model.channels, counted(o.model.parameters(), "parameter"),
                       word_of(o.precision), ranks.device.name) +
           length_line(o, outlook) + outlook.sources + time_note(o, ranks.device, outlook);
}

std::string describe_pass_end(const Options& o, const SampleOrder& order, const std::vector<std::string>& patterns,
                              int64_t step, int64_t data_step) {
    if (o.bench) return "";
    const std::vector<int64_t> before = order.used_before(o.batches.tokens_until(data_step - 1) / o.seq);
    const std::vector<int64_t> after = order.used_before(o.batches.tokens_until(data_step) / o.seq);
    std::string text;
    for (size_t i = 0; i < after.size(); i++) {
        const int64_t pass = order.samples()[i];
        if (after[i] / pass == before[i] / pass || after[i] - before[i] >= pass) continue;
        text += fmt::format("{}step {}: pass {} over {} is complete", text.empty() ? "" : "\n", step, after[i] / pass,
                            after.size() == 1 ? "the training data" : patterns[i]);
    }
    return text;
}

// Equal logits give a loss of ln(V). Logits of C normalised channels and a head from N(0, s), with s = 0.02 in GPT-2,
// have a variance of C * s^2, which adds half of that. (With tied embeddings the input token's own logit is larger by C
// s^2 / the residual stream's deviation, which is below 2 and drowns in the sum over the vocabulary.) A token's loss
// has the deviation of its target's logit, and targets repeat: 16 of them are taken for independent, as among letters.
// The margin is four deviations of their mean.
FreshLoss fresh_loss(const ModelConfig& model, int64_t tokens) {
    const double ln_vocab = std::log(model.vocab);
    const ModelTable table = model.table();
    const double deviation = initial_deviation(model, model.tied ? table.embedding.front() : table.final.back());
    const double variance = model.channels * deviation * deviation;
    const double independent = static_cast<double>(std::min<int64_t>(tokens, 16));
    return {ln_vocab, ln_vocab + 0.5 * variance, std::max(0.5, 4 * std::sqrt(variance / independent))};
}

Reports::Reports(const Options& options, const ProgressSetup& setup, const Inputs& inputs, int64_t steps_ahead,
                 const Fp8Registry* fp8, const Comm& comm, RunDirectory& directory)
    : options_(options),
      fp8_(fp8),
      directory_(directory),
      setup_(setup),
      inputs_(inputs),
      steps_ahead_(steps_ahead),
      progress_(comm.is_main() ? stdout : nullptr, setup),
      comm_(comm),
      ranks_(describe_ranks(comm)) {}

void Reports::add_facts(StepRecord& record, uint64_t batch_hash, const CardReading& cards) const {
    const int64_t length = options_.sequences.tokens_of(record.step);
    record.tokens = options_.batches.tokens_until(record.step);
    for (const SourceUse& use : inputs_.sources_after(options_, record.step + steps_ahead_))
        record.source_tokens.emplace_back(use.pattern, use.tokens);
    if (!options_.sequences.stages().empty()) record.seq = length;
    record.batch_hash = fingerprint_text(batch_hash);
    const auto known = [](double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; };
    record.watts = known(cards.watts);
    record.joules_per_token = known(cards.joules / static_cast<double>(options_.batches.tokens_of(record.step)));
    record.sm_clock_mhz = known(cards.sm_clock_mhz);
    record.temperature_c = known(cards.temperature_c);
    if (record.step == 1 && options_.init_from.empty()) record.fresh = fresh_loss(options_.model, options_.total_batch);
}

void Reports::report(StepRecord record) {
    record.tokens_per_s = static_cast<double>(options_.batches.tokens_of(record.step)) / record.ms * 1e3;
    const int length = static_cast<int>(options_.sequences.tokens_of(record.step));
    if (setup_.peak_tflops)
        record.mfu = model_flops_utilization(options_.model.flops_per_token(length), record.tokens_per_s,
                                             *setup_.peak_tflops, setup_.ranks);
    record_step(record, directory_);
    progress_.step(record, device_bytes_in_use());
    if (record.slowest)
        report_slow_rank(record.step, slow_ranks_.observe(*record.slowest), *record.slowest, ranks_, directory_, comm_);
    results_.train = {record.step, record.loss};
    if (const std::string note = describe_pass_end(options_, *inputs_.order, inputs_.sources.patterns, record.step,
                                                   record.step + steps_ahead_);
        !note.empty())
        progress_.print(note);
    if (options_.bench) benched_.push_back(record);
    if (record.verified) check_bits(record);
    check_skips(record, options_.max_skips, fp8_);
}

void Reports::check_bits(const StepRecord& record) {
    const std::string& difference = record.verified->difference;
    if (difference.empty()) return;
    const std::string text = fmt::format(
        "step {}: silent data corruption: {}. Nothing was saved from this step on: test or replace that card, and "
        "continue with --resume latest",
        record.step, difference);
    directory_.append({{"step", record.step}, {"corruption", difference}});
    record_end(record.step, text, directory_);
    throw Error(ExitCode::bad_numbers, text);
}

void Reports::report(const ValRecord& record) {
    record_validation(record, directory_);
    progress_.validation(record);
    if (record.losses.empty()) return;
    results_.see_validation({record.step, record.losses[0].loss});
}

void Reports::print_bench() {
    if (options_.bench) progress_.print(format_bench(benched_, setup_, device_bytes_in_use()));
}

std::string format_bench(const std::vector<StepRecord>& steps, const ProgressSetup& setup, size_t memory) {
    std::vector<StepRecord> timed;
    for (const StepRecord& step : steps)
        if (step.step > kBenchWarmup) timed.push_back(step);
    if (timed.empty()) return "bench: it ended before the warm-up did";
    std::sort(timed.begin(), timed.end(), [](const StepRecord& a, const StepRecord& b) { return a.ms < b.ms; });
    const StepRecord& median = timed[timed.size() / 2];
    std::string text = fmt::format(
        "bench: {:.1f} ms per step (median of {} after {} of warm-up; {:.1f} to {:.1f}), {} tok/s", median.ms,
        timed.size(), kBenchWarmup, timed.front().ms, timed.back().ms, with_commas(std::llround(median.tokens_per_s)));
    if (setup.ranks > 1)
        text += fmt::format(", {} of each of {} ranks", with_commas(std::llround(median.tokens_per_s / setup.ranks)),
                            setup.ranks);
    if (median.mfu) text += fmt::format(", MFU {:.1f}% of {:.0f} TFLOP/s", 100 * *median.mfu, *setup.peak_tflops);
    if (median.joules_per_token) text += fmt::format(", {:.3g} J per token", *median.joules_per_token);
    return text + ", mem " + format_bytes(memory);
}

// Why a resumed run makes no step although --max-steps and --stop-after allow more.
static std::string reason_for_no_step(const Options& o, const RunEnd& end) {
    if (end.decayed)
        return fmt::format(
            "step {} was the last one of the decay that was begun by hand; to continue, add --decay-from N with the "
            "step after which the learning rate is to decay instead",
            end.step);
    return fmt::format("--early-stop {} ended the run after step {}; to continue, add --early-stop 0", o.early_stop,
                       end.step);
}

std::string describe_end(const Options& o, const RunEnd& end) {
    if (o.bench) return "";
    const RunResults& seen = end.results;
    std::string text;
    if (const int64_t steps = end.step - end.first_step + 1; steps > 0) {
        const int64_t tokens = o.batches.tokens_until(end.step) - o.batches.tokens_until(end.first_step - 1);
        text += fmt::format("{} ({}) in {}{}\n", counted(steps, "step"), counted(tokens, "token"),
                            format_duration(end.seconds),
                            seen.train ? fmt::format(", last loss {:.4f}", unsigned_nan(seen.train->loss)) : "");
    } else if (end.first_step > o.last_step()) {
        text += end.first_step - 1 == o.schedule.steps
                    ? fmt::format("all {} are done; raise -x to continue\n", counted(o.schedule.steps, "step"))
                    : fmt::format("nothing to do: step {} is past --{} {}\n", end.first_step - 1,
                                  o.stop_after > 0 && o.stop_after < o.schedule.steps ? "stop-after" : "max-steps",
                                  o.last_step());
    } else if (end.stop == StopReason::none) {
        text += "nothing to do: " + reason_for_no_step(o, end) + "\n";
    }
    if (seen.val)
        text += fmt::format(
            "validation loss {:.4f} after step {}{}\n", unsigned_nan(seen.val->loss), seen.val->step,
            seen.best_val && seen.best_val->step != seen.val->step
                ? fmt::format(", best{} {:.4f} after step {}", end.first_step > 1 ? " since the resume" : "",
                              seen.best_val->loss, seen.best_val->step)
                : "");
    if (o.out.empty()) return text;
    if (end.stop == StopReason::none || !end.resumable) text += "weights written to " + o.out + "/model.safetensors\n";
    if (end.resumable && end.step > 0) text += "checkpoints are in " + o.out + "/checkpoints\n";
    if (end.stop == StopReason::none) return ends_badly(seen) ? text : text + next_commands(o);
    if (!end.resumable) return text;
    const char* const from = end.step > 0 ? "latest" : "auto";  // no checkpoint is written before the first step
    return text + "continue with: " + o.program + " -o " + shell_quote(o.out) + " --resume " + from + "\n";
}

std::string problem_of(const Options& o, const RunEnd& end) {
    if (end.stop != StopReason::none)
        return end.resumable
                   ? ""
                   : fmt::format("stopped after step {} ({}); {}", end.step, stop_name(end.stop),
                                 o.out.empty() ? "nothing was saved because the run has no --out"
                                               : "no checkpoint was saved because -n and --checkpoint-minutes "
                                                 "are 0, so the run cannot be continued");
    if (!ends_badly(end.results)) return "";
    const bool validated = is_validated(end.results);
    return fmt::format("the last {} is {:f}, so {}; lower -l, and see --max-skips and --clip",
                       validated ? "validation loss" : "training loss",
                       unsigned_nan(validated ? end.results.val->loss : end.results.train->loss),
                       o.out.empty() ? "the training failed" : "the weights that were written are not usable");
}

ExitCode exit_code_of(const RunEnd& end) {
    if (end.stop == StopReason::unreadable_data) return ExitCode::bad_data;
    if (end.stop != StopReason::none) return end.resumable ? ExitCode::stopped : ExitCode::failure;
    return ends_badly(end.results) ? ExitCode::bad_numbers : ExitCode::ok;
}

void print_end(const Options& o, const RunEnd& end) {
    clear_status();
    std::fputs(describe_end(o, end).c_str(), stdout);
    const std::string problem = problem_of(o, end);
    if (!problem.empty()) print_error("train_gpt: {}", problem);
}

}  // namespace llmc
