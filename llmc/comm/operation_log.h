// The last collectives of this process: what the watchdog prints when nothing moves any more. Written by the main
// thread, read by any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace llmc {

// Seconds on a clock that never jumps.
double monotonic_seconds();

struct OperationEntry {
    enum class State { running, done, issued };  // issued: a device does it, and its end is not seen
    uint64_t sequence = 0;                       // 1 for the first of the process
    const char* name = "none";
    std::string group;  // label of the communicator
    size_t bytes = 0;   // that this rank sends
    int64_t step = 0;
    State state = State::done;
    double began = 0, ended = 0;   // monotonic_seconds()
    std::string describe() const;  // "all_gather #12 (shard group, 4096 bytes, step 3, running for 2.5 s)"
};
const char* state_name(OperationEntry::State state);

class OperationLog {
public:
    static constexpr size_t kKept = 32;

    uint64_t begin(const char* name, const std::string& group, size_t bytes);
    void end(uint64_t sequence, OperationEntry::State state = OperationEntry::State::done);
    void set_step(int64_t step);

    int64_t step() const;
    OperationEntry last() const;
    std::vector<OperationEntry> recent() const;  // oldest first
    double last_activity() const;                // when an operation last began or ended; 0: never

    // From here on ranks may leave.
    void set_finishing();
    bool finishing() const;

private:
    mutable std::mutex mutex_;
    OperationEntry ring_[kKept];
    uint64_t count_ = 0;
    int64_t step_ = 0;
    double last_activity_ = 0;
    bool finishing_ = false;
};

}  // namespace llmc
