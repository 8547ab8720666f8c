// How much shared memory a launch may have. One rule for both devices: launch.cuh follows it, and the host device
// refuses what it leaves out.
//
// A block has 48 KB as it is, static arrays and dynamic memory together. More dynamic memory has to be asked for, for
// each kernel and device (cudaFuncAttributeMaxDynamicSharedMemorySize, by default 48 KB less the static bytes), up to
// what the card gives a block (sharedMemPerBlockOptin) less the static bytes. Asking sets the limit, downwards too.
#pragma once
#include <cstddef>

namespace llmc {

constexpr size_t kSharedWithoutAsking = 48 * 1024;

// printf's format of what is said of a launch that cannot be: static and dynamic bytes, and what a block has.
constexpr char kSharedExcess[] =
    "shared memory exceeds the limit: %zu static + %zu dynamic bytes, and this device gives a block %zu";

// One kernel on one device.
struct SharedMemory {
    size_t static_bytes;  // of the kernel's arrays
    size_t granted;       // dynamic bytes that a launch may have as things stand
    size_t block_limit;   // static and dynamic bytes, if asked for

    bool fits(size_t dynamic_bytes) const { return static_bytes + dynamic_bytes <= block_limit; }

    // Before a launch with so many dynamic bytes: calls ask(bytes) if it needs more than is granted.
    template <class Ask>
    void provide(size_t dynamic_bytes, Ask&& ask) {
        if (dynamic_bytes <= granted) return;
        ask(dynamic_bytes);
        granted = dynamic_bytes;
    }
};

}  // namespace llmc
