// Formats the lines that a person reads during a run.
#include "llmc/log/progress.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/clock.h"
#include "llmc/comm/launch.h"
#include "llmc/log/metrics.h"
#include "llmc/train/step_results.h"

namespace llmc {

constexpr double kSmoothing = 0.95;  // an average over about the last 20 steps

std::string format_progress(const StepRecord& record, const Pace& pace) {
    std::string text = fmt::format("step {:5}", record.step);
    if (pace.last_step > 0) text += fmt::format("/{}", pace.last_step);
    text += fmt::format(" | loss {:.4f} | norm {:.4f} | lr {:.2e} | {:.{}f} ms", unsigned_nan(record.loss),
                        unsigned_nan(record.norm), record.lr, record.ms, record.ms < 9999.95 ? 1 : 0);
    if (pace.tokens_per_s) text += " | " + with_commas(std::llround(*pace.tokens_per_s)) + " tok/s";
    if (record.mfu && pace.tokens_per_s)
        text += fmt::format(" | MFU {:.1f}%", 100 * *record.mfu * *pace.tokens_per_s / record.tokens_per_s);
    if (pace.memory) text += " | mem " + format_bytes(*pace.memory);
    if (pace.seconds_left) text += " | ETA " + format_duration(*pace.seconds_left);
    return text + (record.is_skipped() ? " | skipped" : "");
}

std::string format_spike(const StepRecord& record) {
    std::string what;
    auto add = [&](const char* name, float value, std::optional<float> limit) {
        if (!limit) return;
        what += fmt::format("{}{} {:.4f} > {:.4f}", what.empty() ? "" : " and ", name, value, *limit);
    };
    add("loss", record.loss, record.spike.loss);
    add("gradient norm", record.norm, record.spike.norm);
    return fmt::format("spike at step {}: {} (mean + 6 sigma); {}", record.step, what,
                       record.is_skipped() ? "step skipped" : "step kept (--skip-spikes would skip it)");
}

std::string format_fresh_loss(const StepRecord& record) {
    const FreshLoss& fresh = *record.fresh;
    if (std::abs(record.loss - fresh.expected) <= fresh.margin) return "";
    return fmt::format(
        "note: step {}: the loss of freshly initialised weights is {:.2f} instead of about {:.2f} (ln(V) = {:.2f}): "
        "the model's first pass went wrong, or the data is not what it seems",
        record.step, unsigned_nan(record.loss), fresh.expected, fresh.ln_vocab);
}

std::string format_validation(const ValRecord& record) {
    std::string text = fmt::format("val  {:5}", record.step);
    for (const ValLoss& set : record.losses) {
        text += fmt::format(" | val_loss{} {:.4f}", set.name.empty() ? "" : "_" + set.name, unsigned_nan(set.loss));
        if (set.bits_per_byte) text += fmt::format(" ({:.4f} bits per byte)", *set.bits_per_byte);
    }
    for (const TaskScores& task : record.tasks)
        text += fmt::format(" | {} {:.4f} ({:.4f} normalized)", task.name, task.accuracy, task.normalized_accuracy);
    return text;
}

double model_flops_utilization(double flops_per_token, double tokens_per_s, double peak_tflops, int ranks) {
    return flops_per_token * tokens_per_s / (peak_tflops * 1e12 * ranks);
}

bool is_watched(bool is_terminal, const std::function<const char*(const char*)>& variable) {
    const auto text = [&](const char* name) -> std::string { return variable(name) ? variable(name) : ""; };
    if (!is_terminal || !text("NO_COLOR").empty() || text("TERM") == "dumb") return false;
    return text("OMPI_COMM_WORLD_RANK").empty() && launch_environment(variable).alone();
}

int64_t steps_between_lines(int64_t steps) {
    for (int64_t power = 1;; power *= 10)
        for (const int64_t digit : {1, 2, 5})
            if (200 * digit * power >= steps) return digit * power;
}

void Throughput::add(double tokens, double ms) {
    if (first_) {
        first_ = false;
        return;
    }
    weight_ = kSmoothing * weight_ + (1 - kSmoothing);
    tokens_ = kSmoothing * tokens_ + (1 - kSmoothing) * tokens;
    ms_ = kSmoothing * ms_ + (1 - kSmoothing) * ms;
}

std::optional<double> Throughput::tokens_per_s() const {
    if (weight_ == 0 || ms_ <= 0) return std::nullopt;
    return 1000 * tokens_ / ms_;  // both averages have the same factor `weight_`
}

std::optional<double> Throughput::ms_per_step() const {
    if (weight_ == 0) return std::nullopt;
    return ms_ / weight_;
}

Progress::Progress(std::FILE* out, const ProgressSetup& setup) : out_(out), setup_(setup) {}

void Progress::step(const StepRecord& record, std::optional<size_t> memory) {
    throughput_.add(record.tokens_per_s * record.ms * 1e-3, record.ms);
    Pace pace;
    pace.last_step = setup_.last_step;
    pace.tokens_per_s = throughput_.tokens_per_s();
    pace.memory = memory;
    if (!first_report_) {
        first_report_ = monotonic_seconds();
    } else {
        steps_since_++;
        ms_since_ += record.ms;
    }
    if (const auto ms = throughput_.ms_per_step(); ms && setup_.last_step >= record.step)
        pace.seconds_left = seconds_left(record.step, *ms);
    const bool unusual =
        record.is_skipped() || record.spike || !std::isfinite(record.loss) || !std::isfinite(record.norm);
    const int64_t every = setup_.log_every > 0 ? setup_.log_every : steps_between_lines(setup_.last_step);
    const std::string line = format_progress(record, pace);
    if (record.step % every == 0 || steps_since_ == 0 || record.step == setup_.last_step || unusual)
        print(line);
    else if (out_)
        show_status(line);
    if (record.spike) print(format_spike(record));
    if (const std::string note = record.fresh ? format_fresh_loss(record) : ""; !note.empty()) print(note);
}

// Time for validations, samples and saves so far is spread evenly over the steps.
double Progress::seconds_left(int64_t step, double ms_per_step) const {
    const double ms = 1e3 * (monotonic_seconds() - *first_report_);
    const double between = steps_since_ > 0 ? std::max(0.0, ms - ms_since_) / static_cast<double>(steps_since_) : 0;
    return static_cast<double>(setup_.last_step - step) * (ms_per_step + between) / 1000;
}

void Progress::validation(const ValRecord& record) {
    if (!record.empty()) print(format_validation(record));
}

void Progress::print(const std::string& line) {
    if (!out_) return;
    clear_status();
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
}

}  // namespace llmc
