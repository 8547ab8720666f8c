// Code that all back-ends share (the order of NCCL's collectives, the query for failures, texts from other ranks), and
// the back-end over a transport of host memory (mpi, tcp).
#include "llmc/comm/backend.h"

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

namespace llmc {

bool nccl_keeps_order(int version, const char* order) {
    constexpr int kFirst = 22600;  // NCCL_VERSION_CODE of 2.26
    return version >= kFirst && order && std::atoi(order) != 0;
}

std::string peer_text(const char* data, size_t capacity) {
    std::string text(data, strnlen(data, capacity));
    for (char& c : text)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
    return text;
}

void BackendList::add(const std::shared_ptr<Backend>& backend) {
    const std::lock_guard lock(mutex_);
    backends_.push_back(backend);
}

std::string BackendList::failure() {
    const std::lock_guard lock(mutex_);
    for (const auto& one : backends_)
        if (const auto backend = one.lock())
            if (std::string found = backend->failure(); !found.empty()) return found;
    return {};
}

void CollectiveChain::before(stream_t stream) {
    if (last_) wait(stream, last_);
}

void CollectiveChain::after(stream_t stream) {
    if (!last_) last_ = create_event();
    record(last_, stream);
}

// ---- collectives on device memory through a transport ---------------------------------------------------------------

namespace {

class HostBackend final : public Backend {
public:
    HostBackend(std::shared_ptr<Transport> transport, std::shared_ptr<CommProcess> process, std::string group)
        : transport_(std::move(transport)), process_(std::move(process)), group_(std::move(group)) {}

    void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        run(what, others() * bytes, out, world() * bytes, in, bytes, stream,
            [bytes](Transport& t, void* to, const void* from) { t.all_gather(to, from, bytes); });
    }
    void all_to_all(void* out, const void* in, size_t bytes, const char* what, stream_t stream) override {
        run(what, others() * bytes, out, world() * bytes, in, world() * bytes, stream,
            [bytes](Transport& t, void* to, const void* from) { t.all_to_all(to, from, bytes); });
    }
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                      stream_t stream) override {
        const size_t received = std::accumulate(receive.begin(), receive.end(), size_t{0});
        const size_t sent = std::accumulate(send.begin(), send.end(), size_t{0});
        run("all_to_all_v", sent - send[transport_->rank()], out, received, in, sent, stream,
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

    template <class Function>
    void run(const char* name, size_t sent, void* out, size_t out_bytes, const void* in, size_t in_bytes,
             stream_t stream, Function function) {
        // Copies, not `this`: with lazy streams the work may run after this object is gone.
        auto work = [transport = transport_, log = process_->log, group = group_, name, sent, function](
                        void* to, const void* from) {
            const uint64_t sequence = log->begin(name, group, sent);
            function(*transport, to, from);
            log->end(sequence);
        };
        process_->exchange.run(name, out, out_bytes, in, in_bytes, stream, work);
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
