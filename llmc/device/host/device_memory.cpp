// The reserved address range of device memory, its allocator, and its protection.
#include "llmc/device/host/runtime.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "llmc/device/math.cuh"

namespace llmc::host {

constexpr size_t kRangeBytes = size_t{1} << 40;  // addresses only; memory is used when it is written
constexpr size_t kPage = 4096;
constexpr size_t kRedZone = 256;

// Handles a fault in guarded device memory. Blames the GPU thread if one is running, else the host code.
static void on_fault(int, siginfo_t* info, void*) {
    const void* address = info->si_addr;
    if (DeviceMemory::instance().contains(address)) {
        fail_kernel("access to device memory at %p that the launch did not declare (or a write to an input)", address);
        std::fprintf(stderr, "host code touched device memory at %p (LLMC_GUARD=1)\n", address);
    } else {
        std::fprintf(stderr, "segmentation fault at %p\n", address);
    }
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

// Installed at every use, since test frameworks and MPI replace the handler in between.
static void install_fault_handler() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    // Runs on the faulting stack, which a GPU thread's error abandons anyway.
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
}

DeviceMemory& DeviceMemory::instance() {
    static DeviceMemory memory;
    return memory;
}

DeviceMemory::DeviceMemory() {
    void* p = MAP_FAILED;
    range_bytes_ = kRangeBytes * 2;
    while (p == MAP_FAILED && range_bytes_ > kRangeBytes >> 8) {
        range_bytes_ /= 2;
        p = mmap(nullptr, range_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (p == MAP_FAILED) throw Error(ExitCode::no_resources, "cannot reserve an address range for device memory");
    base_ = static_cast<char*>(p);
}

size_t DeviceMemory::alignment() const { return settings().guard ? kPage : 256; }

void* DeviceMemory::allocate(size_t bytes) {
    const size_t rounded = round_up(bytes ? bytes : 1, alignment());
    char* p = nullptr;
    auto& candidates = free_[rounded];
    if (!candidates.empty()) {
        p = candidates.back();
        candidates.pop_back();
    } else {
        const size_t with_zone = rounded + round_up(kRedZone, alignment());
        if (top_ + with_zone > range_bytes_)
            throw Error(ExitCode::no_resources, "out of device address space for {} bytes", bytes);
        p = base_ + top_;
        top_ += with_zone;
    }
    if (settings().guard) {
        install_fault_handler();
        protect_range(p, rounded, PROT_READ | PROT_WRITE);
    }
    asan_unpoison(p, rounded);
    // Fills with NaN, so reading memory that was never written shows.
    std::memset(p, settings().poison ? 0xFF : 0, rounded);
    asan_poison(p + bytes, rounded - bytes);
    asan_poison(p + rounded, kRedZone);
    if (settings().guard) protect_range(p, rounded + kPage, PROT_NONE);
    live_[p] = bytes;
    return p;
}

void DeviceMemory::release(void* p) {
    if (!p) return;
    auto it = live_.find(static_cast<char*>(p));
    if (it == live_.end()) throw Error(ExitCode::failure, "device_free: {} is not live device memory", p);
    const size_t rounded = round_up(it->second ? it->second : 1, alignment());
    asan_poison(p, rounded);
    free_[rounded].push_back(static_cast<char*>(p));
    live_.erase(it);
}

void DeviceMemory::check_range(const void* address, size_t bytes, const char* what) const {
    if (!bytes) return;
    const char* c = static_cast<const char*>(address);
    if (!contains(c))
        throw Error(ExitCode::failure, "{}: host pointer {} where device memory is needed", what, address);
    auto it = live_.upper_bound(c);
    if (it != live_.begin()) {
        --it;
        if (c + bytes <= it->first + it->second) return;
    }
    throw Error(ExitCode::failure, "{}: {} bytes at {} reach beyond their allocation (or it was freed)", what, bytes,
                address);
}

void DeviceMemory::protect_range(const void* address, size_t bytes, int protection) {
    if (!bytes) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / kPage * kPage;
    const uintptr_t end = round_up(reinterpret_cast<uintptr_t>(address) + bytes, kPage);
    if (mprotect(reinterpret_cast<void*>(begin), end - begin, protection) == 0) return;
    std::perror("LLMC_GUARD=1: mprotect of device memory");  // memory would stay open, or closed, without a word
    std::abort();
}

void DeviceMemory::protect(const std::vector<Access>& accesses, bool open) {
    if (LLMC_ASAN) {
        if (open) {
            asan_poison(base_, top_);
            for (const Access& a : accesses) asan_unpoison(a.address, a.bytes);
        } else {
            for (const auto& [p, bytes] : live_) asan_unpoison(p, bytes);
        }
    }
    for (const Access& a : accesses) protect_range(a.address, a.bytes, open ? PROT_READ : PROT_NONE);
    if (!open) return;
    for (const Access& a : accesses)
        if (a.writes) protect_range(a.address, a.bytes, PROT_READ | PROT_WRITE);
}

DeviceMemory::Open::Open(const std::vector<Access>& accesses) : accesses_(accesses) {
    DeviceMemory& memory = instance();
    if (!settings().guard || memory.open_count_++ > 0) return;
    install_fault_handler();
    memory.protect(accesses_, true);
}

DeviceMemory::Open::~Open() {
    DeviceMemory& memory = instance();
    if (settings().guard && --memory.open_count_ == 0) memory.protect(accesses_, false);
}

}  // namespace llmc::host
