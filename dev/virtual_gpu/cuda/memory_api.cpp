// Device and pinned memory, copies and fills.
//
// A copy is checked twice. At the call, it is an error if a pointer does not match the direction or the range leaves
// its allocation. When the copy runs, the same is a fault like that of a kernel.
#include "dev/virtual_gpu/cuda/memory_api.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dev/virtual_gpu/card.h"
#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/memory.h"
#include "dev/virtual_gpu/planned_faults.h"
#include "dev/virtual_gpu/work.h"

namespace virtual_gpu {
namespace {

std::atomic<uint64_t> pageable_count{0};
std::mutex allocating;

size_t memory_limit() {
    const auto planned = static_cast<size_t>(planned_fault("memory"));
    return planned ? std::min(planned << 20, card().memory_bytes) : card().memory_bytes;
}

enum class Place { device, pinned, pageable };
Place place_of(const void* p) {
    const Memory& memory = Memory::get();
    return memory.is_device(p) ? Place::device : memory.is_pinned(p) ? Place::pinned : Place::pageable;
}
const char* words_of(Place place) {
    return place == Place::device ? "device memory" : place == Place::pinned ? "pinned host memory" : "host memory";
}

// True if the bytes lie in one allocation; always true for pageable memory, which is not tracked.
bool in_bounds(const void* p, size_t bytes) {
    Range range;
    return place_of(p) == Place::pageable || Memory::get().find(reinterpret_cast<uint64_t>(p), bytes, range);
}

std::string outside(const void* p, size_t bytes) {
    return Memory::get().describe(reinterpret_cast<uint64_t>(p), bytes);
}

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    cudaMemcpyKind kind;
    const char* call;
    Place to_place, from_place;
};

bool is_host(Place place) { return place != Place::device; }

cudaError_t check(Copy& copy) {
    copy.to_place = place_of(copy.to);
    copy.from_place = place_of(copy.from);
    const bool to_host = copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyHostToHost;
    const bool from_host = copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyHostToHost;
    if (copy.kind < cudaMemcpyHostToHost || copy.kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (copy.kind != cudaMemcpyDefault &&
        (to_host != is_host(copy.to_place) || from_host != is_host(copy.from_place))) {
        static constexpr const char* kKinds[] = {"HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice"};
        report("%s: cudaMemcpy%s from %s to %s", copy.call, kKinds[copy.kind], words_of(copy.from_place),
               words_of(copy.to_place));
        return cudaErrorInvalidValue;
    }
    for (const void* p : {static_cast<const void*>(copy.to), copy.from}) {
        if (in_bounds(p, copy.bytes)) continue;
        report("%s: %zu bytes %s %p: %s", copy.call, copy.bytes, p == copy.to ? "to" : "from", p,
               outside(p, copy.bytes).c_str());
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

// Bytes that were never written may be copied on the device, but not to the host.
void run(const Copy& copy) {
    if (counting())
        count_work({{"copy", words_of(copy.to_place)}, {"from", words_of(copy.from_place)}, {"bytes", copy.bytes}});
    Memory& memory = Memory::get();
    if (copy.to_place == Place::device && copy.from_place == Place::device) {
        Range from, to;
        const uint64_t source = reinterpret_cast<uint64_t>(copy.from), target = reinterpret_cast<uint64_t>(copy.to);
        if (!memory.find(source, copy.bytes, from) || !memory.find(target, copy.bytes, to))
            fault("%zu bytes at %p to %p: freed in the meantime", copy.bytes, copy.from, copy.to);
        std::memmove(reinterpret_cast<void*>(target + static_cast<uint64_t>(to.shift)),
                     reinterpret_cast<void*>(source + static_cast<uint64_t>(from.shift)), copy.bytes);
        std::memmove(memory.written(target), memory.written(source), copy.bytes);
        return;
    }
    const void* from = copy.from;
    void* to = copy.to;
    if (copy.from_place != Place::pageable) from = memory.readable(from, copy.bytes, "the source");
    if (copy.to_place != Place::pageable) to = memory.writable(to, copy.bytes, "the destination");
    std::memmove(to, from, copy.bytes);
}

// Runtime API, "API synchronization behavior": a pageable source is staged before the call returns. A copy to pageable
// memory, or between host memories, is complete when the call returns.
cudaError_t copy_async(Copy copy, cudaStream_t stream) {
    cudaError_t status = entered();
    if (status != cudaSuccess || copy.bytes == 0) return status;
    status = check(copy);
    if (status != cudaSuccess) return returned(status);
    const bool pageable = copy.to_place == Place::pageable || copy.from_place == Place::pageable;
    if (pageable) pageable_count++;
    std::shared_ptr<std::vector<char>> staged;
    if (copy.from_place == Place::pageable && copy.to_place == Place::device) {
        const char* const source = static_cast<const char*>(copy.from);
        staged = std::make_shared<std::vector<char>>(source, source + copy.bytes);
        copy.from = staged->data();
    }
    status = submit(stream, copy.call, [copy, staged] { run(copy); });
    const bool waits = copy.to_place == Place::pageable || (is_host(copy.to_place) && is_host(copy.from_place));
    return status == cudaSuccess && waits ? wait_for_stream(stream) : status;
}

cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t stream, const char* call) {
    const cudaError_t status = entered();
    if (status != cudaSuccess || bytes == 0) return status;
    if (place_of(to) == Place::pageable || !in_bounds(to, bytes)) {
        report("%s: %zu bytes at %p: %s", call, bytes, to, outside(to, bytes).c_str());
        return returned(cudaErrorInvalidValue);
    }
    return submit(stream, call, [=] {
        if (counting()) count_work({{"fill", "device memory"}, {"bytes", bytes}});
        std::memset(Memory::get().writable(to, bytes, "the destination"), value, bytes);
    });
}

}  // namespace

uint64_t pageable_copies() { return pageable_count; }

}  // namespace virtual_gpu

using namespace virtual_gpu;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (!p) return returned(cudaErrorInvalidValue);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    const std::lock_guard lock(allocating);
    const size_t in_use = Memory::get().device_use().now;
    if (bytes > memory_limit() - std::min(in_use, memory_limit())) return returned(cudaErrorMemoryAllocation);
    *p = reinterpret_cast<void*>(Memory::get().allocate(bytes));
    return returned(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

// Both wait for the device first, so no running work uses the freed memory.
cudaError_t cudaFree(void* p) {
    const cudaError_t status = wait_for_devices();
    if (status != cudaSuccess || !p) return status;
    return returned(Memory::get().release(reinterpret_cast<uint64_t>(p)) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaFreeHost(void* p) {
    const cudaError_t status = wait_for_devices();
    if (status != cudaSuccess || !p) return status;
    return returned(Memory::get().release_pinned(p) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    if (!p) return returned(cudaErrorInvalidValue);
    *p = bytes ? Memory::get().allocate_pinned(bytes) : nullptr;
    return returned(*p || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
    constexpr unsigned kHints = cudaHostAllocPortable | cudaHostAllocWriteCombined;
    if (flags & ~kHints) return returned(cudaErrorNotSupported);
    return cudaMallocHost(p, bytes);
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    const cudaError_t status = entered();
    if (status != cudaSuccess) return status;
    *total = card().memory_bytes;
    *available = memory_limit() - std::min(Memory::get().device_use().now, memory_limit());
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_async({to, from, bytes, kind, "cudaMemcpyAsync", {}, {}}, stream);
}

// "API synchronization behavior": before a copy from pageable memory the stream is synchronised, and then the source
// only needs to be staged, which copy_async() does. The call does not wait for a copy within the device, but for any
// other.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    const bool to_device = place_of(to) == Place::device, pageable = place_of(from) == Place::pageable;
    cudaError_t status = to_device && pageable && bytes ? wait_for_stream(nullptr) : cudaSuccess;
    if (status == cudaSuccess) status = copy_async({to, from, bytes, kind, "cudaMemcpy", {}, {}}, nullptr);
    const bool waits = !to_device || place_of(from) == Place::pinned;
    return status == cudaSuccess && waits ? wait_for_stream(nullptr) : status;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return fill(to, value, bytes, stream, "cudaMemsetAsync");
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    const cudaError_t status = fill(to, value, bytes, nullptr, "cudaMemset");
    return status == cudaSuccess && place_of(to) == Place::pinned ? wait_for_stream(nullptr) : status;
}

}  // extern "C"
