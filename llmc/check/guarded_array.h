// Device memory for checks: an array between two guard zones, in which every byte is 0xFF before it is written, a NaN
// in all formats. A kernel that writes beside its array changes a guard; one that leaves elements out leaves NaN.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/device/faults.h"
#include "llmc/device/transfer.h"

namespace llmc {

class GuardedMemory {
public:
    GuardedMemory(size_t bytes, stream_t stream) : bytes_(bytes), stream_(stream) {
        memory_ = static_cast<char*>(device_malloc(bytes + 2 * kGuard));
        set_bytes(memory_, 0xFF, bytes + 2 * kGuard, stream);
    }
    ~GuardedMemory() {
        tear_down([&] { synchronize(stream_); });
        tear_down([&] { device_free(memory_); });
    }
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    char* data() const { return memory_ + kGuard; }
    size_t bytes() const { return bytes_; }
    stream_t stream() const { return stream_; }

    // What was written beside the array: "writes 3 bytes behind its end"; "" if nothing.
    std::string trespass() const {
        const std::vector<char> before = read_back(memory_, kGuard, stream_),
                                behind = read_back(memory_ + kGuard + bytes_, kGuard, stream_);
        for (size_t i = 0; i < kGuard; i++)
            if (behind[i] != '\xFF') return strprintf("writes %zu bytes past the end of its result", i + 1);
        for (size_t i = 0; i < kGuard; i++)
            if (before[i] != '\xFF') return strprintf("writes %zu bytes before its result", kGuard - i);
        return "";
    }

private:
    static constexpr size_t kGuard = 4096;  // bytes on either side; keeps the alignment of device_malloc()
    size_t bytes_;
    stream_t stream_;
    char* memory_;
};

template <class T>
class GuardedArray {
public:
    GuardedArray(size_t count, stream_t stream) : memory_(count * sizeof(T), stream), count_(count) {}
    GuardedArray(const std::vector<T>& values, stream_t stream) : GuardedArray(values.size(), stream) { write(values); }

    T* data() const { return reinterpret_cast<T*>(memory_.data()); }
    operator T*() const { return data(); }
    size_t size() const { return count_; }
    void write(const std::vector<T>& values) { write_through(data(), values.data(), count_, memory_.stream()); }
    std::vector<T> read() const { return read_back<T>(data(), count_, memory_.stream()); }
    std::string trespass() const { return memory_.trespass(); }

private:
    GuardedMemory memory_;
    size_t count_;
};

}  // namespace llmc
