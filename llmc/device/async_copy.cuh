// cp.async: copies 16 bytes from global to shared memory without passing through registers, in commit groups.
//
// On the host the copy really is deferred: the destination holds NaN until the wait, so a missing or too weak wait
// shows in the results.
#pragma once
#include "llmc/device/launch.cuh"

namespace llmc {

#if LLMC_ON_GPU

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes. If !valid, writes zeros and does not read `source`, which must still be a legal address.
__device__ __forceinline__ void cp_async16(void* destination, const void* source, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(destination)), "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's committed groups are in flight. Other threads see the data after a barrier.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

inline void cp_async16(void* destination, const void* source, bool valid = true, LLMC_CALLER) {
    if ((reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source)) & 15)
        host::executor().fail("cp.async address is not 16-byte aligned at %s:%d", file, line);
    std::memset(destination, 0xFF, 16);
    host::Quiet quiet;
    host::executor().note_copies();
    host::Lane& lane = host::executor().lane();
    lane.copies.push_back({destination, valid ? source : nullptr, 16, lane.open_group});
}
inline void cp_async_commit() {
    host::Quiet quiet;
    host::executor().lane().open_group++;
}
template <int N>
void cp_async_wait() {
    host::Lane& lane = host::executor().lane();
    size_t due = 0, left = 0;
    {
        host::Quiet quiet;
        while (due < lane.copies.size() && lane.copies[due].group + N < lane.open_group) due++;
        left = lane.copies.size() - due;
    }
    // Outside Quiet: the bytes move now, so the race detector charges them to this lane.
    for (size_t i = 0; i < due; i++) {
        host::PendingCopy copy;
        {
            host::Quiet quiet;
            copy = lane.copies[i];
        }
        if (copy.source)
            std::memcpy(copy.destination, copy.source, copy.bytes);
        else
            std::memset(copy.destination, 0, copy.bytes);
    }
    host::Quiet quiet;
    for (size_t i = 0; i < left; i++) lane.copies[i] = lane.copies[due + i];
    lane.copies.resize(left);
}

#endif

}  // namespace llmc
