// A kernel's shared memory as a GPU's driver tracks it (shared_memory.h): the size of its static arrays, and the
// dynamic bytes requested for it.
//
// A GPU knows the static bytes from the binary, before the first launch. The host device sees them only when blocks
// run, so it repeats the decisions of the launch whenever a block has more static bytes than any before.
#pragma once
#include <cstddef>
#include <mutex>

namespace llmc::host {

class SharedLimits {
public:
    static SharedLimits& of(const void* kernel);
    // Forgets all kernels. Otherwise one launch's request would hide from tests that another launch makes none.
    static void forget_all();

    // Does what launch() does on a GPU before a launch with dynamic memory, and marks this kernel as one that asks.
    void ask_for(size_t dynamic_bytes);
    // True if a block may have both. Remembers static bytes that are new for this kernel.
    bool admits(size_t static_bytes, size_t dynamic_bytes);
    // The static bytes known so far.
    size_t static_bytes();

private:
    void ask(size_t dynamic_bytes);
    size_t granted_now() const;

    std::mutex mutex_;
    size_t static_bytes_ = 0;  // the most of any block so far
    size_t asked_ = 0;         // the requested dynamic bytes; 0 before the first request
    bool asks_ = false;
};

}  // namespace llmc::host
