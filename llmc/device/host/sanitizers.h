// The host device's messages to AddressSanitizer and ThreadSanitizer. In an ordinary build they are empty.
#pragma once
#include <cstddef>

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

// While a Quiet lives, the race detector ignores accesses: the scheduler's own accesses are not the kernel's.
#if LLMC_TSAN
inline constinit thread_local int quiet_depth = 0;  // of the running context
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
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;
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
