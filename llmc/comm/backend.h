// The layers below Comm. A Transport moves host memory between processes (MPI, TCP). A Backend runs collectives on
// device memory, ordered by a stream. The implementation is chosen at run time through virtual functions.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/comm/operation_log.h"
#include "llmc/comm/rank_time.h"
#include "llmc/device/owned.h"

namespace llmc {

// Collectives on host memory. They block, and only the main thread calls them, except for lost_peer().
class Transport {
public:
    virtual ~Transport() = default;
    virtual const char* name() const = 0;
    virtual int rank() const = 0;
    virtual int world() const = 0;
    virtual void all_gather(void* out, const void* in, size_t bytes) = 0;  // in place if in == out + rank * bytes
    virtual void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                              const std::vector<size_t>& send) = 0;
    virtual void broadcast(void* data, size_t bytes, int root) = 0;
    virtual void barrier() = 0;
    virtual std::shared_ptr<Transport> split(int color) = 0;
    virtual int lost_peer() { return -1; }  // callable from any thread: a rank whose connection broke, or -1
    virtual void finish() = 0;
};

// Element types of all_reduce.
enum class ElementType { f32, f64, i32 };
// Collectives on device memory for world > 1 and sizes > 0. `what` names the collective that a call is part of, for the
// log.
class Backend {
public:
    virtual ~Backend() = default;
    virtual void all_gather(void* out, const void* in, size_t bytes, const char* what, stream_t stream) = 0;
    // Sizes may be 0.
    virtual void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in,
                              const std::vector<size_t>& send, const char* what, stream_t stream) = 0;
    virtual void broadcast(void* data, size_t bytes, int root, stream_t stream) = 0;
    // Reductions in an order that the library chooses. Only NCCL has them; others throw.
    virtual void reduce_scatter(float*, const float*, size_t, stream_t) {
        throw Error(ExitCode::failure, "this back-end has no reduce_scatter; exchange pieces and sum them");
    }
    virtual void all_reduce(void*, size_t, ElementType, ReduceOp, stream_t) {
        throw Error(ExitCode::failure, "this back-end has no all_reduce; gather the values and reduce them");
    }
    // Called around collectives that NCCL launches as one group. Other back-ends do nothing.
    virtual void begin_group() {}
    virtual void end_group() {}
    virtual std::string failure() { return {}; }  // callable from any thread: what went wrong, or ""
};

// The back-ends of a process, so that any thread can ask for their failures.
class BackendList {
public:
    void add(const std::shared_ptr<Backend>& backend) {
        const std::lock_guard lock(mutex_);
        backends_.push_back(backend);
    }
    std::string failure();  // the failure of any back-end still in use

private:
    std::mutex mutex_;
    std::vector<std::weak_ptr<Backend>> backends_;
};

// State that the host back-ends of a process share, because their collectives run one after the other.
struct HostQueue {
    std::vector<char> in, out;  // on CUDA: the message that is being sent or received
    OwnedEvent last;            // on the host device: after the last collective

    // Waits until everything submitted so far has run.
    void drain() {
        if (last) synchronize(last);
    }
};

// The state that all communicators of a process share.
struct CommProcess {
    const std::shared_ptr<OperationLog> log = std::make_shared<OperationLog>();
    PeerWaits waits{log};
    HostQueue queue;
    BackendList backends;
    // The back-end whose Comm::Group is open, or nullptr. Only one is open at a time, because NCCL groups all
    // collectives of a thread, while a back-end only knows its own collectives.
    const Backend* grouping = nullptr;
};

// The host back-end: collectives on device memory through a transport. `group` names the communicator in the log.
std::unique_ptr<Backend> make_host_backend(std::shared_ptr<Transport> transport, std::shared_ptr<CommProcess> process,
                                           std::string group);

// MPI and NCCL. In a build without them the make_ functions throw Error(bad_flags) and say how to get one. One call of
// MPI moves at most `largest_message` bytes per rank.
bool built_with_mpi();
bool built_with_nccl();
std::shared_ptr<Transport> make_mpi_transport(size_t largest_message);
// Sets up NCCL with the help of `control`, on the open device.
std::unique_ptr<Backend> make_nccl_backend(Transport& control, std::shared_ptr<CommProcess> process, std::string group);

// Meets the other ranks over TCP (tcp.h).
struct TcpMeeting;
std::shared_ptr<Transport> make_tcp_transport(int rank, const TcpMeeting& meeting);

// Makes a Comm of the ranks that a transport connects. With `nccl`, attach_device() makes its back-end.
Comm connect_transport(std::shared_ptr<Transport> transport, bool nccl, ReduceOrder order);

// A text that another rank wrote into `data`. It ends at the first NUL or after `capacity` bytes. Control characters,
// which could change what a terminal shows, become '?'.
std::string peer_text(const char* data, size_t capacity);

}  // namespace llmc
