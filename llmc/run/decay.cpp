// Reads and refuses the file that begins a decay. See decay.h.
#include "llmc/run/decay.h"

#include <unistd.h>

#include <filesystem>

#include "llmc/base/clock.h"
#include "llmc/base/files.h"
#include "llmc/base/text.h"
#include "llmc/train/words.h"

namespace llmc {

DecayFile::DecayFile(const TrainerConfig& config, const RunDirectory& directory)
    : config_(config), path_(directory.active() ? directory.file("decay") : "") {}

int64_t DecayFile::look(int64_t step) {
    const double now = monotonic_seconds();
    if (path_.empty() || now < next_look_) return kNone;
    next_look_ = now + 1;
    std::error_code ignored;
    if (!std::filesystem::exists(path_, ignored)) return kNone;
    std::string problem;
    int64_t steps = kNone;
    try {
        constexpr InputKind kind = {"request", "one line with a number of steps", ExitCode::failure, 1};
        const std::string text = read_input(path_, kind);
        if (!text.ends_with('\n')) return kNone;  // its writer is not done yet
        const std::optional<int64_t> asked = number_in<int64_t>(text.substr(0, text.find('\n')));
        steps = asked.value_or(kNone);
        problem = asked ? problem_of(step, steps) : "expected one line with a number of steps, such as 2000";
    } catch (const Error& error) {
        problem = error.what();
    }
    if (problem.empty()) return steps;
    print_error("train_gpt: step {}: {} is ignored and deleted: {}", step, path_, problem);
    if (unlink(path_.c_str()) != 0) path_.clear();  // a directory, for example
    return kNone;
}

void DecayFile::forget() {
    if (!path_.empty()) unlink(path_.c_str());
    path_.clear();
}

std::string DecayFile::problem_of(int64_t step, int64_t steps) const {
    const ScheduleConfig& schedule = config_.schedule;
    if (!takes_decay_from(schedule.kind))
        return fmt::format("--schedule {} has no decay to begin; wsd, wsd-linear and inverse-sqrt have one",
                           word_of(schedule.kind));
    if (step < schedule.warmup) return fmt::format("the warm-up takes {}", plural(schedule.warmup, "step"));
    const bool is_constant = schedule.kind != ScheduleKind::inverse_sqrt;
    const bool decays = is_constant ? learning_rate(schedule, step) < schedule.lr
                                    : schedule.decay_from >= 0 && step >= schedule.decay_from;
    if (decays) return "the learning rate decays already";
    const int64_t left = schedule.steps - step;
    if (steps < 1 || steps > left)
        return fmt::format("it asks for a decay of {}; {} to {} are possible", plural(steps, "step"), 1, left);
    if (config_.optimizer.average.kind == AverageKind::last)
        return "--average last:N needs the run to end with --max-steps";
    return "";
}

}  // namespace llmc
