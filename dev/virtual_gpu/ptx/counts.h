// The work of every kernel of the process, if VIRTUAL_GPU_COUNTS=FILE is set: one JSON object per kernel and line,
// written when the process ends; kernels that ran must live until then. A kernel's sums cover all its launches.
// "shapes" has them for each grid, block and dynamic shared memory separately, with the number of blocks that a
// multiprocessor holds. Every number except "seconds" is independent of the order and the number of threads, unless
// blocks take their work by tickets: then the number of blocks that find some varies.
#pragma once
#include <chrono>
#include <vector>

#include "dev/virtual_gpu/ptx/machine.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu {

// The counter of one launch, which it must not outlive.
class LaunchCounter {
public:
    explicit LaunchCounter(const Launch& launch);
    ~LaunchCounter();
    void add(const Block& block);  // adds the counts of one host thread; only one thread may call it at a time

private:
    const Launch& launch_;
    const std::chrono::steady_clock::time_point begin_;
    std::vector<OpCounts> ops_;
};

}  // namespace virtual_gpu
