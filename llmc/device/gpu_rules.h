// Rules about what a GPU can run: code for its architecture, and launches within its shared memory. Needs no CUDA, so
// tests run on every machine.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/base/error.h"

namespace llmc {

// ---- code -----------------------------------------------------------------------------------------------------------
// Which GPUs a build has code for, and what to tell the owner of any other GPU.
//
// A build targets a list of architectures, for example "sm_80 sm_90a compute_120" (ARCHS in the Makefile). Code for
// sm_80 runs on capabilities 8.0 to 8.9: its own generation, from its own capability up. Code with a letter, such as
// sm_90a, runs on exactly one capability. PTX without a letter (compute_120) runs on any GPU of that capability or
// above.

// Capabilities are written like the architectures: 89 for 8.9, 120 for 12.0.
bool has_code_for(const std::string& architectures, int capability);

// The GPU_ARCH to build with for this compute capability, or "" if the project does not support it.
std::string gpu_arch_for(int capability);

// The message for a GPU for which has_code_for() is false.
std::string no_code_message(const std::string& architectures, const std::string& gpu, int capability);

// ---- shared memory --------------------------------------------------------------------------------------------------

// The error of a launch that needs more than `limit`, the most that the device gives a block.
inline std::string shared_memory_excess(size_t static_bytes, size_t dynamic_bytes, size_t limit) {
    return fmt::format(
        "shared memory exceeds the limit: {} static + {} dynamic bytes, and this device gives a block {}", static_bytes,
        dynamic_bytes, limit);
}

}  // namespace llmc
