// The other processes of a run, found and agreed with: a Comm, and the watchdog over it. And what this rank's device
// is.
#pragma once
#include <string>

#include "llmc/comm/comm.h"
#include "llmc/comm/launch.h"
#include "llmc/comm/watchdog.h"
#include "llmc/device/runtime.h"
#include "llmc/run/options.h"

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

// Whether a signal has told some rank to stop. A collective. Asked between so many batches of a validation.
bool told_to_stop(const Comm& comm);
constexpr int kBatchesBetweenStops = 8;

// Ranks that do not exist, on GPUs, talking as the options say.
Comm planned_ranks(const Options& options, int world);

}  // namespace llmc
