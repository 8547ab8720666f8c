// The host device's own side of the runtime: how work is submitted, checked and recorded.
#pragma once
#include <functional>
#include <initializer_list>
#include <map>
#include <string>

#include "llmc/device/host/executor.h"
#include "llmc/device/runtime.h"

namespace llmc::host {

// Queue `work` on a stream (nullptr: after everything, at once). It may touch what `accesses` declares, no more.
void submit(stream_t stream, std::initializer_list<Access> accesses, const LaunchSite& site,
            std::function<void()> work);

// Throws unless p is null or lies in one of the declared tensors.
void check_pointer(const void* p, std::initializer_list<Access> accesses, const LaunchSite& site);

bool is_device_pointer(const void* p);

// A fault as a GPU has it after an illegal address, for tests: the work-th piece of work from now on (1: the next)
// brings it about instead of running; nothing runs after it, and every call of the runtime fails, those that release
// something after they have done so. 0: no fault, and one that has happened is undone. LLMC_FAULT does this from the
// start.
void inject_fault(uint64_t work);

// A bit that flips and says nothing: in the middle of the first tensor that the n-th piece of work (1: the next) writes
// of those whose name contains `work`. 0: none. LLMC_FLIP does this from the start.
void flip_bit(const std::string& work, uint64_t n);

// What ran since record_operations(true), by kernel name (matrix products and copies included).
struct OperationRecord {
    size_t count = 0, bytes_read = 0, bytes_written = 0;
    double seconds = 0;
};
void record_operations(bool on);  // true also clears
const std::map<std::string, OperationRecord>& operations();

}  // namespace llmc::host
