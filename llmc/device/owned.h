// Events, streams and pinned memory that are released at the end of the object that owns them.
#pragma once
#include <utility>

#include "llmc/device/device_errors.h"
#include "llmc/device/runtime.h"

namespace llmc {

// Owns a handle and releases it in the destructor. Converts to the handle; nullptr until one is assigned.
template <class Handle, auto release>
class Owned {
public:
    Owned(Handle handle = nullptr) : handle_(handle) {}
    ~Owned() {
        if (handle_) tear_down([this] { release(handle_); });
    }
    Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    operator Handle() const { return handle_; }
    Handle operator->() const { return handle_; }

private:
    Handle handle_;
};

inline void finish_stream(stream_t stream) {
    tear_down([&] { synchronize(stream); });
    destroy_stream(stream);
}

using OwnedEvent = Owned<event_t, destroy_event>;
// Waits for the stream's work first, so declare it after the memory that the work uses.
using OwnedStream = Owned<stream_t, finish_stream>;
template <class T>
using Pinned = Owned<T*, pinned_free>;
template <class T>
Pinned<T> pinned(size_t count) {
    return static_cast<T*>(pinned_malloc(count * sizeof(T)));
}

}  // namespace llmc
