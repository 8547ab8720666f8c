// Chooses between kernels and their CPU loops (llmc/kernels/host/launch.h) in programs that have both, and compares
// them.
#pragma once
#include <functional>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc::host {

// True if kernels run; false if loops replace those that have one. Tests change it. It begins as true unless
// LLMC_LOOPS=alone.
bool& runs_kernels();

// True with LLMC_LOOPS=compare, while kernels run: then the loops run, too, and have to write the same bytes.
bool compares_loops();

// Runs the kernel, restores what it has overwritten and runs the loop. Throws if they have written different bytes.
void run_both(const std::vector<Access>& accesses, const LaunchSite& site, const std::function<void()>& kernel,
              const std::function<void()>& loop);

}  // namespace llmc::host
