// How the host device runs kernels: its settings from the environment, and the messages to AddressSanitizer and
// ThreadSanitizer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define LLMC_ASAN 1
#else
#define LLMC_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define LLMC_TSAN 1
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#else
#define LLMC_TSAN 0
#endif

namespace llmc::host {

// ---- settings: read once from the environment; tests change the fields ----------------------------------------------

enum class Order { ascending, descending, random };

// WORK:NUMBER in the environment, where WORK is a part of the name of a kernel, copy or matmul.
struct NumberedWork {
    std::string work;
    uint64_t number = 0;  // 0 if the variable is not set
};

struct Settings {
    Order order = Order::ascending;  // LLMC_ORDER=ascending|descending|random: threads between two barriers
    uint32_t seed = 1;               // LLMC_SEED: for the random order
    bool poison = true;              // LLMC_POISON=0|1: fill shared and fresh device memory with NaN
    bool lazy_streams = false;       // LLMC_STREAMS=lazy: run work as late as its synchronisation allows
    bool random_streams = false;     // LLMC_STREAMS=random: lazy, but at times some stream runs ahead
    bool guard = false;              // LLMC_GUARD=0|1: kernels can only access the device memory they declare
    size_t stack_bytes;              // LLMC_STACK_KB: of one GPU thread
    size_t shared_limit;             // LLMC_SHARED_KB=227|163|99: per block, of the card that is simulated
    size_t memory = SIZE_MAX;        // LLMC_MEMORY_MB: of the device, if that is less than the machine has
    NumberedWork delay;              // LLMC_DELAY=WORK:MS: work of that name takes MS milliseconds more
    // Simulated faults. Their numbers count down, and are 0 once the fault has happened.
    uint64_t fault = 0;  // LLMC_FAULT: the piece of work that breaks the device (1 is the next)
    NumberedWork flip;   // LLMC_FLIP=WORK:N: flip a bit in the output of the N-th piece of work of that name

    Settings();
};

Settings& settings();

// The value of an environment variable, which must be set. Throws Error(bad_flags) unless it is a whole number from
// `least` to `most`.
long number_from_environment(const char* name, long least, long most);

// ---- sanitizers: in an ordinary build all of this is empty ----------------------------------------------------------

// While a Quiet lives, the race detector ignores accesses: the scheduler's own accesses are not the kernel's.
#if LLMC_TSAN
inline constinit thread_local int quiet_depth = 0;  // belongs to the running context
inline void end_ignoring() {
    AnnotateIgnoreWritesEnd("", 0);
    AnnotateIgnoreReadsEnd("", 0);
}
struct Quiet {
    Quiet() {
        AnnotateIgnoreReadsBegin("", 0);
        AnnotateIgnoreWritesBegin("", 0);
        quiet_depth++;
    }
    ~Quiet() {
        quiet_depth--;
        end_ignoring();
    }
    Quiet(Quiet&&) = delete;
};
inline void sync_release(void* address) { __tsan_release(address); }
inline void sync_acquire(void* address) { __tsan_acquire(address); }
#else
struct Quiet {
    Quiet() {}
};
inline void sync_release(void*) {}
inline void sync_acquire(void*) {}
#endif

inline void asan_poison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if LLMC_ASAN
    __asan_poison_memory_region(p, bytes);
#endif
}
inline void asan_unpoison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if LLMC_ASAN
    __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace llmc::host
