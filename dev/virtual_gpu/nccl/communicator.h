// A communicator of one rank: who it is, whether it may be used, and what failed.
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

// Makes a device the thread's, as long as it lives.
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

// NCCL's header has the name. Never freed: a call on one that was destroyed must be recognised.
struct ncclComm {
    enum class Life { joining, ready, finalized, destroyed, aborted };

    int rank = 0, ranks = 0, device = 0;
    std::shared_ptr<virtual_gpu::nccl::Segment> segment;  // kept by its launches too
    std::atomic<Life> life{Life::joining};
    std::atomic<int> outstanding{0};  // launches that have not ended
    std::atomic<bool> named{false};   // that nothing moves was said

    // Calls so far, on the host: of collectives, and by peer of sends and recvs.
    uint64_t collectives = 0;
    std::map<int, uint64_t> sends, recvs;

    std::string name() const;  // "communicator 2 (rank 1 of 3)"
    int id = 0;                // by creation in this process

    // An asynchronous error: of this rank, or of all.
    void fail(ncclResult_t code, const std::string& text);
    void fail_all(ncclResult_t code, const std::string& text);
    ncclResult_t failure();  // reported when first seen

    // Throws Error(ncclInvalidArgument) where it is no live communicator.
    static ncclComm& live(ncclComm_t comm);
    static ncclComm* create(const ncclUniqueId& id, int ranks, int rank);  // takes its seat
    void join();                                                           // waits for the others
    ncclComm* split(int color, int key);                                   // nullptr: NCCL_SPLIT_NOCOLOR
    void end(Life how);                                                    // destroyed or aborted

private:
    std::mutex mutex_;
    ncclResult_t failed_ = ncclSuccess;
};
