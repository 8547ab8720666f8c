// Chooses between kernels and their CPU loops (llmc/kernels/host/launch.h) in programs that have both, and compares
// them.
#pragma once
#include <functional>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc::host {

// True if kernels run, or with LLMC_LOOPS=compare both; false if loops run alone. test_cpu sets it.
inline bool& runs_kernels() {
    static bool runs = false;
    return runs;
}
bool compares_loops();

// Runs the kernel, restores what it has overwritten and runs the loop. Throws if they have written different bytes.
void run_both(const std::vector<Access>& accesses, const LaunchSite& site, const std::function<void()>& kernel,
              const std::function<void()>& loop);

}  // namespace llmc::host
