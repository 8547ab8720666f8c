// Errors that end the program. Code throws llmc::Error with the exit code its caller should see; main prints the
// message and leaves with that code. A message says what is wrong, with the value, and what to do.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

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
    // The message is fmt::format(format, first, rest...).
    template <class First, class... Rest>
    Error(ExitCode code, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
        : Error(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
    ExitCode code() const { return code_; }

private:
    ExitCode code_;
};

// Throw an error about flags or configuration, and about data.
[[noreturn]] inline void refuse(const std::string& message) { throw Error(ExitCode::bad_flags, message); }
template <class First, class... Rest>
[[noreturn]] void refuse(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
    throw Error(ExitCode::bad_flags, format, std::forward<First>(first), std::forward<Rest>(rest)...);
}
[[noreturn]] inline void refuse_data(const std::string& message) { throw Error(ExitCode::bad_data, message); }
template <class First, class... Rest>
[[noreturn]] void refuse_data(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
    throw Error(ExitCode::bad_data, format, std::forward<First>(first), std::forward<Rest>(rest)...);
}

}  // namespace llmc
