// What every kernel of the process did, where VIRTUAL_GPU_COUNTS=FILE asks for it: one JSON object a line and kernel,
// written at the process's end; kernels that ran must live until then. A kernel's sums are of all its launches; under
// "shapes" they stand for each grid, block and dynamic shared memory apart, with how many of the blocks a
// multiprocessor holds. Every number but "seconds" is the same for any order and any number of threads.
#pragma once
#include <chrono>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu {

// Of one launch, which it must not outlive.
class LaunchCounter {
public:
    explicit LaunchCounter(const Launch& launch);
    ~LaunchCounter();
    void add(const Block& block);  // what one host thread counted of it; one thread at a time

private:
    const Launch& launch_;
    const std::chrono::steady_clock::time_point begin_;
    std::vector<OpCounts> ops_;
    Sectors sectors_;
};

}  // namespace virtual_gpu
