// Memory of the virtual GPU.
//
// Device addresses are a range that the host cannot touch (PROT_NONE); the bytes lie a constant distance further on,
// and behind them, byte for byte, whether they were ever written. A host program that follows a device pointer dies at
// once, as it would with a GPU. Addresses are never handed out twice, so that a use after free is seen. Fresh memory is
// 0xFF, which is NaN in every format.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <string>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {

// A live allocation, device memory or pinned host memory.
struct Range {
    uint64_t begin = 1, end = 0;  // addresses as programs see them
    int64_t shift = 0;            // from an address to its bytes; 0: pinned host memory
};

constexpr uint64_t kDeviceSpace = uint64_t{1} << 40;
constexpr uint8_t kWritten = 1;

// Addresses of the process: zeros, which take no memory until they are written. Throws Fault.
void* reserve(size_t bytes, int protection);

// Any thread may call.
class Memory {
public:
    static Memory& get();

    uint64_t allocate(size_t bytes);  // device memory, 256-byte aligned; 0: the card has no more
    bool release(uint64_t address);   // false: not the begin of a live allocation
    void* allocate_pinned(size_t bytes);
    bool release_pinned(void* p);

    bool find(uint64_t address, Range& range) const;                // the live allocation around an address
    bool find(uint64_t address, size_t bytes, Range& range) const;  // and whether so many bytes lie in it
    bool is_device(const void* p) const;                            // in the range of device addresses, live or not
    bool is_pinned(const void* p) const;
    size_t in_use() const;
    std::string describe(uint64_t address) const;                // for messages: in what it lies, or next to what
    std::string describe(uint64_t address, size_t bytes) const;  // where they leave it, if they begin in one

    // The bytes at a device or pinned address, which must lie in one live allocation. readable(): and all were written.
    // writable(): they count as written from now on. Fault otherwise; `what` begins its message.
    const char* readable(const void* address, size_t bytes, const char* what) const;
    char* writable(const void* address, size_t bytes, const char* what);

    // From an address in device memory: where it is kept whether its bytes were written (kWritten), one byte each.
    uint8_t* written(uint64_t address) const { return reinterpret_cast<uint8_t*>(address + shadow_shift_); }
    // The other way round: how far a place of written() is into all device addresses.
    uint64_t device_offset(const uint8_t* written) const {
        return reinterpret_cast<uint64_t>(written) - shadow_shift_ - base_;
    }
    uint64_t address(const uint8_t* written) const { return device_offset(written) + base_; }
    bool is_shadow(const uint8_t* written) const { return device_offset(written) < kDeviceSpace; }
    // Changes with each allocation and release: what find() said before may not hold any more.
    uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

private:
    Memory();
    char* bytes(const void* address, size_t count, const char* what, bool& device) const;

    mutable std::shared_mutex mutex_;
    uint64_t base_ = 0, next_ = 0, shadow_shift_ = 0;
    int64_t shift_ = 0;
    size_t in_use_ = 0;
    std::atomic<uint64_t> generation_{0};
    std::map<uint64_t, Range> live_;
    std::map<uint64_t, uint64_t> freed_;  // begin to end
};

}  // namespace virtual_gpu
