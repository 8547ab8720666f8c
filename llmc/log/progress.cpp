// Formats the lines that a person reads during a run.
#include "llmc/log/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "llmc/base/clock.h"
#include "llmc/comm/launch.h"
#include "llmc/log/metrics.h"
#include "llmc/train/step_results.h"

namespace llmc {
namespace {

constexpr double kSmoothing = 0.95;  // an average over about the last 20 steps

// Joins fields with " | ", which is dimmed in colour.
class Fields {
public:
    explicit Fields(bool colour) : colour_(colour) {}
    void add(const std::string& field, bool alarming = false) {
        if (!text_.empty()) text_ += colour_ ? "\033[2m | \033[0m" : " | ";
        text_ += alarming && colour_ ? "\033[1;31m" + field + "\033[0m" : field;
    }
    const std::string& text() const { return text_; }

private:
    bool colour_;
    std::string text_;
};

}  // namespace

std::string format_progress(const StepRecord& record, const Pace& pace, bool colour) {
    Fields fields(colour);
    fields.add(fmt::format("step {:5}", record.step) + (pace.last_step > 0 ? fmt::format("/{}", pace.last_step) : ""));
    fields.add(fmt::format("loss {:.4f}", unsigned_nan(record.loss)), !std::isfinite(record.loss));
    fields.add(fmt::format("norm {:.4f}", unsigned_nan(record.norm)), !std::isfinite(record.norm));
    fields.add(fmt::format("lr {:.2e}", record.lr));
    fields.add(fmt::format("{:.{}f} ms", record.ms, record.ms < 9999.95 ? 1 : 0));
    if (pace.tokens_per_s) fields.add(with_commas(std::llround(*pace.tokens_per_s)) + " tok/s");
    if (record.mfu && pace.tokens_per_s)
        fields.add(fmt::format("MFU {:.1f}%", 100 * *record.mfu * *pace.tokens_per_s / record.tokens_per_s));
    if (pace.memory) fields.add("mem " + format_bytes(*pace.memory));
    if (pace.seconds_left) fields.add("ETA " + format_duration(*pace.seconds_left));
    if (record.is_skipped()) fields.add("skipped", true);
    return fields.text();
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

std::string format_validation(const ValRecord& record, bool colour) {
    Fields fields(colour);
    fields.add(fmt::format("val  {:5}", record.step));
    for (const ValLoss& set : record.losses) {
        const std::string suffix = set.name.empty() ? "" : "_" + set.name;
        const std::string bits = set.bits_per_byte ? fmt::format(" ({:.4f} bits per byte)", *set.bits_per_byte) : "";
        fields.add(fmt::format("val_loss{} {:.4f}{}", suffix, unsigned_nan(set.loss), bits), !std::isfinite(set.loss));
    }
    for (const TaskScores& task : record.tasks)
        fields.add(fmt::format("{} {:.4f} ({:.4f} normalized)", task.name, task.accuracy, task.normalized_accuracy),
                   false);
    return fields.text();
}

double model_flops_utilization(double flops_per_token, double tokens_per_s, double peak_tflops, int ranks) {
    return flops_per_token * tokens_per_s / (peak_tflops * 1e12 * ranks);
}

bool use_colour(bool is_terminal, const std::function<const char*(const char*)>& variable) {
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

Progress::Progress(std::FILE* out, const ProgressSetup& setup)
    : out_(out), colour_(out && use_colour(isatty(fileno(out)) != 0, std::getenv)), setup_(setup) {}

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
    const std::string line = format_progress(record, pace, colour_);
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
    if (!record.empty()) print(format_validation(record, colour_));
}

void Progress::print(const std::string& line) {
    if (!out_) return;
    clear_status();
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
}

}  // namespace llmc
