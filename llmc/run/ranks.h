// The ranks of a run: the Comm that joins them, the watchdog over it, and this rank's device.
#pragma once

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
    // Meets the other ranks, and opens this rank's device.
    void connect(const Options& options, const LaunchInfo& launch);
    // Leaves the other ranks at the end of a program that succeeded; afterwards no collective is allowed. Without it
    // mpirun reports a failure.
    void finish();
    // Call this instead of connect() to plan a run: the ranks do not exist.
    void plan(const Options& options);
    // Fills in the facts about ranks and device that resolve() needs.
    void describe(ResolveInputs& surroundings) const;
    // Bytes to leave free for libraries that allocate later. This excludes the communicator of all ranks, which already
    // exists when free memory is measured.
    size_t libraries_to_come(const Options& options) const;

private:
    bool planned_ = false;
};

// A Comm of `world` ranks that do not exist, on GPUs that are connected as the options say.
Comm planned_ranks(const Options& options, int world);

}  // namespace llmc
