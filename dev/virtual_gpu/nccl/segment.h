// The shared memory in which the ranks of a communicator meet: which ranks are present, what each is doing, and a
// channel of bytes from every rank to every other.
//
// It has no name in /dev/shm. The unique id names the process that has it open and its file descriptor there, and the
// others open it through /proc, so nothing is left behind however ranks die. Each rank holds a lock on it (open file
// description locks, fcntl(2)), which the system releases when its process ends, so that the others see it.
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
constexpr double kSecondsBetweenLooks = 0.1;  // at whether the other ranks are alive

// A one-way stream of bytes between two ranks. One writes and the other reads.
class Channel {
public:
    // These move as many bytes as fit, or as are there, and return the number.
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

// Collectives and point-to-point calls have separate channels: within a group neither waits for the other.
enum class Traffic { collective, point_to_point };

class Segment {
public:
    static ncclUniqueId create();

    // Takes a seat. Throws Error if the id is invalid, its process is gone, the rank is already present, or another
    // rank states another number of ranks.
    Segment(const ncclUniqueId& id, int ranks, int rank, const std::string& card);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    void await_all();  // waits for all ranks. Throws Error, also if two of them came with the same card
    void leave();      // afterwards the process looks gone to the others; callable from any thread

    Channel& channel(Traffic traffic, int from, int to) const;
    bool present(int rank) const;
    bool gone(int rank) const;  // it was present, and its process has ended or it has left

    // A text that says what a rank is doing, for messages of the other ranks.
    void set_doing(const std::string& text);
    std::string doing(int rank) const;

    // The first failure that all ranks should know about, or ncclSuccess.
    void fail(ncclResult_t code, const std::string& text);
    ncclResult_t failure(std::string* text = nullptr) const;

    // The host's part of ncclCommSplit: every rank contributes `bytes` bytes and receives those of all ranks (ranks *
    // bytes). Throws Error if a rank is gone.
    void exchange(void* all, const void* mine, size_t bytes, const char* what);

private:
    struct Header;
    struct Seat;
    void open(const ncclUniqueId& id);
    void close_all();
    void take_seat(const std::string& card);
    void refuse_shared_cards() const;
    // Waits until condition() is true. Throws Error if that has become impossible.
    template <class Condition>
    void wait(const char* what, Condition condition);

    int file_ = -1, ranks_, rank_;
    uint64_t id_ = 0;
    size_t bytes_ = 0;
    Header* header_ = nullptr;
    Channel* channels_ = nullptr;
    uint64_t exchanges_ = 0;
};

// Seconds without progress after which waiting operations are named on stderr, once per communicator. 10 by default;
// tests use less.
void set_patience(double seconds);
double patience();
double now();  // seconds

}  // namespace virtual_gpu::nccl
