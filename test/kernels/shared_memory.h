// Tests of kernels that ask for more shared memory with every shape.
#pragma once
#if !LLMC_CUDA
#include "llmc/device/host/settings.h"
#endif

namespace llmc::test {

// No launch has asked for shared memory yet. A GPU cannot forget what it has granted.
inline void forget_shared_memory() {
#if !LLMC_CUDA
    host::SharedLimits::forget_all();
#endif
}

}  // namespace llmc::test
