// The last collectives of this process: what the watchdog prints when nothing moves any more. Written by the main
// thread, read by any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace llmc {

// Seconds on a clock that never jumps.
double monotonic_seconds();

struct OperationEntry {
    enum class State { running, done, issued };  // issued: into a stream, and the device has not come to it
    uint64_t sequence = 0;                       // 1 for the first of the process
    const char* name = "none";
    std::string group;  // label of the communicator
    size_t bytes = 0;   // that this rank sends
    int64_t step = 0;
    State state = State::done;
    double began = 0, ended = 0;  // monotonic_seconds(); of one on a device: issued, seen to be done
    bool on_device = false;
    std::string describe() const;  // "all_gather #12 (shard group, 4096 bytes, step 3, running for 2.5 s)"
};
const char* state_name(OperationEntry::State state);

// How far a device is with an operation. Asked by any thread, and by several.
enum class DeviceProgress { waiting, running, done };
using ProgressQuery = std::function<DeviceProgress()>;

class OperationLog {
public:
    static constexpr size_t kKept = 32;
    static constexpr size_t kAll = ~size_t{0};

    uint64_t begin(const char* name, const std::string& group, size_t bytes);
    void end(uint64_t sequence);
    // In place of end(): the operation is in a stream now. It is unfinished until `progress` says so.
    void issued(uint64_t sequence, ProgressQuery progress);
    // Asks after the oldest unfinished operations, `most` at a time. Nobody is kept waiting by a device that does not
    // answer, but for the caller.
    void look(size_t most = kAll);
    void set_step(int64_t step);

    int64_t step() const;
    OperationEntry last() const;
    std::vector<OperationEntry> recent() const;  // oldest first
    // What this rank is in, or waits for: the oldest operation that runs, else the oldest that was issued and has not
    // begun. Sequence 0: none. look() first.
    OperationEntry unfinished() const;
    double last_activity() const;  // when an operation last began or ended; 0: never

    // From here on ranks may leave.
    void set_finishing();
    bool finishing() const;

private:
    // An operation on a device, kept as long as it is unfinished.
    struct Pending {
        OperationEntry entry;
        std::shared_ptr<const ProgressQuery> progress;
    };
    OperationEntry* kept(uint64_t sequence);  // nullptr: overwritten by later ones
    void note(uint64_t sequence, DeviceProgress progress);

    mutable std::mutex mutex_;
    OperationEntry ring_[kKept];
    std::deque<Pending> pending_;  // oldest first
    uint64_t count_ = 0;
    int64_t step_ = 0;
    double last_activity_ = 0;
    bool finishing_ = false;
};

}  // namespace llmc
