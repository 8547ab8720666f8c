// Settings of the host device, from the environment, and the messages to AddressSanitizer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define LLMC_ASAN 1
#else
#define LLMC_ASAN 0
#endif

namespace llmc::host {

// ---- settings: read once from the environment; tests change the fields ----------------------------------------------

// WORK:NUMBER in the environment, where WORK is a part of the name of a kernel, copy or matmul.
struct NumberedWork {
    std::string work;
    uint64_t number = 0;  // 0 if the variable is not set
};

struct Settings {
    uint32_t seed = 1;            // LLMC_SEED: for all random orders
    bool poison = true;           // LLMC_POISON=0|1: fill fresh device memory, and shared memory, with NaN
    bool lazy_streams = false;    // LLMC_STREAMS=lazy: run work as late as its synchronisation allows
    bool random_streams = false;  // LLMC_STREAMS=random: lazy, but at times some stream runs ahead
    bool guard = false;           // LLMC_GUARD=0|1: kernels can only access the device memory they declare
    size_t shared_limit;          // LLMC_SHARED_KB=227|163|99: per block, of the card that is simulated
    size_t memory = SIZE_MAX;     // LLMC_MEMORY_MB: of the device, if that is less than the machine has
    NumberedWork delay;           // LLMC_DELAY=WORK:MS: work of that name takes MS milliseconds more
    // Simulated faults. Their numbers count down, and are 0 once the fault has happened.
    uint64_t fault = 0;  // LLMC_FAULT: the piece of work that breaks the device (1 is the next)
    NumberedWork flip;   // LLMC_FLIP=WORK:N: flip a bit in the middle of the first output of the N-th such work

    Settings();
};

Settings& settings();

// The index of the environment variable's value among `choices`. The first is the default.
int choice_from_environment(const char* name, std::initializer_list<const char*> choices);
// The value of an environment variable, which must be set. Throws Error(bad_flags) unless it is a whole number from
// `least` to `most`.
long number_from_environment(const char* name, long least, long most);

// ---- AddressSanitizer: in an ordinary build all of this is empty ----------------------------------------------------

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
