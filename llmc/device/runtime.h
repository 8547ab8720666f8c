// The device runtime as the rest of the project sees it: memory, copies, streams, events.
//
// There are two implementations: runtime.cu on CUDA's runtime API, and host/runtime.cpp on the host device. Every
// failure throws llmc::Error. There is no default stream: only the streams and events created here order work.
#pragma once
#include <cstddef>
#include <string>

#include "llmc/base/error.h"
#include "llmc/device/device_errors.h"

// The types that CUDA's streams and events point to, by CUDA's names. The host device defines them itself.
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
// A pointer with its length and what an operation does to it: an argument of launch() (launch.cuh), or an Access.
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

// The device of the calling thread.
struct DeviceInfo {
    std::string name;
    size_t total_memory = 0, free_memory = 0;  // bytes
    int multiprocessors = 0;
    int compute_capability = 0;          // 90 for sm_90; 0 on the host device
    size_t shared_memory_per_block = 0;  // bytes, the most that a block can have
    size_t l2_cache = 0;                 // bytes; 0 on the host device
    std::string uuid;                    // identifies the physical card, "GPU-..."; "" on the host device
    bool is_host = false;
    bool has_fp8 = false;
};

// Must be the first call in main(): it may restart the process with a changed environment.
void prepare_process(char** argv);

// Chooses the device with this index for the calling thread. Throws Error(no_resources) with advice if there is none.
void open_device(int index);
int device_count();
DeviceInfo device_info();
size_t shared_memory_per_block();  // the field of device_info(), without its cost
// True if the driver encodes tensor maps, which kernels with TMA need (device/hopper.cuh). False on the host device.
bool has_tensor_maps();
// True if kernels for Hopper run here: the card has compute capability 9.0, and its driver encodes tensor maps.
bool is_hopper();

// PCI bus address, for example "00000000:3b:00.0", for libraries other than CUDA's runtime. "" on the host device.
std::string device_pci_bus_id();
// An identity that is unique on its machine: "00000000:3b:00.0 GPU-...". MIG slices of one card share the bus address
// and differ in the UUID. "" on the host device.
inline std::string device_identity() {
    const std::string bus = device_pci_bus_id();
    return bus.empty() ? bus : bus + " " + device_info().uuid;
}

// Device memory is aligned to device_alignment() bytes: 256, or 4096 with LLMC_GUARD=1. Its contents are undefined.
// `offloaded` is pinned host memory that is used like device memory. Kernels reach it over the bus, so what every step
// needs is copied to the device first.
enum class MemoryKind { weights, gradients, optimizer, activations, workspace, offloaded };
constexpr size_t kMemoryKinds = 6;
constexpr const char* kMemoryKindNames[kMemoryKinds] = {"weights",     "gradients", "optimizer",
                                                        "activations", "workspace", "offloaded"};
void* device_malloc(size_t bytes, MemoryKind kind = MemoryKind::workspace);
void device_free(void* p);
size_t device_alignment();
size_t device_bytes_in_use();  // without offloaded memory
struct MemoryUse {
    size_t bytes = 0, peak = 0;  // now, and the most so far
};
MemoryUse device_memory_use(MemoryKind kind);
void forget_memory_peaks();  // they are what is in use now
// Pinned (page-locked) host memory.
void* pinned_malloc(size_t bytes);
void pinned_free(void* p);

// These run asynchronously, in the order of the stream. Host memory must be pinned and stay unchanged until then.
// Either side may be offloaded memory.
void copy_to_device(void* to, const void* from, size_t bytes, stream_t stream);
void copy_to_host(void* to, const void* from, size_t bytes, stream_t stream);
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream);
void set_bytes(void* to, int value, size_t bytes, stream_t stream);

// When both kinds have work ready, communication streams go first, because others wait for them.
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

// Must be called after every launch and matrix product. With LLMC_SYNC=1 it waits for the work, and throws an Error
// with the name of `site` if it failed (device_errors.h).
void after_work(stream_t stream, const LaunchSite& site);

// Opens and closes a named range for NVTX tools, as part of a ProfileRange (trace.h). Does nothing on the host device.
void push_range(const char* name);
void pop_range();

}  // namespace llmc
