// How much shared memory a launch may use. Both devices follow this one rule: launch.cuh obeys it, and the host device
// refuses launches that break it.
//
// A block may use 48 KB without asking, static arrays and dynamic memory together. More dynamic memory must be
// requested per kernel and device (cudaFuncAttributeMaxDynamicSharedMemorySize, by default 48 KB minus the static
// bytes). The limit is the card's sharedMemPerBlockOptin minus the static bytes. A request sets the limit, even to a
// lower value.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/base/error.h"

namespace llmc {

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
