// Stopping a run from outside. SIGINT, SIGTERM and SIGUSR1 (what Slurm sends before a time limit) ask for a clean stop
// after the current step; a second SIGINT ends the process at once.
#pragma once

namespace llmc {

void install_signal_handlers();

bool stop_requested();
int stop_signal();               // the first signal that asked, 0: none
const char* stop_signal_name();  // "SIGTERM"; "none"

// The same as a signal, for limits the program finds itself, and to start over in tests.
void request_stop();
void clear_stop_request();

}  // namespace llmc
