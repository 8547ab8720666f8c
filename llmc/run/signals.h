// Stopping a run by signals. SIGINT, SIGTERM, SIGHUP (a closed terminal), SIGUSR1 and SIGUSR2 (Slurm can send one of
// them before a time limit) ask for a clean stop after the current step; one rank that gets a signal is enough. A
// second signal ends the process immediately with the exit code that shells expect (128 + its number). Within two
// seconds this needs two SIGINTs, because launchers and batch systems may deliver one order as two signals.
//
// SIGPIPE and SIGXFSZ are ignored, so that the writing call fails instead of the process. A run whose output nobody
// reads continues, and a file above the limit of `ulimit -f` is reported with its name.
#pragma once

namespace llmc {

void install_signal_handlers();

// While this object exists, Ctrl-C answers "stopping after WORK"; otherwise "stopping after this step".
class StopWaitsFor {
public:
    explicit StopWaitsFor(const char* work);
    ~StopWaitsFor();
    StopWaitsFor(const StopWaitsFor&) = delete;
    StopWaitsFor& operator=(const StopWaitsFor&) = delete;

private:
    const char* const before_;
};

bool stop_requested();
int stop_signal();               // the first signal that asked for a stop; 0 if there was none
const char* stop_signal_name();  // "SIGTERM"; "none"

// For tests: ask for a stop like a signal, and forget all signals.
void request_stop();
void clear_stop_request();

}  // namespace llmc
