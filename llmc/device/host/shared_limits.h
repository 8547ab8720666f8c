// A kernel's shared memory as a GPU's driver keeps it (shared_memory.h): what it has in static arrays, and what was
// asked for.
//
// A GPU knows the static bytes before the first launch, from the binary. Here they show when blocks run, so what was
// decided at the launch is decided again whenever a block has more of them than any before.
#pragma once
#include <cstddef>
#include <mutex>

namespace llmc::host {

class SharedLimits {
public:
    static SharedLimits& of(const void* kernel);
    // As if no kernel had run yet: what one launch was granted would hide from tests that another one does not ask.
    static void forget_all();

    // What launch() does on a GPU before every launch with dynamic memory; from now on it is done for this kernel.
    void ask_for(size_t dynamic_bytes);
    // May a block have both? Static bytes that are new to this kernel are remembered.
    bool admits(size_t static_bytes, size_t dynamic_bytes);
    // Static bytes that are known.
    size_t static_bytes();

private:
    void ask(size_t dynamic_bytes);
    size_t granted_now() const;

    std::mutex mutex_;
    size_t static_bytes_ = 0;  // the most that a block has had
    size_t asked_ = 0;         // the attribute, once it was set
    bool asks_ = false;
};

}  // namespace llmc::host
