// The back-end over a transport of host memory (MPI, TCP): its collectives on device memory, for either device.
// build: per device, optimized
#include <numeric>
#include <utility>

#include "llmc/comm/backend.h"
#if LLMC_CUDA
#include "llmc/device/transfer.h"
#else
#include "llmc/device/host/runtime.h"
#endif

namespace llmc {
namespace {

class HostBackend final : public Backend {
public:
    HostBackend(std::shared_ptr<Transport> transport, std::shared_ptr<CommProcess> process, std::string group)
        : transport_(std::move(transport)), process_(std::move(process)), group_(std::move(group)) {}

    void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        run(what, others() * bytes, out, world() * bytes, in, bytes, stream,
            [bytes](Transport& t, void* to, const void* from) { t.all_gather(to, from, bytes); });
    }
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                      const char* what, stream_t stream) override {
        const size_t received = std::accumulate(receive.begin(), receive.end(), size_t{0});
        const size_t sent = std::accumulate(send.begin(), send.end(), size_t{0});
        run(what, sent - send[transport_->rank()], out, received, in, sent, stream,
            [receive, send](Transport& t, void* to, const void* from) { t.all_to_all_v(to, receive, from, send); });
    }
    void broadcast(void* data, size_t bytes, int root, stream_t stream) override {
        const bool sends = transport_->rank() == root;
        run("broadcast", sends ? others() * bytes : 0, data, sends ? 0 : bytes, data, sends ? bytes : 0, stream,
            [=](Transport& t, void* to, const void* from) {
                t.broadcast(sends ? const_cast<void*>(from) : to, bytes, root);
            });
    }

private:
    size_t world() const { return static_cast<size_t>(transport_->world()); }
    size_t others() const { return world() - 1; }

    // Runs function(transport, out, in), which reads `in` and writes all of `out`.
    template <class Function>
    void run(const char* name, size_t sent, void* out_pointer, size_t out_bytes, const void* in_pointer,
             size_t in_bytes, stream_t stream, Function function) {
        // Copies, not `this`: with lazy streams the work may run after this object is gone.
        const auto work = [transport = transport_, log = process_->log, group = group_, name, sent, function](
                              void* to, const void* from) {
            const uint64_t sequence = log->begin(name, group, sent);
            function(*transport, to, from);
            log->end(sequence);
        };
        HostQueue& queue = process_->queue;
#if !LLMC_CUDA
        // Device memory is host memory, so the work runs on it directly, as work of its stream with declared accesses.
        //
        // With lazy streams the order in which work runs depends on who waits for it, and that can differ between ranks
        // (only rank 0 may read the loss, for example). Blocking collectives must run in the same order everywhere, so
        // each waits for the one submitted before it, on any stream.
        if (queue.last)
            wait(stream, queue.last);
        else
            queue.last = create_event();
        host::submit(
            stream,
            {in(static_cast<const char*>(in_pointer), in_bytes), out(static_cast<char*>(out_pointer), out_bytes)},
            {name, "", 0}, [=] { work(out_pointer, in_pointer); });
        record(queue.last, stream);
#else
        // Device memory is copied to host memory and back while the calling thread waits. That is slow, but works
        // wherever MPI runs, even when several ranks share a GPU, which NCCL does not allow.
        queue.in.resize(in_bytes);
        queue.out.resize(out_bytes);
        read_bytes(queue.in.data(), in_pointer, in_bytes, stream);
        synchronize(stream);
        work(queue.out.data(), queue.in.data());
        write_bytes(out_pointer, queue.out.data(), out_bytes, stream);
#endif
    }

    std::shared_ptr<Transport> transport_;
    std::shared_ptr<CommProcess> process_;
    std::string group_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport, std::shared_ptr<CommProcess> process,
                                           std::string group) {
    return std::make_unique<HostBackend>(std::move(transport), std::move(process), std::move(group));
}

}  // namespace llmc
