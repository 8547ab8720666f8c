// The ranks of a run and the collectives between them. Code above this folder uses a Comm and cannot tell which
// back-end it has: `self` (one rank, nothing moves), `mpi` and `tcp` (host memory), or `nccl`.
//
// A Comm is a handle: copies share one communicator. Device collectives are ordered by their stream like any kernel;
// host collectives return when they are done. Every rank must issue the same collectives in the same order, but may use
// different streams for them. mpi and tcp run them in that order on all streams. They block the calling thread (on the
// host device, when the stream reaches them), and only the main thread may call them. NCCL runs the collectives of one
// communicator one after the other; to overlap two collectives, give each its own communicator.
//
// Errors between ranks throw Error(ExitCode::communication). The Watchdog (watchdog.h) handles what a rank cannot
// notice itself. connect() makes a Comm of several ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/comm/launch.h"
#include "llmc/comm/reductions.h"
#include "llmc/device/runtime.h"
#include "llmc/device/trace.h"

namespace llmc {

enum class Wire { fp32, bf16, fp8 };   // how reduce_scatter sends values; sums are always FP32
enum class ReduceOrder { any, rank };  // the library's order of summation, or always ((r0 + r1) + r2) + ...

// Counts the collectives that this rank issued, and the bytes it had to get to other ranks. For N ranks and slices of n
// bytes: (N - 1) * n for all_gather, all_to_all, the root of a broadcast, and reduce_scatter (n in its wire format).
// all_to_all_v is counted as all_to_all, with all pieces but the rank's own. all_reduce of n bytes counts 2 * (N - 1) /
// N * n if the library reduces, and (N - 1) * n if all ranks gather and sum in rank order.
struct Traffic {
    struct Count {
        uint64_t calls = 0, bytes = 0;
    };
    Count all_gather, reduce_scatter, all_to_all, all_reduce, broadcast;
    uint64_t bytes() const {
        return all_gather.bytes + reduce_scatter.bytes + all_to_all.bytes + all_reduce.bytes + broadcast.bytes;
    }
};

class Backend;
class OperationLog;
class PeerWaits;
class Transport;

// A communicator: a group of ranks, and this process's place in it.
class Comm {
public:
    // A world of one rank.
    static Comm self(ReduceOrder order = ReduceOrder::any);
    // Rank 0 of `world` ranks that do not exist, for planning memory. `backend` is as for connect(). Collectives throw.
    static Comm planned(int world, const std::string& backend = "mpi", ReduceOrder order = ReduceOrder::any);

    int rank() const;
    int world() const;
    bool is_main() const { return rank() == 0; }
    const char* name() const;  // the back-end's name
    // This rank's index among the ranks of its machine, and their number.
    int local_rank() const;
    int local_world() const;
    const std::string& host(int rank) const;
    ReduceOrder reduce_order() const;

    // ---- device memory, ordered by the stream ----

    // out (world, bytes) = the `in` (bytes) of every rank. In place if in == out + rank * bytes.
    void all_gather(void* out, const void* in, size_t bytes, stream_t stream) const;
    // Row r of out (world, bytes) = row `rank` of rank r's in (world, bytes). Not in place.
    void all_to_all(void* out, const void* in, size_t bytes, stream_t stream) const;
    // The same with pieces of any size. `in` holds the piece for each rank (send[r] bytes), `out` receives the piece
    // from each rank (receive[r] bytes), both in the order of the ranks and without gaps. The receiver must expect
    // exactly the size that the sender sends.
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                      stream_t stream) const;
    void broadcast(void* data, size_t bytes, int root, stream_t stream) const;
    // out (count) = row `rank` of in (world, count), summed over the ranks in FP32. With `accumulate` the sum is added
    // to out, in rank order: (out + r0) + r1 ... Wire::bf16 rounds every rank's values to BF16 first. Wire::fp8 casts
    // them as cast_pieces() does; only it uses `feedback`. Without `accumulate`, out may be that row of `in`. The sum
    // is not scaled, so scale the loss. Sums are in rank order except for Wire::fp32 on NCCL. With one rank this is a
    // copy or an addition.
    void reduce_scatter(float* out, const float* in, size_t count, Wire wire, bool accumulate, void* workspace,
                        stream_t stream, const Feedback& feedback = {}) const;
    // data (count) = its sum or maximum over the ranks, in place. T is float, double or int32_t.
    // Meant for scalars and short vectors such as amaxes; use reduce_scatter and all_gather for large data. A maximum
    // of floats must not see NaN, because it is undefined which rank's value survives: send such flags as integers.
    template <class T>
    void all_reduce(T* data, size_t count, ReduceOp op, void* workspace, stream_t stream) const;

