// A communicator of one rank: its identity, its state, and its failures.
#pragma once
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dev/virtual_gpu/nccl/segment.h"

namespace virtual_gpu::nccl {

// Makes a device the thread's current device during its lifetime.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

private:
    int before_ = 0;
};

}  // namespace virtual_gpu::nccl

// The name comes from NCCL's header. Never freed, so that a call on a destroyed communicator can be recognised.
struct ncclComm {
    enum class Life { joining, ready, finalized, destroyed, aborted };

    int rank = 0, ranks = 0, device = 0;
    std::shared_ptr<virtual_gpu::nccl::Segment> segment;  // its launches keep it alive too
    std::atomic<Life> life{Life::joining};
    std::atomic<int> outstanding{0};  // launches that have not ended
    std::atomic<bool> named{false};   // true once a lack of progress was reported

    // The number of calls so far, on the host: of collectives, and of sends and recvs by peer.
    uint64_t collectives = 0;
    std::map<int, uint64_t> sends, recvs;

    std::string name() const;  // "communicator 2 (rank 1 of 3)"
    int id = 0;                // counts creations in this process

    // Records an asynchronous error, of this rank or of all ranks.
    void fail(ncclResult_t code, const std::string& text);
    void fail_all(ncclResult_t code, const std::string& text);
    ncclResult_t failure();  // reports it when first called

    // Throws Error(ncclInvalidArgument) unless it is a live communicator.
    static ncclComm& live(ncclComm_t comm);
    static ncclComm* create(const ncclUniqueId& id, int ranks, int rank);  // takes its seat
    void join();                                                           // waits for the other ranks
    ncclComm* split(int color, int key);                                   // nullptr for NCCL_SPLIT_NOCOLOR
    void end(Life how);                                                    // destroyed or aborted

private:
    std::mutex mutex_;
    ncclResult_t failed_ = ncclSuccess;
};
