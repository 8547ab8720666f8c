// Settings that only the emulator of GPU threads reads, and its messages to ThreadSanitizer.
#pragma once
#include <cstddef>

#include "llmc/device/host/settings.h"

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

enum class Order { ascending, descending, random };

// Read once from the environment, when the first kernel runs; tests change the fields.
struct EmulatorSettings {
    Order order = Order::ascending;  // LLMC_ORDER=ascending|descending|random: threads between two barriers
    size_t stack_bytes;              // LLMC_STACK_KB: of one GPU thread

    EmulatorSettings();
};

EmulatorSettings& emulator_settings();

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

}  // namespace llmc::host