    // The bytes of device memory that reduce_scatter() and all_reduce() need as `workspace`, or 0. The memory must be
    // 256-byte aligned, and nothing else may use it until the stream has passed the collective.
    size_t reduce_scatter_workspace(size_t count, Wire wire, bool accumulate) const;
    template <class T>
    size_t all_reduce_workspace(size_t count) const;

    // Starts the all_gathers, all_to_alls and broadcasts issued during its lifetime together; NCCL merges them into one
    // launch.
    class Group {
    public:
        explicit Group(const Comm& comm);
        ~Group() noexcept(false);
        Group(Group&&) = delete;

    private:
        const Comm& comm_;
        int exceptions_;
    };

    // ---- host memory; collectives too ----

    void host_all_gather(void* out, const void* in, size_t bytes) const;
    void host_broadcast(void* data, size_t bytes, int root) const;
    int64_t host_max(int64_t value) const;
    void barrier() const;  // returns when every rank has arrived, with all earlier collectives done
    // Throws the same Error(bad_flags) on every rank unless `text` is equal everywhere. The message names a line that
    // differs.
    void require_equal(const std::string& what, const std::string& text) const;

    // ---- other communicators; collectives too ----

    // The ranks that pass the same color, in the order of their ranks. `label` appears in reports.
    Comm split(int color, const std::string& label) const;
    // For hybrid sharding: this rank's group of n consecutive ranks, and the ranks with the same index in other groups.
    Comm neighbours(int n, const std::string& label) const;
    Comm counterparts(int n, const std::string& label) const;

    // ---- the life of a communicator ----

    // Creates what needs an open device (NCCL); call it once the device is open. Refuses two ranks on one GPU for NCCL.
    void attach_device() const;
    // Leaves the world cleanly; afterwards no collective is allowed. A process that fails ends without it.
    void finish() const;

    const Traffic& traffic() const;
    void reset_traffic() const;
    OperationLog& log() const;  // shared by all communicators of the process
    // Time that this process waits for other ranks; shared likewise.
    PeerWaits& waits() const;
    // Makes the stream wait for an event that follows a collective of another stream. waits() counts the time.
    void wait_for_peers(stream_t stream, event_t event) const;
    // Callable from any thread: a known failure ("rank 3 on node7 is gone") of this communicator or another from the
    // same connect(), or "".
    std::string failure() const;
    // Callable from any thread: a sentence about a rank on this machine whose process has ended, or "". MPI needs this:
    // it does not report such a rank before mpirun ends all ranks a second later. Over TCP, failure() notices the
    // closed connection.
    std::string ended_neighbour() const;

    struct State;

private:
    friend Comm connect_transport(std::shared_ptr<Transport>, bool nccl, ReduceOrder);
    explicit Comm(std::shared_ptr<State> state) : state_(std::move(state)) {}

    std::shared_ptr<State> state_;
};

// A named range of collectives in profiles and traces (device/trace.h), with the bytes that this rank sent.
class CommRange {
public:
    CommRange(const char* name, const Comm& comm, stream_t stream)
        : range_(name, Trace::Kind::communication, stream), comm_(comm), before_(comm.traffic().bytes()) {}
    ~CommRange() { range_.set_bytes(comm_.traffic().bytes() - before_); }

private:
    ProfileRange range_;
    const Comm& comm_;
    const uint64_t before_;
};

// ---- joining the processes of a run into one Comm -------------------------------------------------------------------

struct ConnectOptions {
    CommKind backend = CommKind::automatic;
    ReduceOrder order = ReduceOrder::any;
    double timeout = 600;                      // seconds to wait for the other ranks over TCP; 0: forever
    size_t largest_message = size_t{1} << 30;  // bytes in one call of MPI; tests reduce it
};

// Meets the other ranks. Refuses a start whose ranks contradict each other: different binaries, or tasks of srun that
// each believe they are alone. Afterwards call open_device() for local_rank(), then attach_device().
Comm connect(const ConnectOptions& options, const LaunchInfo& launch);

// Ends a process of a multi-rank run after an error: prints "rank 2: ..." and exits with the error's code, without
// MPI_Finalize, so mpirun ends the other ranks. Wrong flags fail on every rank, so the others give rank 0 half a second
// to print the error and the launcher to end them: then it is printed once. Stop the watchdog first.
[[noreturn]] void leave(const LaunchInfo& launch, const Error& error);

// The device number for a rank. If a machine shows every rank only its own GPU, that device is number 0.
int device_of_rank(const Comm& comm, int visible_devices);

}  // namespace llmc
