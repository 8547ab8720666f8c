// Device memory for checks: an array between two guard zones. Every byte is 0xFF at first, a NaN in all formats. A
// kernel that writes outside its array changes a guard; a kernel that skips elements leaves NaN.
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
    GuardedMemory(size_t bytes, stream_t stream) : zone_(zone()), bytes_(bytes), stream_(stream) {
        memory_ = static_cast<char*>(device_malloc(std::max<size_t>(1, bytes + 2 * zone_)));
        set_bytes(memory_, 0xFF, bytes + 2 * zone_, stream);
    }
    ~GuardedMemory() {
        tear_down([&] { synchronize(stream_); });
        tear_down([&] { device_free(memory_); });
    }
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    char* data() const { return memory_ + zone_; }
    size_t bytes() const { return bytes_; }
    stream_t stream() const { return stream_; }

    // Describes a write outside the array, "writes 3 bytes past the end of its result"; "" if there was none.
    std::string trespass() const {
        const std::vector<char> before = read_back(memory_, zone_, stream_),
                                behind = read_back(memory_ + zone_ + bytes_, zone_, stream_);
        for (size_t i = 0; i < zone_; i++)
            if (behind[i] != '\xFF') return fmt::format("writes {} bytes past the end of its result", i + 1);
        for (size_t i = 0; i < zone_; i++)
            if (before[i] != '\xFF') return fmt::format("writes {} bytes before its result", zone_ - i);
        return "";
    }

    // Bytes on either side of arrays made from now on; a multiple of device_malloc()'s alignment. Tests set it to 0
    // where a sanitizer or the virtual GPU watches the bounds of allocations.
    static size_t& zone() {
        static size_t bytes = 4096;
        return bytes;
    }

private:
    size_t zone_, bytes_;
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
