// Runs one test case of this binary in a separate process: for mistakes that end the process (guarded memory, sanitizer
// reports) and for settings that are read once at start-up.
//
// Test cases that only run as such a child are decorated with doctest::skip().
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "dev/emulator/settings.h"

namespace llmc::test {

struct ChildResult {
    std::string output;  // stdout and stderr
    int exit_code = -1;  // 128 + signal if a signal ended it
    bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

// `environment` is a list of assignments in shell syntax: "LLMC_GUARD=1 LLMC_TEST=name".
inline ChildResult run_child(const std::string& test_case, const std::string& environment) {
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    REQUIRE(length > 0);
    self[length] = 0;
    const std::string sanitizers =
        "ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 TSAN_OPTIONS='halt_on_error=1 exitcode=66 atexit_sleep_ms=0' ";
    const std::string command = "env OMP_NUM_THREADS=1 " + sanitizers + environment + " '" + self + "' -tc='" +
                                test_case + "' --no-skip --no-version 2>&1";
    ChildResult result;
    std::FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe);
    char text[4096];
    for (size_t n; (n = std::fread(text, 1, sizeof text, pipe)) > 0;) result.output.append(text, n);
    const int status = pclose(pipe);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace llmc::test
