// Batches of tokens from shards: TrainLoader delivers shuffled micro-batches from a prefetch thread, EvalLoader reads
// a validation set from its start. Tokens and targets are (B, T); targets are the tokens one place further.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "llmc/data/shards.h"

namespace llmc {

// Row b of a run's micro-batch k on rank r is the sample at position
//
//   (k * world + r) * B + b
//
// of the endless order of order.h. So a step's samples depend on how many samples the steps before it took, and it
// takes, on the seed and the data alone, not on how they are split into ranks, micro-steps and rows; every sample is
// used once a pass; and first_batch is all the state there is.
class TrainLoader {
public:
    // `shards` must outlive the loader. The first next() is micro-batch first_batch (0 = a new run).
    TrainLoader(const ShardSet& shards, int B, int T, int rank, int world, uint64_t seed, int64_t first_batch,
                int vocab);
    ~TrainLoader();
    TrainLoader(const TrainLoader&) = delete;
    TrainLoader& operator=(const TrainLoader&) = delete;

    // The next micro-batch, to be called from one thread. An error of the prefetch thread is thrown here, by the call
    // that would have delivered the failing micro-batch and by every later one.
    void next(int32_t* tokens,    // (B, T)
              int32_t* targets);  // (B, T)

private:
    void prefetch();
    void read_batch(int64_t micro_batch, std::vector<int32_t>& rows) const;

    const ShardSet& shards_;
    const int B_, T_, rank_, world_;
    const uint64_t seed_;
    const int64_t samples_, first_batch_;
    const int vocab_;

    // A ring of micro-batches between the two threads. The prefetch thread writes slot batches_read_ % depth without
    // the lock (nobody else touches a slot that is not ready), next() reads slot batches_taken_ % depth.
    static constexpr int depth = 4;
    std::vector<int32_t> ring_[depth];  // (B, T+1) each
    std::mutex mutex_;
    std::condition_variable ready_, free_;
    int64_t batches_read_ = 0, batches_taken_ = 0;
    bool stop_ = false;
    std::exception_ptr error_;
    std::thread thread_;  // last: it starts when everything above exists
};

// Batch k on rank r holds samples (k * world + r) * B + b, unshuffled. The last batch may reach past the end of the
// set: rows beyond it have tokens 0 and targets -1, which the loss ignores and does not count. So max_batches = -1 uses
// every sample exactly once whatever B and world are, and every rank makes the same number of batches (a rank's part of
// the last one may be empty; average the loss over counted targets, not over batches).
class EvalLoader {
public:
    // `shards` must outlive the loader. max_batches = -1: all.
    EvalLoader(const ShardSet& shards, int B, int T, int rank, int world, int64_t max_batches, int vocab);

    int64_t batches() const { return batches_; }

    void read(int64_t batch,
              int32_t* tokens,          // (B, T)
              int32_t* targets) const;  // (B, T)

private:
    const ShardSet& shards_;
    const int B_, T_, rank_, world_, vocab_;
    const int64_t samples_;
    int64_t batches_;
};

}  // namespace llmc
