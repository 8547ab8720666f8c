// Statistics of the CUDA runtime's copies.
#pragma once
#include <cstdint>

namespace virtual_gpu {

// The number of copies with pageable host memory, for all of which the host waits in some way.
uint64_t pageable_copies();

}  // namespace virtual_gpu
