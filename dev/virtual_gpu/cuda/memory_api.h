// What the CUDA runtime's copies have done.
#pragma once
#include <cstdint>

namespace virtual_gpu {

// Copies with pageable host memory, which the host waits for in one way or another.
uint64_t pageable_copies();

}  // namespace virtual_gpu
