// The handler only sets lock-free atomics and writes to stderr.
// build: threads
#include "llmc/run/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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

int stop_signal() { return first_signal; }

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

void request_stop() { stop = true; }

void clear_stop_request() {
    stop = false;
    first_signal = 0;
    interrupts = 0;
}

}  // namespace llmc
