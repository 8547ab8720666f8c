// The allocator of device and pinned memory, and the checks of addresses (memory.h).
#include "dev/virtual_gpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "dev/virtual_gpu/card.h"

namespace virtual_gpu {
namespace {

constexpr uint64_t kPage = 4096, kGap = 256;  // unused bytes between neighbours

// Returns whole pages to the system; they read as zero afterwards.
void discard(uint64_t begin, uint64_t end) {
    const uint64_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

void* reserve(size_t bytes, int protection) {
    void* const p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fault("cannot reserve %zu bytes of addresses", bytes);
    return p;
}

Memory& Memory::get() {
    static Memory* const memory = new Memory;  // outlives all static destructors
    return *memory;
}

Memory::Memory() {
    const uint64_t seen = reinterpret_cast<uint64_t>(reserve(kDeviceSpace, PROT_NONE));
    const uint64_t bytes = reinterpret_cast<uint64_t>(reserve(kDeviceSpace, PROT_READ | PROT_WRITE));
    const uint64_t shadow = reinterpret_cast<uint64_t>(reserve(kDeviceSpace, PROT_READ | PROT_WRITE));
    base_ = seen;
    next_ = base_ + (1 << 20);
    shift_ = static_cast<int64_t>(bytes - seen);
    shadow_shift_ = shadow - seen;
}

static void take(Memory::Use& use, size_t bytes) {
    use.now += bytes;
    use.most = std::max(use.most, use.now);
}

uint64_t Memory::allocate(size_t bytes) {
    const std::unique_lock lock(mutex_);
    if (bytes > card().memory_bytes - device_.now) return 0;
    const uint64_t begin = next_, end = begin + bytes;
    if (end + kGap > base_ + kDeviceSpace) return 0;
    next_ = (end + kGap + 255) & ~uint64_t{255};
    live_[begin] = {begin, end, shift_};
    take(device_, bytes);
    generation_++;
    std::memset(reinterpret_cast<void*>(begin + static_cast<uint64_t>(shift_)), 0xFF, bytes);
    return begin;
}

bool Memory::release(uint64_t address) {
    const std::unique_lock lock(mutex_);
    const auto found = live_.find(address);
    if (found == live_.end() || found->second.shift == 0) return false;
    const Range range = found->second;
    for (const uint64_t shift : {static_cast<uint64_t>(shift_), shadow_shift_})
        discard(range.begin + shift, range.end + shift);
    device_.now -= range.end - range.begin;
    freed_[range.begin] = range.end;
    live_.erase(found);
    generation_++;
    return true;
}

void* Memory::allocate_pinned(size_t bytes) {
    void* const p = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (!p) return nullptr;
    const std::unique_lock lock(mutex_);
    const uint64_t begin = reinterpret_cast<uint64_t>(p);
    live_[begin] = {begin, begin + bytes, 0};
    take(pinned_, bytes);
    generation_++;
    return p;
}

bool Memory::release_pinned(void* p) {
    {
        const std::unique_lock lock(mutex_);
        const auto found = live_.find(reinterpret_cast<uint64_t>(p));
        if (found == live_.end() || found->second.shift != 0) return false;
        pinned_.now -= found->second.end - found->second.begin;
        live_.erase(found);
        generation_++;
    }
    std::free(p);
    return true;
}

bool Memory::find(uint64_t address, Range& range) const {
    const std::shared_lock lock(mutex_);
    const auto after = live_.upper_bound(address);
    if (after == live_.begin()) return false;
    const Range& before = std::prev(after)->second;
    if (address >= before.end) return false;
    range = before;
    return true;
}

bool Memory::find(uint64_t address, size_t bytes, Range& range) const {
    return find(address, range) && bytes <= range.end - address;
}

bool Memory::is_device(const void* p) const {
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    return address >= base_ && address < base_ + kDeviceSpace;
}

bool Memory::is_pinned(const void* p) const {
    Range range;
    return find(reinterpret_cast<uint64_t>(p), range) && range.shift == 0;
}

Memory::Use Memory::device_use() const {
    const std::shared_lock lock(mutex_);
    return device_;
}
Memory::Use Memory::pinned_use() const {
    const std::shared_lock lock(mutex_);
    return pinned_;
}

std::string Memory::describe(uint64_t address) const {
    constexpr uint64_t kNear = 65536;
    const std::shared_lock lock(mutex_);
    const auto size = [](const Range& r) { return static_cast<unsigned long long>(r.end - r.begin); };
    const auto dead = freed_.upper_bound(address);
    if (dead != freed_.begin() && address < std::prev(dead)->second) return "in freed memory";
    const auto after = live_.upper_bound(address);
    if (after != live_.begin()) {
        const Range& before = std::prev(after)->second;
        const unsigned long long into = address - before.begin, past = address - before.end;
        if (address < before.end) return format("byte %llu of an allocation of %llu", into, size(before));
        if (past < kNear) return format("%llu bytes past an allocation of %llu bytes", past, size(before));
    }
    if (after != live_.end() && after->second.begin - address < kNear)
        return format("%llu bytes before an allocation",
                      static_cast<unsigned long long>(after->second.begin - address));
    return "in no allocation";
}

std::string Memory::describe(uint64_t address, size_t bytes) const {
    Range range;
    return describe(find(address, range) ? address + bytes - 1 : address);
}

char* Memory::bytes(const void* address, size_t count, const char* what, bool& device) const {
    const uint64_t begin = reinterpret_cast<uint64_t>(address);
    Range range;
    if (!find(begin, count, range))
        fault("%s: %zu bytes at %p: %s", what, count, address, describe(begin, count).c_str());
    device = range.shift != 0;
    return reinterpret_cast<char*>(begin + static_cast<uint64_t>(range.shift));
}

const char* Memory::readable(const void* address, size_t count, const char* what) const {
    bool device;
    const char* const p = bytes(address, count, what, device);
    if (!device || count == 0) return p;
    const uint8_t* const shadow = written(reinterpret_cast<uint64_t>(address));
    // True if the first byte is kWritten and each byte equals the one before it.
    if (shadow[0] == kWritten && std::memcmp(shadow, shadow + 1, count - 1) == 0) return p;
    size_t at = 0;
    while (shadow[at] == kWritten) at++;
    const uint64_t where = reinterpret_cast<uint64_t>(address) + at;
    fault("%s: byte %zu of %zu was never written: %s", what, at, count, describe(where).c_str());
}

char* Memory::writable(const void* address, size_t count, const char* what) {
    bool device;
    char* const p = bytes(address, count, what, device);
    if (device) std::memset(written(reinterpret_cast<uint64_t>(address)), kWritten, count);
    return p;
}

}  // namespace virtual_gpu
