// The shared memory in which the ranks of a communicator meet: who is there, what each is doing, and channels of bytes
// from every rank to every other.
//
// It has no name in /dev/shm. The unique id says which process has it open under which number, and the others open it
// through /proc; so nothing can be left behind, however ranks die. Each rank holds a lock on it (open file description
// locks, fcntl(2)) that the system releases when its process is gone, for the others to see.
#pragma once
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dev/virtual_gpu/nccl/error.h"

namespace virtual_gpu::nccl {

constexpr int kMostRanks = 64;

// Bytes one way between two ranks, in order: one writes, one takes.
class Channel {
public:
    // As many of the bytes as fit, or are there.
    size_t push(const char* bytes, size_t count);
    size_t pull(char* bytes, size_t count);
    uint64_t pushed() const { return pushed_.load(std::memory_order_relaxed); }  // bytes since the beginning
    uint64_t pulled() const { return pulled_.load(std::memory_order_acquire); }

private:
    static constexpr size_t kBytes = 256 << 10;
    alignas(64) std::atomic<uint64_t> pushed_;
    alignas(64) std::atomic<uint64_t> pulled_;
    alignas(64) char ring_[kBytes];
};

// Collectives and point-to-point calls have channels of their own: within a group neither waits for the other.
enum class Traffic { collective, point_to_point };

class Segment {
public:
    static ncclUniqueId create();

    // Takes a seat. Throws Error: the id is no id, its process is gone, the rank is there already, another rank
    // counts other ranks.
    Segment(const ncclUniqueId& id, int ranks, int rank, const std::string& card);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    void await_all();  // that all ranks have come. Throws Error, also where two have come with one card.
    void leave();      // looks to the others as if the process were gone; any thread

    Channel& channel(Traffic traffic, int from, int to) const;
    bool present(int rank) const;
    bool gone(int rank) const;  // it was here, and its process is no more, or it has left

    // What a rank is doing, for messages of others.
    void set_doing(const std::string& text);
    std::string doing(int rank) const;

    // The first failure that all ranks should know of; ncclSuccess: none.
    void fail(ncclResult_t code, const std::string& text);
    ncclResult_t failure(std::string* text = nullptr) const;

    // The host's side of ncclCommSplit: every rank gives some bytes and gets those of all (ranks * bytes). Throws Error
    // where a rank is gone.
    void exchange(void* all, const void* mine, size_t bytes, const char* what);

private:
    struct Header;
    struct Seat;
    void open(const ncclUniqueId& id);
    void close_all();
    void take_seat(const std::string& card);
    void refuse_shared_cards() const;
    // Waits until condition() says true; throws Error where it cannot any more.
    template <class Condition>
    void wait(const char* what, Condition condition);

    int file_ = -1, ranks_, rank_;
    uint64_t id_ = 0;
    size_t bytes_ = 0;
    Header* header_ = nullptr;
    Channel* channels_ = nullptr;
    uint64_t exchanges_ = 0;
};

// Seconds without progress after which what waits is named on stderr, once a communicator. 10; tests set less.
void set_patience(double seconds);
double patience();
double now();  // seconds

}  // namespace virtual_gpu::nccl
