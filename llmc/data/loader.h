// Batches of tokens from shards: TrainLoader returns shuffled micro-batches from a prefetch thread, EvalLoader reads a
// validation set from its start. The target of a token is the token after it.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "llmc/data/order.h"
#include "llmc/data/shards.h"
#include "llmc/device/owned.h"

namespace llmc {

// One micro-batch of a rank. Tokens and targets are (B, T).
struct MicroBatch {
    const int32_t* tokens;
    const int32_t* targets;
    // The tokens as sort_tokens() groups them (token_sort_size(B * T)), which the embedding's backward reads. nullptr:
    // not sorted yet. If it is set, all three are in pinned memory that stays valid while two more batches are used.
    const int32_t* sorted = nullptr;
};

// Row b of a run's micro-batch k on rank r is the sample
//
//   order.at((k * world + r) * B + b)
//
// A step's samples therefore depend only on the data, the seed, and the number of samples before and in the step, not
// on how they are split into ranks, micro-steps and rows. Every sample of a source is used once per pass, and
// first_batch is the only state.
class TrainLoader {
public:
    // `shards` must outlive the loader. The first next() is micro-batch first_batch (0 in a new run).
    TrainLoader(const ShardSet& shards, SampleOrder order, int B, int T, int rank, int world, int64_t first_batch,
                int vocab);
    ~TrainLoader();
    TrainLoader(const TrainLoader&) = delete;
    TrainLoader& operator=(const TrainLoader&) = delete;

    // The next micro-batch, read and sorted by the prefetch thread. The third call after this one invalidates it: by
    // then Transformer has copied it to the device. Call from one thread. If the prefetch thread fails, the call that
    // would have returned the failed micro-batch throws its error, and so do all later calls.
    MicroBatch next();

private:
    void prefetch();
    void read_batch(int64_t micro_batch, int32_t* slot) const;
    int32_t* slot(int64_t batch) { return ring_ + static_cast<size_t>(batch % kSlots) * slot_size_; }
    size_t count() const { return static_cast<size_t>(B_) * T_; }  // tokens of a micro-batch

    const ShardSet& shards_;
    const SampleOrder order_;
    const int B_, T_, rank_, world_;
    const int64_t first_batch_;
    const int vocab_;

    // A ring of micro-batches between the two threads. The prefetch thread writes the slot of batch `batches_read_`
    // without the lock, because the other thread only reads slots of earlier batches.
    static constexpr int kAhead = 4, kInUse = 3, kSlots = kAhead + kInUse;
    const size_t slot_size_;  // ints
    Pinned<int32_t> ring_;    // (kSlots, slot_size_); a slot: tokens, targets, sorted
    std::mutex mutex_;
    std::condition_variable ready_, free_;
    int64_t batches_read_ = 0, batches_taken_ = 0;
    bool stop_ = false;
    std::exception_ptr error_;
    std::thread thread_;  // last: it starts when everything above exists
};

// Batch k on rank r holds samples (k * world + r) * B + b in their order in the set. The last batch may reach past the
// end of the set: its remaining rows have tokens 0 and targets -1, which the loss ignores and does not count. So
// max_batches = -1 uses every sample exactly once for any B and world, and every rank has the same number of batches.
// A rank's last batch may be empty, so average the loss over counted targets, not over batches.
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
