// Starts a program next to the run.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace llmc {

// Starts the command with `input` as its standard input, and its output on this process's standard error. Ctrl-C in a
// terminal does not reach it. Returns 0 or an errno.
int start_child(const std::vector<std::string>& command, int input, pid_t& pid);
// "failed with exit code 3", "was killed by signal 9"; "" for a status of success. `status` is from waitpid().
std::string describe_failure(int status);

}  // namespace llmc
