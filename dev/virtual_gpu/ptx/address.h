// Resolves the addresses that a warp's lanes access into bytes, with the checks that every access must pass.
#pragma once
#include <cstring>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

// The resolved addresses of the active lanes.
struct Addresses {
    char* bytes[kLanes];
    uint8_t* written[kLanes];  // kWritten flags, byte by byte
    bool is_shared;
    bool is_row;  // all lanes are active, and their bytes are contiguous
};

// Resolves the instruction's memory operand. Fails the warp unless every access of `total` bytes is aligned to that
// size and lies in a live allocation or the block's shared memory. `what` is for the message: "load".
void resolve(Warp& w, const Op& op, uint32_t total, const char* what, Addresses& to);
// The same for addresses from elsewhere than the instruction's memory operand.
void resolve(Warp& w, const Op& op, uint64_t (&address)[kLanes], Space space, uint32_t total, const char* what,
             Addresses& to);

// Fails the warp if a lane would read bytes that were never written.
template <size_t bytes>
bool all_written(const uint8_t* written) {
    unsigned char expected[bytes];
    std::memset(expected, kWritten, bytes);
    return std::memcmp(written, expected, bytes) == 0;
}
[[noreturn]] void fail_unwritten(Warp& w, const Op& op, int lane, const Addresses& at, uint32_t total,
                                 const char* what);

// Record accesses for race detection, if it is enabled.
void note_read(Warp& w, const Op& op, const Addresses& at, uint32_t bytes);
void note_write(Warp& w, const Op& op, const Addresses& at, uint32_t bytes);
void note_atomic(Warp& w, const Op& op, const Addresses& at, uint32_t bytes, bool is_result);

constexpr uint8_t kPending = 2;  // written by an asynchronous copy that was not waited for yet

}  // namespace virtual_gpu
