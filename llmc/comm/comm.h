// Who the ranks are, and the collectives between them. Everything above talks to a Comm and cannot tell which back-end
// it has: `self` (one rank; nothing moves), `mpi` and `tcp` (host memory), or `nccl`.
//
// A Comm is a handle: copies share one communicator. Device collectives are ordered by their stream like any kernel;
// host collectives return when they are done. Every rank must issue the same collectives in the same order, and may put
// them on different streams. mpi and tcp run them in that order whatever the streams: they block the calling thread (on
// the host device, when the stream gets there) and are called from the main thread alone. NCCL runs a communicator's
// collectives one after the other; what is to overlap needs a duplicate() each.
//
// Anything that goes wrong between ranks throws Error(ExitCode::communication); what a rank never notices is left to
// the Watchdog (watchdog.h). connect.h makes a Comm of several ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llmc/comm/fp8_wire.h"
#include "llmc/comm/operation_log.h"
#include "llmc/device/runtime.h"

namespace llmc {

enum class ReduceOp { sum, max };
enum class Wire { fp32, bf16, fp8 };   // what reduce_scatter sends; sums are FP32 always
enum class ReduceOrder { any, rank };  // the library's order of summation, or ((r0 + r1) + r2) + ... always

// What collectives this rank issued, and how many bytes it had to get to other ranks: for (N ranks, slices of n bytes)
// (N - 1) * n for all_gather, reduce_scatter (n: of slices as they are sent), all_to_all and the root of a broadcast;
// all pieces but its own for all_to_all_v, which counts as all_to_all; for all_reduce of n bytes 2 * (N - 1) / N * n
// where the library reduces, (N - 1) * n where all gather and sum in rank order.
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
class Transport;

class Comm {
public:
    // A world of one rank.
    static Comm self(ReduceOrder order = ReduceOrder::any);
    // Rank 0 of `world` ranks that do not exist, to plan memory with; `backend` as connect() takes it. Collectives
    // throw.
    static Comm planned(int world, const std::string& backend = "mpi", ReduceOrder order = ReduceOrder::any);

    int rank() const;
    int world() const;
    bool is_main() const { return rank() == 0; }
    const char* name() const;  // of the back-end
    // Among the ranks of this machine, in the order of their ranks.
    int local_rank() const;
    int local_world() const;
    const std::string& host(int rank) const;
    ReduceOrder reduce_order() const;

    // ---- device memory, ordered by the stream ----

    // out (world, bytes) = the `in` (bytes) of every rank. In place where in == out + rank * bytes.
    void all_gather(void* out, const void* in, size_t bytes, stream_t stream) const;
    // Row r of out (world, bytes) = row `rank` of rank r's in (world, bytes). Not in place.
    void all_to_all(void* out, const void* in, size_t bytes, stream_t stream) const;
    // The same with pieces of any size: in `in` the piece for each rank, `send` bytes of it, in `out` that of each
    // rank, `receive` bytes, all in the order of the ranks and without gaps. What one rank sends another has to expect.
    void all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                      stream_t stream) const;
    void broadcast(void* data, size_t bytes, int root, stream_t stream) const;
    // out (count) = row `rank` of in (world, count), summed over the ranks in FP32, or with `accumulate` out + that
    // sum, in rank order (out + r0) + r1 ... With Wire::bf16 every rank's values are rounded to BF16 first, with
    // Wire::fp8 they are cast as cast_pieces() does, with `feedback`, which other wires do not look at. out may be that
    // row of `in`, unless it accumulates. The sum is not scaled: scale the loss. Back-ends other than NCCL always sum
    // in rank order, and so do all but with Wire::fp32. One rank: a copy, or an addition.
    void reduce_scatter(float* out, const float* in, size_t count, Wire wire, bool accumulate, void* workspace,
                        stream_t stream, const Feedback& feedback = {}) const;
    // data (count) = its sum or maximum over the ranks, in place. T: float, double, int32_t, uint32_t, uint64_t. For
    // scalars and vectors such as amaxes: what is large goes through reduce_scatter and all_gather. A maximum of floats
    // must not meet NaN (which rank's survives is open): carry that in an integer.
    template <class T>
    void all_reduce(T* data, size_t count, ReduceOp op, void* workspace, stream_t stream) const;

    // Bytes of device memory the two need as `workspace`, 256-byte aligned, theirs until the stream is past them; 0:
    // none.
    size_t reduce_scatter_workspace(size_t count, Wire wire, bool accumulate) const;
    template <class T>
    size_t all_reduce_workspace(size_t count) const;

    // all_gathers, all_to_alls and broadcasts issued while it lives are started together, which NCCL makes one launch
    // of.
    class Group {
    public:
        explicit Group(const Comm& comm);
        ~Group() noexcept(false);
        Group(const Group&) = delete;
        Group& operator=(const Group&) = delete;

    private:
        const Comm& comm_;
        int exceptions_;
    };

    // ---- host memory; collectives too ----

    void host_all_gather(void* out, const void* in, size_t bytes) const;
    void host_broadcast(void* data, size_t bytes, int root) const;
    int64_t host_max(int64_t value) const;
    void barrier() const;  // returns when every rank has come here, with all earlier collectives done
    // Throws the same Error(bad_flags) on every rank unless `text` is the same everywhere, and names a line that
    // differs.
    void require_equal(const std::string& what, const std::string& text) const;

    // ---- other communicators; collectives too ----

    // The ranks that give the same color, in the order of their ranks. `label` is for reports.
    Comm split(int color, const std::string& label) const;
    // For hybrid sharding: this rank's n consecutive ranks, and the ranks in the same place of the other groups.
    Comm neighbours(int n, const std::string& label) const;
    Comm counterparts(int n, const std::string& label) const;
    Comm duplicate(const std::string& label) const { return split(0, label); }

    // ---- the life of a communicator ----

    // To be called once the device is open: creates what needs it (NCCL). Refuses two ranks on one GPU for NCCL.
    void attach_device() const;
    // Leaves the world in good order; afterwards no collective is allowed. A process that fails ends without it.
    void finish() const;

    const Traffic& traffic() const;
    void reset_traffic() const;
    OperationLog& log() const;  // of all communicators of the process
    // From any thread: what is known to have gone wrong ("rank 3 on node7 is gone"), with this communicator or another
    // that came of the same connect(); "" if nothing.
    std::string failure() const;
    // From any thread: the rank on this machine whose process has ended, as a sentence; "" if there is none. For MPI,
    // which reports no such thing before mpirun, a second later, ends all ranks. Over TCP failure() notices the closed
    // connection.
    std::string ended_neighbour() const;

    struct State;

private:
    friend Comm connect_transport(std::shared_ptr<Transport>, bool nccl, ReduceOrder);
    explicit Comm(std::shared_ptr<State> state) : state_(std::move(state)) {}

    std::shared_ptr<State> state_;
};

}  // namespace llmc
