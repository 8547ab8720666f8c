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
// How much shared memory a launch may use.
//
// A block may use 48 KB without asking, static arrays and dynamic memory together. More dynamic memory must be
// requested per kernel and device (cudaFuncAttributeMaxDynamicSharedMemorySize, by default 48 KB minus the static
// bytes). The limit is the card's sharedMemPerBlockOptin minus the static bytes. A request sets the limit, even to a
// lower value.

constexpr size_t kSharedWithoutAsking = 48 * 1024;

// The error of a launch that needs more than `limit`, the largest block that the device allows.
inline std::string shared_memory_excess(size_t static_bytes, size_t dynamic_bytes, size_t limit) {
    return fmt::format(
        "shared memory exceeds the limit: {} static + {} dynamic bytes, and this device gives a block {}", static_bytes,
        dynamic_bytes, limit);
}

// The shared memory of one kernel on one device.
struct SharedMemory {
    size_t static_bytes;  // size of the kernel's static arrays
    size_t granted;       // dynamic bytes that a launch may use at present
    size_t block_limit;   // the most for static and dynamic bytes together, after a request

    bool fits(size_t dynamic_bytes) const { return static_bytes + dynamic_bytes <= block_limit; }
    // True if a launch with this many dynamic bytes needs a request first.
    bool must_ask(size_t dynamic_bytes) const { return dynamic_bytes > granted; }
};

}  // namespace llmc
