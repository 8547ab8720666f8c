// One launch on the GPU: a call, or a group's calls on one communicator. It starts when all its streams have reached it
// and the card is free for it, and ends on all of them at once.
//
// It never blocks: the device thread calls it repeatedly (`ready` of virtual_gpu::submit), and each time it moves the
// bytes that can be moved.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dev/virtual_gpu/nccl/communicator.h"
#include "dev/virtual_gpu/nccl/operation.h"

namespace virtual_gpu::nccl {

// A message being sent. Messages on a channel follow each other.
struct Outgoing {
    Channel* channel;
    int peer;
    Label label;
    const char* data;
    size_t bytes, done = 0;  // done counts label and data
    uint64_t end = 0;        // in the channel's count of bytes
};
struct Incoming {
    Channel* channel;
    int peer;
    Label expected, found;
    std::vector<char> data;
    size_t done = 0;
};

class Launch {
public:
    Launch(ncclComm& comm, std::vector<Call> calls);
    ~Launch();
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    const std::vector<cudaStream_t>& streams() const { return streams_; }
    std::string name() const;

    // Called by the device thread when the stream has reached this launch. Returns true once it has ended.
    bool poll(size_t stream);
    // Called by the device thread after poll() returned true. Throws Fault, on one stream, if a buffer was invalid.
    void conclude();

    ncclComm& comm() const { return comm_; }
    bool started() const { return started_; }

private:
    void start();
    void check_buffers();
    void add_collective(size_t call);
    bool can_move() const;
    bool move();  // whether anything moved
    bool send(Outgoing& message);
    bool receive(Incoming& message);
    bool complete() const;
    void finish();
    void place_results(size_t call);
    void end();
    void watch(bool moved);
    void name_those_waiting(double seconds);
    bool lost_a_peer();
    void say(const std::string& doing);

    ncclComm& comm_;
    const std::shared_ptr<Segment> segment_;
    const std::vector<Call> calls_;
    std::vector<cudaStream_t> streams_;
    std::vector<bool> arrived_;
    std::atomic<bool> started_{false};
    int before_start_ = 0, before_end_ = 0;  // remaining turns in which poll() does nothing
    bool ended_ = false, stalls_ = false;
    bool broken_ = false;  // another rank is in a different call
    std::optional<std::string> fault_;

    std::vector<const char*> inputs_;              // by call; nullptr if there is none
    std::vector<std::vector<Incoming>> incoming_;  // by call, then by peer
    std::vector<Outgoing> outgoing_;
    double last_move_ = 0, last_look_ = 0;
    std::string doing_;
};

}  // namespace virtual_gpu::nccl
