// HostExchange on the host device: device memory is host memory, so the work runs on it directly, as work of its stream
// with declared accesses.
//
// With lazy streams the order in which work runs depends on who waits for it, and that can differ between ranks (only
// rank 0 may read the loss, for example). Blocking collectives must run in the same order everywhere, so each waits for
// the one submitted before it, on any stream.
// build: per device, optimized
#include "llmc/comm/backend.h"

#if !LLMC_CUDA
#include "llmc/device/host/runtime.h"

namespace llmc {

struct HostExchange::State {
    event_t last = create_event();
};

HostExchange::HostExchange() : state_(std::make_unique<State>()) {}
HostExchange::~HostExchange() {
    tear_down([this] { destroy_event(state_->last); });
}

void HostExchange::run(const char* name, void* out_pointer, size_t out_bytes, const void* in_pointer, size_t in_bytes,
                       stream_t stream, Work work) {
    wait(stream, state_->last);
    host::submit(stream,
                 {in(static_cast<const char*>(in_pointer), in_bytes), out(static_cast<char*>(out_pointer), out_bytes)},
                 {name, "", 0}, [=] { work(out_pointer, in_pointer); });
    record(state_->last, stream);
}

void HostExchange::drain() { synchronize(state_->last); }

}  // namespace llmc
#endif
