// HostExchange, which runs host functions on device memory (backend.h), for either device.
// build: per device, optimized
#include "llmc/comm/backend.h"
#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"
#include "llmc/device/owned.h"
#endif

namespace llmc {

#if !LLMC_CUDA

// On the host device, device memory is host memory, so the work runs on it directly, as work of its stream with
// declared accesses.
//
// With lazy streams the order in which work runs depends on who waits for it, and that can differ between ranks (only
// rank 0 may read the loss, for example). Blocking collectives must run in the same order everywhere, so each waits for
// the one submitted before it, on any stream.
struct HostExchange::State {
    OwnedEvent last = create_event();
};

HostExchange::HostExchange() : state_(std::make_unique<State>()) {}
HostExchange::~HostExchange() = default;

void HostExchange::run(const char* name, void* out_pointer, size_t out_bytes, const void* in_pointer, size_t in_bytes,
                       stream_t stream, Work work) {
    wait(stream, state_->last);
    host::submit(stream,
                 {in(static_cast<const char*>(in_pointer), in_bytes), out(static_cast<char*>(out_pointer), out_bytes)},
                 {name, "", 0}, [=] { work(out_pointer, in_pointer); });
    record(state_->last, stream);
}

void HostExchange::drain() { synchronize(state_->last); }

#else

// On CUDA, device memory is copied to pinned memory and back while the calling thread waits. That is slow, but works
// wherever MPI runs, even when several ranks share a GPU, which NCCL does not allow.
namespace {
struct Staging {
    void* memory = nullptr;
    size_t bytes = 0;
    void reserve(size_t needed) {
        if (needed <= bytes) return;
        if (memory) pinned_free(memory);
        *this = {};  // stays empty if the allocation fails
        memory = pinned_malloc(needed);
        bytes = needed;
    }
};
}  // namespace

struct HostExchange::State {
    Staging in, out;  // grow to the largest message; never freed, since CUDA may already be gone at the end
};

HostExchange::HostExchange() : state_(std::make_unique<State>()) {}
HostExchange::~HostExchange() = default;

void HostExchange::run(const char*, void* out_pointer, size_t out_bytes, const void* in_pointer, size_t in_bytes,
                       stream_t stream, Work work) {
    state_->in.reserve(in_bytes);
    state_->out.reserve(out_bytes);
    if (in_bytes) copy_to_host(state_->in.memory, in_pointer, in_bytes, stream);
    synchronize(stream);
    work(state_->out.memory, state_->in.memory);
    if (out_bytes) copy_to_device(out_pointer, state_->out.memory, out_bytes, stream);
    synchronize(stream);  // afterwards the staging memory is free for the next message
}

void HostExchange::drain() {}

#endif

}  // namespace llmc
