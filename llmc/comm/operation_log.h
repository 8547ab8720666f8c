// The last collectives of this process, which the watchdog prints when nothing moves. The main thread writes the log;
// any thread may read it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llmc/base/text.h"

namespace llmc {

// One collective as the log keeps it.
struct OperationEntry {
    enum class State { running, done, issued };  // issued: in a stream, but the device has not reached it
    uint64_t sequence = 0;                       // 1 for the first of the process
    const char* name = "none";
    std::string group;  // label of the communicator
    size_t bytes = 0;   // that this rank sends
    int64_t step = 0;
    State state = State::done;
    double began = 0, ended = 0;  // monotonic_seconds(). On a device: when it was issued, and seen to be done
    bool on_device = false;
    std::string describe() const;  // "all_gather #12 (shard group, 4096 bytes, step 3, running for 2.5 s)"
};
template <>
inline constexpr WordTable<OperationEntry::State> kWords<OperationEntry::State> = {
    {"running", OperationEntry::State::running},
    {"done", OperationEntry::State::done},
    {"issued", OperationEntry::State::issued}};

// The progress of a device operation. Any thread may ask, several at once.
enum class DeviceProgress { waiting, running, done };
using ProgressQuery = std::function<DeviceProgress()>;

class OperationLog {
public:
    static constexpr size_t kKept = 32;
    static constexpr size_t kAll = ~size_t{0};

    uint64_t begin(const char* name, const std::string& group, size_t bytes);
    void end(uint64_t sequence) { note(sequence, DeviceProgress::done); }
    // Instead of end(): the operation is in a stream now, and unfinished until `progress` says it is done.
    void issued(uint64_t sequence, ProgressQuery progress);
    // Asks for the progress of the oldest unfinished operations, at most `most` of them. If the device does not answer,
    // only the caller waits.
    void look(size_t most = kAll);
    void set_step(int64_t step) { step_ = step; }

    OperationEntry last() const {
        const std::lock_guard lock(mutex_);
        return kept_.empty() ? OperationEntry{} : OperationEntry(kept_.back());
    }
    std::vector<OperationEntry> recent() const;  // oldest first
    // The operation that this rank is in or waits for: the oldest running one, or else the oldest one that was issued
    // and has not begun. Its sequence is 0 if there is none. Call look() first.
    OperationEntry unfinished() const;
    // When an operation last began or ended; 0 for never.
    double last_activity() const { return last_activity_; }
    // Seconds from begin() to end() of all operations that blocked the calling thread; excludes those on a device.
    double blocked_seconds() const { return blocked_; }

    // From here on a rank that leaves is no failure.
    void set_finishing() { finishing_ = true; }
    bool finishing() const { return finishing_; }

private:
    struct Kept : OperationEntry {
        // A shared pointer, so that look() can call it without the lock.
        std::shared_ptr<const ProgressQuery> progress;  // of an unfinished operation on a device
    };
    Kept* find(uint64_t sequence);  // nullptr if it made room for others
    void note(uint64_t sequence, DeviceProgress progress);

    mutable std::mutex mutex_;
    std::deque<Kept> kept_;  // consecutive: the last kKept operations, and more from the oldest unfinished one on
    uint64_t count_ = 0;
    std::atomic<int64_t> step_ = 0;
    std::atomic<double> last_activity_ = 0, blocked_ = 0;
    std::atomic<bool> finishing_ = false;
};

}  // namespace llmc
