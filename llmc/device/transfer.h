// Values between the host and the device where the host waits for them anyway: initialisation, logs, tests. What a step
// of training moves goes through staging memory of its own, and nobody waits.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "llmc/device/runtime.h"

namespace llmc {

template <class T>
auto pinned_array(size_t count) {
    const auto release = [](T* memory) { pinned_free(memory); };
    T* memory = static_cast<T*>(pinned_malloc(std::max<size_t>(count, 1) * sizeof(T)));
    return std::unique_ptr<T[], decltype(release)>(memory, release);
}

// What `count` elements, or one, hold once the stream gets here.
template <class T>
std::vector<T> read_back(const T* device, size_t count, stream_t stream) {
    const auto staging = pinned_array<T>(count);
    copy_to_host(staging.get(), device, count * sizeof(T), stream);
    synchronize(stream);
    return std::vector<T>(staging.get(), staging.get() + count);
}
template <class T>
T read_back(const T* device, stream_t stream) {
    return read_back(device, 1, stream)[0];
}

// Overwrites them, when the stream gets here.
template <class T>
void write_through(T* device, const T* values, size_t count, stream_t stream) {
    const auto staging = pinned_array<T>(count);
    std::copy(values, values + count, staging.get());
    copy_to_device(device, staging.get(), count * sizeof(T), stream);
    synchronize(stream);
}
template <class T>
void write_through(T* device, const T& value, stream_t stream) {
    write_through(device, &value, 1, stream);
}

}  // namespace llmc
