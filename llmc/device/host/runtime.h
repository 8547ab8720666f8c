// The host device's side of the runtime: its memory, how work is submitted, checked and recorded, and how faults are
// simulated.
#pragma once
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "llmc/device/host/settings.h"
#include "llmc/device/runtime.h"

namespace llmc::host {

// The host device's memory: one reserved address range, so that device and host pointers can be told apart.
//
// Fresh memory is NaN. With settings().guard the range is closed (PROT_NONE) except while device work runs, and then
// only the tensors that the work declared are open. So host code that dereferences device memory faults, as on a
// machine with a GPU, and a kernel that touches an undeclared tensor is reported. AddressSanitizer builds check
// declarations to the byte.
class DeviceMemory {
public:
    static DeviceMemory& instance();

    void* allocate(size_t bytes);
    void release(void* p);
    bool contains(const void* p) const {
        const char* c = static_cast<const char*>(p);
        return c >= base_ && c < base_ + top_;
    }
    // Throws unless [address, address + bytes) lies in one live allocation.
    void check_range(const void* address, size_t bytes, const char* what) const;
    size_t alignment() const;

    // Opens the range to `accesses` while it lives. A nested Open changes nothing.
    class Open {
    public:
        explicit Open(const std::vector<Access>& accesses);
        ~Open();
        Open(Open&&) = delete;

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

// Queues `work` on a stream; nullptr runs it at once, after all queued work. It may touch only the declared accesses.
void submit(stream_t stream, std::initializer_list<Access> accesses, const LaunchSite& site,
            std::function<void()> work);

// Throws unless p is null or lies in one of the declared tensors.
void check_pointer(const void* p, std::initializer_list<Access> accesses, const LaunchSite& site);

bool is_device_pointer(const void* p);

// If the emulator runs a kernel on this OS thread, reports an error of the kernel and does not return.
__attribute__((format(printf, 1, 2))) void fail_kernel(const char* format, ...);

// Simulates a GPU fault such as an illegal address, for tests. The work-th piece of work from now on (1 is the next)
// triggers it instead of running. Later work does not run, and every call of the runtime fails; calls that release
// something still release it. 0 cancels the fault, even one that has happened. LLMC_FAULT does the same from the start.
void inject_fault(uint64_t work);

// Statistics of the work since record_operations(true), by kernel name. Matrix products and copies are included.
struct OperationRecord {
    size_t count = 0, bytes_read = 0, bytes_written = 0;
    double seconds = 0;
};
void record_operations(bool on);  // true also clears the statistics
const std::map<std::string, OperationRecord>& operations();

}  // namespace llmc::host
