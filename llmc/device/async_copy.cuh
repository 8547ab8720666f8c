// cp.async: copies 16 bytes from global to shared memory without passing through registers, in commit groups.
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

// Defined by the emulator of GPU threads.
void cp_async16(void* destination, const void* source, bool valid = true, LLMC_CALLER);
void cp_async_commit();
namespace host {
void cp_async_wait(size_t groups);
}
template <int N>
void cp_async_wait() {
    host::cp_async_wait(N);
}

#endif

}  // namespace llmc
