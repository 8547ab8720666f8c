// Memory of the virtual GPU.
//
// Device addresses are a range that the host cannot touch (PROT_NONE). The bytes themselves lie at a constant distance,
// and after them, byte for byte, flags that say whether each was ever written. A host program that dereferences a
// device pointer crashes at once, as with a real GPU. Addresses are never reused, so use after free is detected. Fresh
// memory is 0xFF, which is NaN in every format.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <string>

#include "dev/virtual_gpu/fault.h"

namespace virtual_gpu {

// A live allocation of device memory or pinned host memory.
struct Range {
    uint64_t begin = 1, end = 0;  // addresses as programs see them
    int64_t shift = 0;            // from an address to its bytes; 0 for pinned host memory
};

constexpr uint64_t kDeviceSpace = uint64_t{1} << 40;
constexpr uint8_t kWritten = 1;

// Reserves addresses of the process. They read as zero and use no memory until they are written. Throws Fault.
void* reserve(size_t bytes, int protection);

// The memory of all devices. Any thread may call.
class Memory {
public:
    static Memory& get();

    uint64_t allocate(size_t bytes);  // device memory, 256-byte aligned; 0 if the card has no more
    bool release(uint64_t address);   // false if it is not the beginning of a live allocation
    void* allocate_pinned(size_t bytes);
    bool release_pinned(void* p);

    bool find(uint64_t address, Range& range) const;                // the live allocation around an address
    bool find(uint64_t address, size_t bytes, Range& range) const;  // and true only if that many bytes lie in it
    bool is_device(const void* p) const;                            // in the range of device addresses, live or not
    bool is_pinned(const void* p) const;
    // Bytes of live allocations.
    struct Use {
        size_t now = 0, most = 0;
    };
    Use device_use() const;
    Use pinned_use() const;
    // For messages: the allocation that contains the address, or the nearest one.
    std::string describe(uint64_t address) const;
    // The place where the bytes leave their allocation, if they begin in one.
    std::string describe(uint64_t address, size_t bytes) const;

    // The bytes at a device or pinned address, which must lie in one live allocation. readable() also requires that all
    // were written. writable() marks them as written. Both throw a Fault otherwise; `what` begins its message.
    const char* readable(const void* address, size_t bytes, const char* what) const;
    char* writable(const void* address, size_t bytes, const char* what);

    // The flags of a device address: one byte per byte of memory, kWritten if it was written.
    uint8_t* written(uint64_t address) const { return reinterpret_cast<uint8_t*>(address + shadow_shift_); }
    // The reverse: the offset of a flag's byte within all device addresses.
    uint64_t device_offset(const uint8_t* written) const {
        return reinterpret_cast<uint64_t>(written) - shadow_shift_ - base_;
    }
    uint64_t address(const uint8_t* written) const { return device_offset(written) + base_; }
    bool is_shadow(const uint8_t* written) const { return device_offset(written) < kDeviceSpace; }
    // Changes with each allocation and release; earlier results of find() may then be outdated.
    uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

private:
    Memory();
    char* bytes(const void* address, size_t count, const char* what, bool& device) const;

    mutable std::shared_mutex mutex_;
    uint64_t base_ = 0, next_ = 0, shadow_shift_ = 0;
    int64_t shift_ = 0;
    Use device_, pinned_;
    std::atomic<uint64_t> generation_{0};
    std::map<uint64_t, Range> live_;
    std::map<uint64_t, uint64_t> freed_;  // begin to end
};

}  // namespace virtual_gpu
