// Copies values between host and device where the host waits anyway: initialisation, logs, tests. A training step uses
// its own staging memory instead, so that nothing waits.
#pragma once
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// All calls share two pinned buffers and copy in pieces of their size, because allocating pinned memory each time would
// stop the device. The host uses one while the device copies from or to the other. They are allocated on first use,
// locked by one caller at a time, and kept.
void read_bytes(void* to, const void* device, size_t bytes, stream_t stream);
void write_bytes(void* device, const void* from, size_t bytes, stream_t stream);

// Returns the values of `count` elements, or of one, at this point of the stream.
template <class T>
std::vector<T> read_back(const T* device, size_t count, stream_t stream) {
    std::vector<T> values(count);
    read_bytes(values.data(), device, count * sizeof(T), stream);
    return values;
}
template <class T>
T read_back(const T* device, stream_t stream) {
    return read_back(device, 1, stream)[0];
}

// Overwrites the elements at this point of the stream.
template <class T>
void write_through(T* device, const T* values, size_t count, stream_t stream) {
    write_bytes(device, values, count * sizeof(T), stream);
}
template <class T>
void write_through(T* device, const T& value, stream_t stream) {
    write_through(device, &value, 1, stream);
}

}  // namespace llmc
