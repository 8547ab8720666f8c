// Copies through one pinned staging buffer (transfer.h).
#include "llmc/device/transfer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace llmc {
namespace {

constexpr size_t kStagingBytes = size_t{1} << 20;

std::mutex staging_mutex;

// The buffer is never freed: CUDA may already be gone at the end of the process.
char* staging() {
    static char* const memory = static_cast<char*>(pinned_malloc(kStagingBytes));
    return memory;
}

// Calls piece(offset, length) for consecutive pieces of at most kStagingBytes.
template <class Piece>
void for_pieces(size_t bytes, Piece&& piece) {
    const std::lock_guard lock(staging_mutex);
    for (size_t at = 0; at < bytes; at += kStagingBytes) piece(at, std::min(kStagingBytes, bytes - at));
}

}  // namespace

void read_bytes(void* to, const void* device, size_t bytes, stream_t stream) {
    for_pieces(bytes, [&](size_t at, size_t piece) {
        copy_to_host(staging(), static_cast<const char*>(device) + at, piece, stream);
        synchronize(stream);
        std::memcpy(static_cast<char*>(to) + at, staging(), piece);
    });
}

void write_bytes(void* device, const void* from, size_t bytes, stream_t stream) {
    for_pieces(bytes, [&](size_t at, size_t piece) {
        std::memcpy(staging(), static_cast<const char*>(from) + at, piece);
        copy_to_device(static_cast<char*>(device) + at, staging(), piece, stream);
        synchronize(stream);
    });
}

}  // namespace llmc
