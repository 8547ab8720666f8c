// Errors that end the program. Code throws llmc::Error with the exit code its caller should see; main prints the
// message and leaves with that code. A message says what is wrong, with the value, and what to do.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace llmc {

enum class ExitCode : int {
    ok = 0,
    failure = 1,        // anything not listed below
    bad_flags = 2,      // flags or configuration
    bad_data = 3,       // token shards
    checkpoint = 4,     // load or save
    no_resources = 5,   // not enough memory or disk, or no usable device
    bad_numbers = 6,    // skips exhausted, FP8 products missing
    communication = 7,  // a rank was lost or timed out
    stopped = 75,       // stopped by a signal or a limit after saving: requeue
};

class Error : public std::runtime_error {
public:
    Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ExitCode code() const { return code_; }

private:
    ExitCode code_;
};

// printf into a std::string.
[[gnu::format(printf, 1, 2)]] inline std::string strprintf(const char* format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = std::vsnprintf(nullptr, 0, format, args);
    va_end(args);
    std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
    if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
    va_end(again);
    return text;
}

}  // namespace llmc
