// The device runtime as the rest of the project sees it: memory, copies, streams, events.
//
// Two implementations: runtime.cu on CUDA's runtime API, host/runtime.cpp on the host device. Every failure throws
// llmc::Error. There is no default stream; work is ordered by the streams and events named here alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"

// CUDA's names for what its streams and events point to; the host device defines them itself.
struct CUstream_st;
struct CUevent_st;

namespace llmc {

using stream_t = CUstream_st*;
using event_t = CUevent_st*;

// A range of device memory that an operation reads or writes.
struct Access {
    const void* address;
    size_t bytes;
    bool reads, writes;
};
// A tensor that says what happens to it: the argument of a launch (launch.cuh), or of whatever takes an Access.
template <class T>
struct Tensor {
    T* address;
    size_t count;
    bool reads, writes;
    operator T*() const { return address; }
    operator Access() const { return {address, address ? count * sizeof(T) : 0, reads, writes}; }
};
template <class T>
Tensor<const T> in(const T* p, size_t count) {
    return {p, count, true, false};
}
template <class T>
Tensor<T> out(T* p, size_t count) {
    return {p, count, false, true};
}
template <class T>
Tensor<T> inout(T* p, size_t count) {
    return {p, count, true, true};
}

struct DeviceInfo {
    std::string name;
    size_t total_memory = 0, free_memory = 0;  // bytes
    int multiprocessors = 0;
    int compute_capability = 0;          // 90 for sm_90; 0 on the host device
    size_t shared_memory_per_block = 0;  // bytes, at most
    size_t l2_cache = 0;                 // bytes; 0 on the host device
    std::string uuid;                    // of this very card, "GPU-..."; "" on the host device
    bool is_host = false;
    bool has_fp8 = false;
};

// The first thing main() does.
void prepare_process(char** argv);

// Chooses the device with this index for the calling thread. Throws Error(no_resources) with advice if there is none.
void open_device(int index);
int device_count();
DeviceInfo device_info();
size_t shared_memory_per_block();  // that of device_info(), at no cost

// Device memory, 256-byte aligned (4096 with LLMC_GUARD=1: device_alignment() says which). Contents are undefined.
enum class MemoryKind { weights, gradients, optimizer, activations, workspace };
constexpr size_t kMemoryKinds = 5;
constexpr const char* kMemoryKindNames[kMemoryKinds] = {"weights", "gradients", "optimizer", "activations",
                                                        "workspace"};
void* device_malloc(size_t bytes, MemoryKind kind = MemoryKind::workspace);
void device_free(void* p);
size_t device_alignment();
size_t device_bytes_in_use();
struct MemoryUse {
    size_t bytes = 0, peak = 0;  // now, and the most there has been
};
MemoryUse device_memory_use(MemoryKind kind);
// Page-locked host memory.
void* pinned_malloc(size_t bytes);
void pinned_free(void* p);

// Asynchronous, ordered by the stream. Host memory must be pinned and stay unchanged until the copy has run.
void copy_to_device(void* to, const void* from, size_t bytes, stream_t stream);
void copy_to_host(void* to, const void* from, size_t bytes, stream_t stream);
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream);
void set_bytes(void* to, int value, size_t bytes, stream_t stream);

// Where both have work that could run, that of communication streams goes first: others wait for it.
enum class StreamPriority { normal, communication };
stream_t create_stream(StreamPriority priority = StreamPriority::normal);
StreamPriority stream_priority(stream_t stream);
void destroy_stream(stream_t stream);
void synchronize(stream_t stream);
void synchronize_device();

event_t create_event(bool timing = false);
void destroy_event(event_t event);
void record(event_t event, stream_t stream);
void wait(stream_t stream, event_t event);  // later work of the stream waits for the event's last record
void synchronize(event_t event);
bool is_done(event_t event);
float elapsed_ms(event_t from, event_t to);

// To be called after every launch and product: with LLMC_SYNC=1 waits for it, and throws with the name of `site` if it
// failed (faults.h).
void after_work(stream_t stream, const LaunchSite& site);

// A named range for NVTX tools, as part of a ProfileRange (trace.h); nothing on the host device.
void push_range(const char* name);
void pop_range();

}  // namespace llmc
