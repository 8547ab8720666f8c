// Where the lanes of a warp access memory: addresses to bytes, with the checks that every access goes through.
#pragma once
#include <cstring>

#include "dev/virtual_gpu/ptx/machine.h"

namespace virtual_gpu {

// Of the active lanes.
struct Addresses {
    char* bytes[kLanes];
    uint8_t* written[kLanes];  // kWritten, byte by byte
    bool is_shared;
    bool is_row;  // all lanes are active, and their bytes lie one behind the other
};

// Fails the warp where an access of `total` bytes is not aligned to them, or not within a live allocation or the
// block's shared memory. `what` is for the message: "load".
void resolve(Warp& w, const Op& op, uint32_t total, const char* what, Addresses& to);
// The same for addresses that do not stand in the instruction's memory operand.
void resolve(Warp& w, const Op& op, uint64_t (&address)[kLanes], Space space, uint32_t total, const char* what,
             Addresses& to);

// Fails the warp where a lane would read bytes that were never written.
template <size_t bytes>
bool all_written(const uint8_t* written) {
    unsigned char expected[bytes];
    std::memset(expected, kWritten, bytes);
    return std::memcmp(written, expected, bytes) == 0;
}
[[noreturn]] void fail_unwritten(Warp& w, const Op& op, int lane, const Addresses& at, uint32_t total,
                                 const char* what);

// For the search for races and the launch's footprint, where they are wanted.
void note_read(Warp& w, const Op& op, const Addresses& at, uint32_t bytes);
void note_write(Warp& w, const Op& op, const Addresses& at, uint32_t bytes);
void note_atomic(Warp& w, const Op& op, const Addresses& at, uint32_t bytes);

constexpr uint8_t kPending = 2;  // written by an asynchronous copy that has not been waited for

}  // namespace virtual_gpu
