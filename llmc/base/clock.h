// The clock of durations, deadlines and timeouts.
#pragma once
#include <chrono>

namespace llmc {

// Seconds on a clock that never jumps.
inline double monotonic_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmc
