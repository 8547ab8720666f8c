// The host device's side of the runtime: how work is submitted, checked and recorded, and how faults are simulated.
#pragma once
#include <functional>
#include <initializer_list>
#include <map>
#include <string>

#include "llmc/device/host/executor.h"
#include "llmc/device/runtime.h"

namespace llmc::host {

// Queues `work` on a stream; nullptr runs it at once, after all queued work. It may touch only the declared accesses.
void submit(stream_t stream, std::initializer_list<Access> accesses, const LaunchSite& site,
            std::function<void()> work);

// Throws unless p is null or lies in one of the declared tensors.
void check_pointer(const void* p, std::initializer_list<Access> accesses, const LaunchSite& site);

bool is_device_pointer(const void* p);

// Simulates a GPU fault such as an illegal address, for tests. The work-th piece of work from now on (1 is the next)
// triggers it instead of running. Later work does not run, and every call of the runtime fails; calls that release
// something still release it. 0 cancels the fault, even one that has happened. LLMC_FAULT does the same from the start.
void inject_fault(uint64_t work);

// Flips a bit silently, for tests: in the middle of the first tensor written by the n-th piece of work (1 is the next)
// whose name contains `work`. 0 cancels it. LLMC_FLIP does the same from the start.
void flip_bit(const std::string& work, uint64_t n);

// Statistics of the work since record_operations(true), by kernel name. Matrix products and copies are included.
struct OperationRecord {
    size_t count = 0, bytes_read = 0, bytes_written = 0;
    double seconds = 0;
};
void record_operations(bool on);  // true also clears the statistics
const std::map<std::string, OperationRecord>& operations();

}  // namespace llmc::host
