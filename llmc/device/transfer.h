// Values between the host and the device where the host waits for them anyway: initialisation, logs, tests. What a step
// of training moves goes through staging memory of its own, and nobody waits.
#pragma once
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

// One piece of pinned memory serves all of them, in pieces of its size: allocating some each time would stop the
// device. It is made when it is first needed, one caller at a time has it, and it is kept.
void read_bytes(void* to, const void* device, size_t bytes, stream_t stream);
void write_bytes(void* device, const void* from, size_t bytes, stream_t stream);

// What `count` elements, or one, hold once the stream gets here.
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

// Overwrites them, when the stream gets here.
template <class T>
void write_through(T* device, const T* values, size_t count, stream_t stream) {
    write_bytes(device, values, count * sizeof(T), stream);
}
template <class T>
void write_through(T* device, const T& value, stream_t stream) {
    write_through(device, &value, 1, stream);
}

}  // namespace llmc
