// What lies under a Comm. A Transport moves host memory between processes (MPI, TCP); a Backend runs collectives on
// device memory, ordered by a stream. Virtual functions serve as the function table that is chosen at run time.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"

namespace llmc {

// Collectives on host memory. Blocking; called from the main thread alone, except lost_peer().
class Transport {
public:
    virtual ~Transport() = default;
    virtual const char* name() const = 0;
    virtual int rank() const = 0;
    virtual int world() const = 0;
    virtual void all_gather(void* out, const void* in, size_t bytes) = 0;  // in place where in == out + rank * bytes
    virtual void all_to_all(void* out, const void* in, size_t bytes) = 0;
    virtual void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                              const std::vector<size_t>& send) = 0;
    virtual void broadcast(void* data, size_t bytes, int root) = 0;
    virtual void barrier() = 0;
    virtual std::shared_ptr<Transport> split(int color) = 0;
    virtual int lost_peer() { return -1; }  // any thread: a rank whose connection broke
    virtual void finish() = 0;
};

// world > 1; sizes > 0. `what` is the collective that this one is a part of, for the log.
enum class ElementType { f32, f64, i32, u32, u64 };
class Backend {
public:
    virtual ~Backend() = default;
    virtual const char* name() const = 0;
    virtual void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) = 0;
    virtual void all_to_all(void* out, const void* in, size_t bytes, const char* what, stream_t stream) = 0;
    // Sizes may be 0.
    virtual void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                              const std::vector<size_t>& send, stream_t stream) = 0;
    virtual void broadcast(void* data, size_t bytes, int root, stream_t stream) = 0;
    // Reductions in an order that the library chooses; NCCL alone has them.
    virtual void reduce_scatter(float*, const float*, size_t, stream_t) {}
    virtual void all_reduce(void*, size_t, ElementType, ReduceOp, stream_t) {}
    virtual void begin_group() {}
    virtual void end_group() {}
    virtual std::string failure() { return {}; }  // any thread
};

// The back-ends of a process, whose failures any thread may ask for.
class BackendList {
public:
    void add(const std::shared_ptr<Backend>& backend);
    std::string failure();  // of any that is still in use

private:
    std::mutex mutex_;
    std::vector<std::weak_ptr<Backend>> backends_;
};

// Runs host functions on device memory, in the order of a stream and of their own submission. On the host device the
// memory itself, as work of the stream; on CUDA copies in pinned memory, while the calling thread waits.
class HostExchange {
public:
    HostExchange();
    ~HostExchange();
    HostExchange(const HostExchange&) = delete;
    HostExchange& operator=(const HostExchange&) = delete;

    // work(out, in) reads `in` (in_bytes) and writes `out` (out_bytes) completely.
    using Work = std::function<void(void* out, const void* in)>;
    void run(const char* name, void* out, size_t out_bytes, const void* in, size_t in_bytes, stream_t stream,
             Work work);
    // Everything submitted so far has run.
    void drain();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Collectives of device memory by a transport. `log` notes when they run.
std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport, std::shared_ptr<HostExchange> exchange,
                                           std::shared_ptr<OperationLog> log, std::string group);

// Whether NCCL of this version starts collectives of several communicators in the order of the calls, with
// NCCL_LAUNCH_ORDER_IMPLICIT set to `order` (nullptr: not set). It has that from 2.26 on; "deadlocks could ensue" says
// its guide of earlier ones when several communicators of a GPU are at work at once.
bool nccl_keeps_order(int version, const char* order);

// Does it for a library that does not: each collective waits, on the device, for the one issued before it, on whatever
// stream and communicator. Ranks issue them in the same order, so no two GPUs can wait for each other. They lose what
// overlap they had with each other, not that with compute. One for a process; main thread alone.
class CollectiveChain {
public:
    CollectiveChain() = default;
    ~CollectiveChain();
    CollectiveChain(const CollectiveChain&) = delete;
    CollectiveChain& operator=(const CollectiveChain&) = delete;

    void before(stream_t stream);  // the next collective of this stream
    void after(stream_t stream);   // it has been issued

private:
    event_t last_{};
    bool any_ = false;
};

// MPI and NCCL, where the build has them; without, both throw Error(bad_flags) and say how to get it. One call of MPI
// moves at most `largest_message` bytes a rank.
bool built_with_mpi();
bool built_with_nccl();
std::shared_ptr<Transport> make_mpi_transport(size_t largest_message);
// `control` creates it; the open device is its GPU. `chain` is used where nccl_keeps_order() says no.
std::unique_ptr<Backend> make_nccl_backend(Transport& control, std::shared_ptr<OperationLog> log, std::string group,
                                           std::shared_ptr<CollectiveChain> chain);

struct TcpAddress {
    std::string host;
    int port = 0;
};
// The settings that all ranks of a run over TCP share. Rank 0 listens at the address, the others connect to it.
struct TcpMeeting {
    TcpAddress address;
    int world = 1;
    std::string program;     // hash of the executable; at most 31 characters
    std::string secret;      // a rank must know it to be let in; "": every process may come
    double timeout = 600;    // seconds to wait for the other ranks
    double hello_limit = 5;  // seconds from accepting a connection to its complete hello
};
std::shared_ptr<Transport> make_tcp_transport(int rank, const TcpMeeting& meeting);

// A text in memory that another rank filled: it ends at the first NUL or after `capacity` bytes, and control
// characters, which could change what a terminal shows, become '?'.
std::string peer_text(const char* data, size_t capacity);

}  // namespace llmc
