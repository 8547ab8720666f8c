// Work by tickets: the workers of a launch take its items from a counter, one after the other, until none is left. A
// worker that starts late, because NCCL's kernels hold its multiprocessor, finds fewer items or none, and so delays
// nobody. No result depends on which worker computes an item.
//
// The counter is a word of device memory, which is 0 before a launch and after it. It resets itself: a worker stops at
// its first ticket for which there is no item, so a launch takes items + workers tickets, and with the last of them the
// counter wraps around. Launches that may run at the same time need counters of their own.
#pragma once
#include "llmc/device/kernel.cuh"

namespace llmc::hopper {

struct Tickets {
    unsigned* counter;
    int items, workers;

    // From `items` on there is no item. The answer takes about a microsecond.
    LLMC_DEVICE int take() const {
        return static_cast<int>(atomicInc(counter, static_cast<unsigned>(items + workers - 1)));
    }
};

// The access of a launch to its counter.
inline Tensor<unsigned> tickets_access(unsigned* counter) { return inout(counter, 1); }

}  // namespace llmc::hopper
