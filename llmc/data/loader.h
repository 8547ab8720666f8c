// Batches of tokens from shards: TrainLoader returns shuffled micro-batches from a prefetch thread, EvalLoader reads a
// validation set from its start. The target of a token is the token after it.
//
// A read that fails is repeated for up to a minute, with a warning.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/data/micro_batch.h"
#include "llmc/data/order.h"
#include "llmc/data/shards.h"
#include "llmc/device/owned.h"

namespace llmc {

constexpr double kReadPatience = 60;  // seconds for which a read that fails is repeated

// Decides whether a read that fails is repeated.
class ReadRetry {
public:
    explicit ReadRetry(double patience) : patience_(patience) {}
    // Calls `read`. Returns 0 if it succeeds, and the seconds to wait before the next attempt if it throws a ReadError.
    // Lets that error pass if patience has ended.
    double attempt(const std::function<void()>& read);

private:
    double patience_, pause_ = 0;
    double since_ = -1;  // monotonic_seconds() of the first failure; -1: the last read succeeded
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
    // `shards` must outlive the loader. The first next() is micro-batch first_batch (0 in a new run). The thread reads
    // at least `most_ahead` micro-batches ahead: those of the largest step.
    TrainLoader(const ShardSet& shards, SampleOrder order, int B, int T, int rank, int world, int64_t first_batch,
                int vocab, int64_t most_ahead = 0, double patience = kReadPatience);
    ~TrainLoader();
    TrainLoader(TrainLoader&&) = delete;

    // The next micro-batch, read and sorted by the prefetch thread. The third call after this one invalidates it: by
    // then Transformer has copied it to the device. Call from one thread. If the prefetch thread fails, the call that
    // would have returned the failed micro-batch throws its error, and so do all later calls.
    MicroBatch next();

    // Waits until the next `batches` micro-batches have been read, at most `most_ahead`, so that no next() for them can
    // fail. Returns the problem if one cannot be read, "" if all have been. Calls `goes_on` several times a second and
    // stops waiting if that returns false.
    std::string wait_for(int64_t batches, const std::function<bool()>& goes_on);

private:
    using Samples = std::vector<int32_t>;  // (B, T + 1)
    void prefetch();
    Samples read_batch(int64_t micro_batch) const;
    void lay_out(const Samples& samples, int32_t* slot) const;
    int32_t* slot(int64_t batch) { return ring_ + static_cast<size_t>(batch % kSlots) * slot_size_; }
    size_t count() const { return static_cast<size_t>(B_) * T_; }  // tokens of a micro-batch

    const ShardSet& shards_;
    const SampleOrder order_;
    const int B_, T_, rank_, world_;
    const int64_t first_batch_;
    const int vocab_;

    // The prefetch thread reads micro-batches into samples_, and lays out the next ones in a ring between the two
    // threads. It writes the slot of batch `batches_laid_out_` without the lock, because the other thread only reads
    // slots of earlier batches.
    static constexpr int kAhead = 4, kInUse = 3, kSlots = kAhead + kInUse;
    const int64_t most_ahead_;
    ReadRetry retry_;
    std::deque<Samples> samples_;  // batches that have been read but not laid out yet
    const size_t slot_size_;       // ints
    Pinned<int32_t> ring_;         // (kSlots, slot_size_); a slot: tokens, targets, sorted
    std::mutex mutex_;
    std::condition_variable ready_, free_;
    int64_t batches_read_ = 0, batches_laid_out_ = 0, batches_taken_ = 0;
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
    EvalLoader(const ShardSet& shards, int B, int T, int rank, int world, int64_t max_batches, int vocab,
               double patience = kReadPatience);

    int64_t batches() const { return batches_; }

    // Calls `alive` before each new attempt.
    void read(
        int64_t batch,
        int32_t* tokens,   // (B, T)
        int32_t* targets,  // (B, T)
        const std::function<void()>& alive = [] {}) const;

private:
    void read_row(int64_t sample, int32_t* tokens, int32_t* targets) const;

    const ShardSet& shards_;
    const int B_, T_, rank_, world_, vocab_;
    const double patience_;
    const int64_t samples_;
    int64_t batches_;
};

}  // namespace llmc
