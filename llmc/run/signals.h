// Stopping a run from outside. SIGINT, SIGTERM, SIGHUP (a terminal that is closed), SIGUSR1 and SIGUSR2 (one of which
// Slurm sends before a time limit) to any rank ask for a clean stop after the current step. A second one ends the
// process at once, with the exit code that shells expect of it (128 + its number); within two seconds it only does if
// both are SIGINT, because launchers and batch systems may deliver one order in two ways.
//
// SIGPIPE and SIGXFSZ are ignored, so that the call that writes fails instead of the process: a run whose output nobody
// reads any more goes on, and a file above the limit of `ulimit -f` is reported with its name.
#pragma once

namespace llmc {

void install_signal_handlers();

// Names what Ctrl-C waits for, for its answer on the terminal, as long as this object lives; otherwise "this step".
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
int stop_signal();               // the first signal that asked, 0: none
const char* stop_signal_name();  // "SIGTERM"; "none"

// The same as a signal, for limits the program finds itself, and to start over in tests.
void request_stop();
void clear_stop_request();

}  // namespace llmc
