// Copies through two pinned staging buffers (transfer.h).
#include "llmc/device/transfer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace llmc {
namespace {

constexpr size_t kStagingBytes = size_t{1} << 20;

std::mutex staging_mutex;

struct Staging {
    char* memory = static_cast<char*>(pinned_malloc(kStagingBytes));
    event_t copied = create_event();
};

// The two buffers take turns. They are never freed: CUDA may already be gone at the end of the process.
const Staging& staging(size_t at) {
    static const Staging* const buffers = new Staging[2];
    return buffers[at / kStagingBytes % 2];
}

size_t piece_at(size_t at, size_t bytes) { return std::min(kStagingBytes, bytes - at); }

}  // namespace

// The device copies the next piece while the host takes this one.
void read_bytes(void* to, const void* device, size_t bytes, stream_t stream) {
    const std::lock_guard lock(staging_mutex);
    const auto fetch = [&](size_t at) {
        if (at >= bytes) return;
        copy_to_host(staging(at).memory, static_cast<const char*>(device) + at, piece_at(at, bytes), stream);
        record(staging(at).copied, stream);
    };
    fetch(0);
    for (size_t at = 0; at < bytes; at += kStagingBytes) {
        fetch(at + kStagingBytes);
        synchronize(staging(at).copied);
        std::memcpy(static_cast<char*>(to) + at, staging(at).memory, piece_at(at, bytes));
    }
}

// The host fills one buffer while the device copies from the other.
void write_bytes(void* device, const void* from, size_t bytes, stream_t stream) {
    if (bytes == 0) return;
    const std::lock_guard lock(staging_mutex);
    for (size_t at = 0; at < bytes; at += kStagingBytes) {
        if (at >= 2 * kStagingBytes) synchronize(staging(at).copied);
        std::memcpy(staging(at).memory, static_cast<const char*>(from) + at, piece_at(at, bytes));
        copy_to_device(static_cast<char*>(device) + at, staging(at).memory, piece_at(at, bytes), stream);
        record(staging(at).copied, stream);
    }
    synchronize(stream);
}

}  // namespace llmc
