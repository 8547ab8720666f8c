// Completes the records of steps and writes them, and notices when a run has to end.
#include "llmc/run/step_reports.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/log/fingerprint.h"
#include "llmc/log/skips.h"
#include "llmc/run/bench.h"
#include "llmc/run/signals.h"

namespace llmc {

Deadline deadline_after(double minutes) {
    constexpr double kLongest = 1e7;  // 19 years; the clock can represent more
    if (minutes <= 0) return std::nullopt;
    return std::chrono::steady_clock::now() +
           std::chrono::milliseconds(static_cast<int64_t>(60e3 * std::min(minutes, kLongest)));
}

StopReason stop_reason(const Deadline& deadline) {
    if (stop_requested()) return StopReason::signal;
    return deadline && std::chrono::steady_clock::now() > *deadline ? StopReason::out_of_time : StopReason::none;
}

void print_stop(int64_t step, StopReason reason) {
    if (reason == StopReason::none) return;
    std::printf("stopping after step %lld: %s\n", static_cast<long long>(step), stop_name(reason).c_str());
}

std::string stop_name(StopReason reason) {
    if (reason == StopReason::out_of_time) return "--max-minutes reached";
    return stop_requested() ? stop_signal_name() : "another rank was told to";
}

std::string describe_pass_end(const TokenSchedule& batches, int64_t tokens_per_pass, int64_t step, int64_t data_step) {
    if (tokens_per_pass <= batches.tokens_of(data_step)) return "";
    const int64_t passes = batches.tokens_until(data_step) / tokens_per_pass;
    if (passes == batches.tokens_until(data_step - 1) / tokens_per_pass) return "";
    return strprintf("step %lld: pass %lld over the training data is complete", static_cast<long long>(step),
                     static_cast<long long>(passes));
}

// Equal logits give a loss of ln(V). Logits of C normalised channels and a head from N(0, s), with s = 0.02 in GPT-2,
// have a variance of C * s^2, which adds half of that.
FreshLoss fresh_loss(const ModelConfig& model) {
    const double ln_vocab = std::log(model.vocab);
    const ModelTable table = model.table();
    const double deviation = initial_deviation(model, model.tied ? table.embedding.front() : table.final.back());
    return {ln_vocab, ln_vocab + 0.5 * model.channels * deviation * deviation};
}

StepReports::StepReports(const Options& options, const ProgressSetup& setup, const PassOverData& pass,
                         const Fp8Registry* fp8, const Comm& comm, RunDirectory& directory)
    : options_(options),
      fp8_(fp8),
      directory_(directory),
      nowhere_(std::fopen("/dev/null", "w"), std::fclose),
      setup_(setup),
      pass_(pass),
      progress_(comm.is_main() ? stdout : nowhere_.get(), setup) {}

void StepReports::add_facts(StepRecord& record, uint64_t batch_hash, const Energy& energy) const {
    const int64_t length = options_.sequences.tokens_of(record.step);
    record.tokens = options_.batches.tokens_until(record.step);
    if (!options_.sequences.stages().empty()) record.seq = length;
    record.flops_per_token = options_.model_config.flops_per_token(static_cast<int>(length));
    record.batch_hash = fingerprint_text(batch_hash);
    if (std::isfinite(energy.watts)) {
        record.watts = energy.watts;
        record.joules_per_token = energy.joules / static_cast<double>(options_.batches.tokens_of(record.step));
    }
    if (record.step == 1 && options_.init_from.empty()) record.fresh = fresh_loss(options_.model_config);
}

void StepReports::report(StepRecord record) {
    record.tokens_per_s = static_cast<double>(options_.batches.tokens_of(record.step)) / record.ms * 1e3;
    directory_.record(record);
    progress_.step(record, device_bytes_in_use());
    results_.train = {record.step, record.loss};
    if (const std::string note =
            describe_pass_end(options_.batches, pass_.tokens, record.step, record.step + pass_.steps_ahead);
        !note.empty())
        progress_.print(note);
    if (options_.bench) benched_.push_back(record);
    if (record.verified) check_bits(record);
    check_skips(record, options_.max_skips, fp8_);
}

void StepReports::check_bits(const StepRecord& record) {
    const std::string& difference = record.verified->difference;
    if (difference.empty()) return;
    const std::string text = strprintf(
        "step %lld: silent data corruption: %s. Nothing was saved from this step on: test or replace that card, and "
        "continue with --resume latest",
        static_cast<long long>(record.step), difference.c_str());
    directory_.append({{"step", record.step}, {"corruption", difference}});
    directory_.record_end(record.step, text);
    throw Error(ExitCode::bad_numbers, text);
}

void StepReports::report(const ValRecord& record) {
    directory_.record(record);
    progress_.validation(record);
    if (record.losses.empty()) return;
    results_.val = {record.step, record.losses[0].loss};
    if (!results_.best_val || results_.val->loss < results_.best_val->loss) results_.best_val = results_.val;
}

void StepReports::print_bench() {
    if (options_.bench) progress_.print(format_bench(benched_, setup_, device_bytes_in_use()));
}

}  // namespace llmc
