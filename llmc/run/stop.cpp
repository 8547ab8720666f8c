// The signal handler, and the questions whether to stop. The handler only sets lock-free atomics and writes to stderr.
// Reads and refuses the file that begins a decay.
// build: threads
#include "llmc/run/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/base/child.h"
#include "llmc/base/clock.h"
#include "llmc/base/files.h"
#include "llmc/data/order.h"
#include "llmc/log/run_directory.h"
#include "llmc/train/config.h"

namespace llmc {

// Written by the handler, so lock-free atomics only.
static std::atomic<bool> stop{false};
static std::atomic<int> first_signal{0};
static std::atomic<int> interrupts{0};
static std::atomic<long> first_second{0};  // time of the first signal on the monotonic clock
static std::atomic<const char*> waits_for{"this step"};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

static void say(const char* text) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

static void handle(int signal_number) {
    const int saved_errno = errno;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const bool interrupt = signal_number == SIGINT;
    if (stop && ((interrupt && interrupts > 0) || now.tv_sec - first_second > 1)) _exit(128 + signal_number);
    if (interrupt) interrupts++;
    if (!stop) first_second = now.tv_sec;
    int none = 0;
    first_signal.compare_exchange_strong(none, signal_number);
    stop = true;
    if (signal_number == SIGINT) {
        say("\nstopping after ");
        say(waits_for);
        say(" (Ctrl-C again stops at once)\n");
    }
    errno = saved_errno;
}

void install_signal_handlers() {
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;  // interrupted reads and writes continue
    sigemptyset(&action.sa_mask);
    for (int signal_number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaction(signal_number, &action, nullptr);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // keep ignoring it under nohup
    action.sa_handler = SIG_IGN;
    for (int signal_number : kIgnoredSignals) sigaction(signal_number, &action, nullptr);
}

StopWaitsFor::StopWaitsFor(const char* work) : before_(waits_for.exchange(work)) {}
StopWaitsFor::~StopWaitsFor() { waits_for = before_; }

bool stop_requested() { return stop; }

std::string stop_signal_name() { return first_signal == 0 ? "none" : std::string("SIG") + sigabbrev_np(first_signal); }

Deadline deadline_after(double minutes) {
    return minutes > 0 ? Deadline(monotonic_seconds() + 60 * minutes) : std::nullopt;
}

StopReason stop_reason(const Deadline& deadline) {
    if (stop_requested()) return StopReason::signal;
    return deadline && monotonic_seconds() > *deadline ? StopReason::out_of_time : StopReason::none;
}

std::string stop_name(StopReason reason) {
    if (reason == StopReason::out_of_time) return "--max-minutes reached";
    if (reason == StopReason::unreadable_data) return "data cannot be read";
    return stop_requested() ? stop_signal_name() : "another rank was told to";
}

StopPoll::StopPoll(const Comm& comm, const Deadline& deadline)
    : comm_(comm), deadline_(deadline), last_(monotonic_seconds()) {}

bool StopPoll::operator()(bool mine) {
    if (calls_left_-- > 0) return false;
    constexpr int64_t kSecond = 1'000'000, kStop = int64_t{1} << 62;
    const double now = monotonic_seconds();
    const bool stops = mine || stop_reason(deadline_) != StopReason::none;
    const int64_t passed = static_cast<int64_t>(1e6 * (now - last_));
    const int64_t slowest = comm_.host_max(stops ? kStop : passed / interval_);  // microseconds per piece
    if (comm_.world() > 1) interval_ = std::clamp<int64_t>(kSecond / std::max<int64_t>(slowest, 1), 1, 4 * interval_);
    calls_left_ = interval_ - 1;
    last_ = now;
    return slowest == kStop;
}

DecayFile::DecayFile(const TrainerConfig& config, const TrainSources& sources, const RunDirectory& directory,
                     double seconds_between_looks)
    : config_(config), sources_(sources), interval_(seconds_between_looks), directory_(directory.path()) {}

int64_t DecayFile::look(int64_t step) {
    const double now = monotonic_seconds();
    if (directory_.empty() || now < next_look_) return kNone;
    next_look_ = now + interval_;
    const std::string path = directory_ + "/decay";
    if (!path_exists(path)) return kNone;
    std::string text;
    try {
        constexpr InputKind kind = {"request", "one line with a number of steps", ExitCode::failure, 1, false};
        text = read_input(path, kind);
    } catch (const Error& error) {
        text = error.what();
    }
    if (text == answered_) return kNone;
    const bool seen = text == std::exchange(seen_, text);
    if (!seen && !text.ends_with('\n')) return kNone;  // its writer may not be done yet
    answered_ = text;
    const std::optional<int64_t> steps = number_in<int64_t>(text.substr(0, text.find_last_not_of(" \t\r\n") + 1));
    if (!steps) {
        print_error("train_gpt: step {}: {} is ignored: expected one line with a number of steps, such as 2000", step,
                    path);
        return kNone;
    }
    const std::string problem = problem_of(step, *steps);
    if (problem.empty()) return *steps;
    print_error("train_gpt: step {}: {} is ignored and deleted: {}", step, path, problem);
    if (unlink(path.c_str()) != 0) directory_.clear();
    return kNone;
}

void DecayFile::forget() {
    if (!directory_.empty() && is_run_file(directory_, "decay")) unlink((directory_ + "/decay").c_str());
    directory_.clear();
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
    for (const TrainSources::Stage& stage : sources_.stages)
        if (const int64_t start = stage.steps_before(schedule.steps); stage.is_percentage && start > step)
            return fmt::format(
                "--train begins a stage at a percentage of -x, after step {}; resume the run with @{} in "
                "its place, and ask again",
                start, start);
    return "";
}

}  // namespace llmc
