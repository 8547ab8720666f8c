// The host device's memory: one reserved address range, so that device and host pointers can be told apart.
//
// Fresh memory is NaN. With settings().guard the range is closed (PROT_NONE) except while device work runs, and then
// only the tensors that the work declared are open. So host code that dereferences device memory faults, as on a
// machine with a GPU, and a kernel that touches an undeclared tensor is reported. AddressSanitizer builds check
// declarations to the byte.
#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc::host {

class DeviceMemory {
public:
    static DeviceMemory& instance();

    void* allocate(size_t bytes);
    void release(void* p);
    bool contains(const void* p) const;
    // Throws unless [address, address + bytes) lies in one live allocation.
    void check_range(const void* address, size_t bytes, const char* what) const;
    size_t alignment() const;

    // Opens the range to `accesses` while it lives. A nested Open changes nothing.
    class Open {
    public:
        explicit Open(const std::vector<Access>& accesses);
        ~Open();
        Open(const Open&) = delete;
        Open& operator=(const Open&) = delete;

    private:
        const std::vector<Access>& accesses_;
    };

private:
    DeviceMemory();
    void protect(const std::vector<Access>& accesses, bool open);
    void protect_range(const void* address, size_t bytes, int protection);

    char* base_ = nullptr;
    size_t range_bytes_ = 0;
    size_t top_ = 0;  // bytes ever handed out
    std::map<const char*, size_t> live_;
    std::map<size_t, std::vector<char*>> free_;  // by rounded size
    int open_count_ = 0;
};

}  // namespace llmc::host
