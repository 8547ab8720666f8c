// HostExchange, which runs host functions on device memory (backend.h), for either device.
// build: per device, optimized
#include "llmc/comm/backend.h"
#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"
#endif

namespace llmc {

#if !LLMC_CUDA

// On the host device, device memory is host memory, so the work runs on it directly, as work of its stream with
// declared accesses.
//
// With lazy streams the order in which work runs depends on who waits for it, and that can differ between ranks (only
// rank 0 may read the loss, for example). Blocking collectives must run in the same order everywhere, so each waits for
// the one submitted before it, on any stream.
void HostExchange::run(const char* name, void* out_pointer, size_t out_bytes, const void* in_pointer, size_t in_bytes,
                       stream_t stream, Work work) {
    if (last_)
        wait(stream, last_);
    else
        last_ = create_event();
    host::submit(stream,
                 {in(static_cast<const char*>(in_pointer), in_bytes), out(static_cast<char*>(out_pointer), out_bytes)},
                 {name, "", 0}, [=] { work(out_pointer, in_pointer); });
    record(last_, stream);
}

void HostExchange::drain() {
    if (last_) synchronize(last_);
}

#else

// On CUDA, device memory is copied to pinned memory and back while the calling thread waits. That is slow, but works
// wherever MPI runs, even when several ranks share a GPU, which NCCL does not allow.
void HostExchange::run(const char*, void* out_pointer, size_t out_bytes, const void* in_pointer, size_t in_bytes,
                       stream_t stream, Work work) {
    char *const from = in_.reserve(in_bytes), *const to = out_.reserve(out_bytes);
    if (in_bytes) copy_to_host(from, in_pointer, in_bytes, stream);
    synchronize(stream);
    work(to, from);
    if (out_bytes) copy_to_device(out_pointer, to, out_bytes, stream);
    synchronize(stream);  // afterwards the staging memory is free for the next message
}

char* HostExchange::Staging::reserve(size_t needed) {
    if (needed > bytes) {
        *this = {};  // frees the old memory first, and stays empty if the allocation fails
        memory = pinned<char>(needed);
        bytes = needed;
    }
    return memory;
}

void HostExchange::drain() {}

#endif

}  // namespace llmc
