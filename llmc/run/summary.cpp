// Builds the text at the start and the end of a run.
#include "llmc/run/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/text.h"

namespace llmc {
namespace {

// The last step that this process can reach.
int64_t last_step_of(const Options& o) { return o.stop_after > 0 ? std::min(o.stop_after, o.max_steps) : o.max_steps; }

std::string passes_of(const Options& o, int64_t train_tokens) {
    if (train_tokens <= 1) return "";
    const double passes = static_cast<double>(o.batches.tokens_until(o.max_steps)) / static_cast<double>(train_tokens);
    return strprintf(
        passes < 0.1 ? ", %.2g passes over the %s of training data" : ", %.1f passes over the %s of training data",
        passes, counted(train_tokens, "token").c_str());
}

std::string length_line(const Options& o, const RunOutlook& outlook) {
    std::string text = strprintf("%s of %s in %s each: %s%s\n", counted(o.max_steps, "step").c_str(),
                                 counted(o.total_batch, "token").c_str(), counted(o.micro_steps, "micro-step").c_str(),
                                 counted(o.batches.tokens_until(o.max_steps), "token").c_str(),
                                 passes_of(o, outlook.train_tokens).c_str());
    const int64_t steps = last_step_of(o) - outlook.first_step + 1;
    if (steps <= 0)
        text += outlook.first_step - 1 == o.max_steps
                    ? strprintf("nothing to do: all %s are done\n", counted(o.max_steps, "step").c_str())
                    : strprintf("nothing to do: step %lld is past --%s %lld\n",
                                static_cast<long long>(outlook.first_step - 1),
                                o.stop_after > 0 && o.stop_after < o.max_steps ? "stop-after" : "max-steps",
                                static_cast<long long>(last_step_of(o)));
    return text;
}

// On a GPU the predicted time, a lower bound; on a CPU only a warning if steps will be slow.
std::string time_note(const Options& o, const DeviceInfo& device, const RunOutlook& outlook) {
    constexpr double kSurprising = 20;  // seconds per step
    if (!outlook.seconds_per_step) return "";
    const double seconds = *outlook.seconds_per_step;
    const int64_t steps = last_step_of(o) - outlook.first_step + 1;
    if (!device.is_host)
        return strprintf("predicted: at least %.1f ms per step, %s for %s (every kernel at its best known rate)\n",
                         1e3 * seconds, format_duration(seconds * static_cast<double>(steps)).c_str(),
                         counted(steps, "step").c_str());
    if (seconds < kSurprising) return "";
    return strprintf(
        "note: these are %s parameters on %s: predicted %.1f minutes or more per step, %s for the run; for a small "
        "run try -e tiny or scripts/demo.sh\n",
        format_count(o.model_config.parameters()).c_str(), counted(device.multiprocessors, "CPU thread").c_str(),
        seconds / 60, format_duration(seconds * static_cast<double>(steps)).c_str());
}

std::string next_commands(const Options& o) {
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
bool is_validated(const RunResults& seen) { return seen.val && (!seen.train || seen.val->step >= seen.train->step); }

bool ends_badly(const RunResults& seen) {
    const std::optional<SeenLoss>& last = is_validated(seen) ? seen.val : seen.train;
    return last && !std::isfinite(last->loss);
}

}  // namespace

std::string describe_start(const Options& o, const Ranks& ranks, const RunOutlook& outlook) {
    const Comm& comm = ranks.comm;
    std::string text;
    for (const std::string& note : o.notes) text += "note: " + note + "\n";
    if (o.out.empty() && !o.bench) text += "note: nothing will be saved: no --out\n";
    if (comm.world() > 1)
        text += strprintf("%d ranks over %s, --zero %d%s\n", comm.world(), comm.name(), o.zero,
                          o.shard_within > 0 ? strprintf(" --shard-within %d", o.shard_within).c_str() : "");
    return text +
           strprintf("%s on %s, %s: %s\n", o.model_config.name.c_str(), ranks.device.name.c_str(), word_of(o.precision),
                     counted(o.model_config.parameters(), "parameter").c_str()) +
           length_line(o, outlook) + time_note(o, ranks.device, outlook);
}

double predicted_cpu_seconds(const Options& o, int threads) {
    constexpr double kFlopsPerThread = 50e9;
    return o.model_config.flops_per_token(o.seq) * static_cast<double>(o.total_batch) / (kFlopsPerThread * threads);
}

std::string describe_end(const Options& o, const RunEnd& end) {
    if (o.bench) return "";
    const RunResults& seen = end.results;
    std::string text;
    if (const int64_t steps = end.step - end.first_step + 1; steps > 0) {
        const int64_t tokens = o.batches.tokens_until(end.step) - o.batches.tokens_until(end.first_step - 1);
        text += strprintf("%s (%s) in %s%s\n", counted(steps, "step").c_str(), counted(tokens, "token").c_str(),
                          format_duration(end.seconds).c_str(),
                          seen.train ? strprintf(", last loss %.4f", unsigned_nan(seen.train->loss)).c_str() : "");
    }
    if (seen.val)
        text += strprintf("validation loss %.4f after step %lld%s\n", unsigned_nan(seen.val->loss),
                          static_cast<long long>(seen.val->step),
                          seen.best_val && seen.best_val->step != seen.val->step
                              ? strprintf(", best %.4f after step %lld", seen.best_val->loss,
                                          static_cast<long long>(seen.best_val->step))
                                    .c_str()
                              : "");
    if (o.out.empty()) return text;
    if (end.stop == StopReason::none || !end.resumable) text += "weights written to " + o.out + "/model.safetensors\n";
    if (end.resumable && end.step > 0) text += "checkpoints are in " + o.out + "/checkpoints\n";
    if (end.stop == StopReason::none) return ends_badly(seen) ? text : text + next_commands(o);
    if (!end.resumable) return text;
    return text + "continue with: " + o.program + " -o " + shell_quote(o.out) + " --resume latest\n";
}

std::string problem_of(const Options& o, const RunEnd& end) {
    if (end.stop != StopReason::none)
        return end.resumable ? ""
                             : strprintf("stopped after step %lld (%s); %s", static_cast<long long>(end.step),
                                         stop_name(end.stop).c_str(),
                                         o.out.empty() ? "nothing was saved because the run has no --out"
                                                       : "no checkpoint was saved because -n and --checkpoint-minutes "
                                                         "are 0, so the run cannot be continued");
    if (!ends_badly(end.results)) return "";
    const bool validated = is_validated(end.results);
    return strprintf("the last %s is %f, so %s; lower -l, and see --max-skips and --clip",
                     validated ? "validation loss" : "training loss",
                     unsigned_nan(validated ? end.results.val->loss : end.results.train->loss),
                     o.out.empty() ? "the training failed" : "the weights that were written are not usable");
}

ExitCode exit_code_of(const RunEnd& end) {
    if (end.stop != StopReason::none) return end.resumable ? ExitCode::stopped : ExitCode::failure;
    return ends_badly(end.results) ? ExitCode::bad_numbers : ExitCode::ok;
}

void print_end(const Options& o, const RunEnd& end) {
    std::fputs(describe_end(o, end).c_str(), stdout);
    const std::string problem = problem_of(o, end);
    if (!problem.empty()) std::fprintf(stderr, "train_gpt: %s\n", problem.c_str());
}

}  // namespace llmc
