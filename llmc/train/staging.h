// Copies of a trainer's state outside of the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/checkpoint/safetensors.h"
#include "llmc/device/owned.h"
#include "llmc/train/state.h"

namespace llmc {

// Copies a rank's state out of the device, so that training continues while a checkpoint is written. If there is no
// memory for the copy, values are read from the device piece by piece while training waits.
class Staging {
public:
    // `slices`: Trainer::state_slices(). `local`: a directory on a local disk that is used instead of memory, or "".
    // Throws if no file can be created there. `memory`: bytes of host memory that may be used.
    Staging(std::vector<DeviceSlice> slices, const std::string& local, size_t memory);
    Staging(Staging&&) = delete;

    const std::vector<StateSlice>& slices() const { return names_; }
    // True if the device is no longer needed after take().
    bool is_apart() const { return memory_ || !local_.empty(); }
    // Why there is no copy, so that the device is still needed; otherwise "".
    const std::string& note() const { return note_; }

    // The device's current values; waits for it. Valid until the next take().
    SliceBytes take(stream_t stream);
    // Checksums of a file with these values, or empty if they are not known yet.
    const std::vector<uint64_t>& checksums() const { return checksums_; }

private:
    SliceBytes from_device(stream_t stream);
    SliceBytes from_memory(stream_t stream);
    SliceBytes from_local_file(stream_t stream);
    const char* narrowed(const e4m3* codes, const float* scales, uint64_t offset, size_t bytes);

    const std::vector<DeviceSlice> slices_;
    std::vector<StateSlice> names_;
    std::string local_, note_;
    size_t bytes_ = 0;
    Pinned<char> memory_;       // all slices one after the other
    std::vector<char> buffer_;  // one piece
    std::unique_ptr<SafetensorsFile> local_file_;
    std::vector<uint64_t> checksums_;
};

// Bytes that the copy of a slice takes in host memory.
size_t staged_bytes(const DeviceSlice& part);

// Bytes of host memory that this process could still allocate on this machine and in its control groups.
size_t available_host_memory();
// The same for control groups alone: the least room below the limits of the process's own groups and of their parents,
// in version 1 or 2 of control groups. `root` is where they are mounted, `groups` the text of /proc/self/cgroup.
size_t room_in_control_groups(const std::string& root, const std::string& groups);

}  // namespace llmc
