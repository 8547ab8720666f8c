// The signal handler, and the questions whether to stop. The handler only sets lock-free atomics and writes to stderr.
// build: threads
#include "llmc/run/stop.h"

#include "llmc/base/text.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace llmc {
namespace {

// Written by the handler, so lock-free atomics only.
std::atomic<bool> stop{false};
std::atomic<int> first_signal{0};
std::atomic<int> interrupts{0};
std::atomic<long> first_second{0};  // time of the first signal on the monotonic clock
std::atomic<const char*> waits_for{"this step"};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

void say(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text)); }

void handle(int signal_number) {
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

}  // namespace

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
    for (int signal_number : {SIGPIPE, SIGXFSZ}) sigaction(signal_number, &action, nullptr);
}

StopWaitsFor::StopWaitsFor(const char* work) : before_(waits_for.exchange(work)) {}
StopWaitsFor::~StopWaitsFor() { waits_for = before_; }

bool stop_requested() { return stop; }

const char* stop_signal_name() {
    switch (first_signal) {
        case SIGINT:
            return "SIGINT";
        case SIGTERM:
            return "SIGTERM";
        case SIGHUP:
            return "SIGHUP";
        case SIGUSR1:
            return "SIGUSR1";
        case SIGUSR2:
            return "SIGUSR2";
        default:
            return "none";
    }
}

Deadline deadline_after(double minutes) {
    return minutes > 0 ? Deadline(monotonic_seconds() + 60 * minutes) : std::nullopt;
}

StopReason stop_reason(const Deadline& deadline) {
    if (stop_requested()) return StopReason::signal;
    return deadline && monotonic_seconds() > *deadline ? StopReason::out_of_time : StopReason::none;
}

void print_stop(int64_t step, StopReason reason) {
    if (reason == StopReason::none) return;
    print_line("stopping after step {}: {}", step, stop_name(reason));
}

std::string stop_name(StopReason reason) {
    if (reason == StopReason::out_of_time) return "--max-minutes reached";
    return stop_requested() ? stop_signal_name() : "another rank was told to";
}

bool StopPoll::operator()() {
    if (calls_left_-- > 0) return false;
    constexpr int64_t kSecond = 1'000'000, kStop = int64_t{1} << 62;
    const double now = monotonic_seconds();
    const bool stops = stop_reason(deadline_) != StopReason::none;
    const int64_t passed = static_cast<int64_t>(1e6 * (now - last_));
    const int64_t slowest = comm_.host_max(stops ? kStop : passed / interval_);  // microseconds per piece
    if (comm_.world() > 1) interval_ = std::clamp<int64_t>(kSecond / std::max<int64_t>(slowest, 1), 1, 4 * interval_);
    calls_left_ = interval_ - 1;
    last_ = now;
    return slowest == kStop;
}

}  // namespace llmc
