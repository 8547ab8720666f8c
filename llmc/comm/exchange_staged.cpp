// HostExchange on CUDA: copies device memory to pinned memory and back while the calling thread waits. It is slow, but
// works wherever MPI runs, even when several ranks share a GPU, which NCCL does not allow.
// build: per device
#include "llmc/comm/backend.h"

#if LLMC_CUDA
namespace llmc {

namespace {
struct Staging {
    void* memory = nullptr;
    size_t bytes = 0;
    void reserve(size_t needed) {
        if (needed <= bytes) return;
        if (memory) pinned_free(memory);
        memory = nullptr, bytes = 0;
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

}  // namespace llmc
#endif
