// The other processes of a run, found and agreed with: a Comm, and the watchdog over it. And what this rank's device
// is.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/comm/comm.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/watchdog.h"
#include "llmc/device/runtime.h"
#include "llmc/flags/options.h"

namespace llmc {

struct Ranks {
    Watchdog watchdog;
    Comm comm = Comm::self();
    DeviceInfo device;

    Ranks(const Options& options, const LaunchInfo& launch);
    ~Ranks() { watchdog.stop(); }
    // Opens this rank's device.
    void connect(const Options& options, const LaunchInfo& launch);
    // Instead: the ranks of a plan, which do not exist.
    void plan(const Options& options);
    // What the device tells resolve(). The rest of ResolveInputs is as it was.
    void describe(ResolveInputs& surroundings) const;
    // Bytes to be left free for what libraries take later. The world's communicator is there already when free memory
    // is asked.
    size_t libraries_to_come(const Options& options) const;

private:
    bool planned_ = false;
};

// Asks between pieces of work (a batch of a validation, a token of a sample) if a signal has told some rank to stop, or
// a rank's deadline has passed. Asking is a collective, so several ranks ask about once a second, in an interval that
// they agree on. One rank asks after every piece.
class StopPoll {
public:
    using Clock = std::chrono::steady_clock;
    explicit StopPoll(const Comm& comm, std::optional<Clock::time_point> deadline = {})
        : comm_(comm), deadline_(deadline) {}

    // Every rank calls it before each piece. True on all ranks if the work should end here.
    bool operator()();

private:
    const Comm& comm_;
    const std::optional<Clock::time_point> deadline_;
    Clock::time_point last_ = Clock::now();
    int64_t interval_ = 1, calls_left_ = 0;
};

// Ranks that do not exist, on GPUs, talking as the options say.
Comm planned_ranks(const Options& options, int world);

}  // namespace llmc
