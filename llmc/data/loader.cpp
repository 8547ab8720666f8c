// The prefetch thread of training and the plain reads of evaluation.
// build: threads
#include "llmc/data/loader.h"

#include <algorithm>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/device/faults.h"
#include "llmc/device/runtime.h"
#include "llmc/kernels/embedding.h"

namespace llmc {

// A sample's T+1 tokens as inputs and as targets one place further.
static void split_sample(const int32_t* sample, int T, int32_t* tokens, int32_t* targets) {
    std::copy_n(sample, T, tokens);
    std::copy_n(sample + 1, T, targets);
}

TrainLoader::TrainLoader(const ShardSet& shards, SampleOrder order, int B, int T, int rank, int world,
                         int64_t first_batch, int vocab)
    : shards_(shards),
      order_(std::move(order)),
      B_(B),
      T_(T),
      rank_(rank),
      world_(world),
      first_batch_(first_batch),
      vocab_(vocab),
      slot_size_(2 * static_cast<size_t>(B) * T + token_sort_size(B * T)) {
    ring_ = pinned<int32_t>(kSlots * slot_size_);
    thread_ = std::thread(&TrainLoader::prefetch, this);
}

TrainLoader::~TrainLoader() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    free_.notify_one();
    thread_.join();
    tear_down([] { synchronize_device(); });  // copies to the device may still read the ring
}

void TrainLoader::prefetch() {
    for (int64_t batch = 0;; ++batch) {
        {
            std::unique_lock lock(mutex_);
            free_.wait(lock, [&] { return stop_ || batch - batches_taken_ < kAhead; });
            if (stop_) return;
        }
        std::exception_ptr error;
        try {
            read_batch(first_batch_ + batch, slot(batch));
        } catch (...) {
            error = std::current_exception();
        }
        {
            std::lock_guard lock(mutex_);
            if (error)
                error_ = error;
            else
                batches_read_ = batch + 1;
        }
        ready_.notify_one();
        if (error) return;
    }
}

void TrainLoader::read_batch(int64_t micro_batch, int32_t* slot) const {
    int32_t *const tokens = slot, *const targets = slot + count();
    std::vector<int32_t> sample(static_cast<size_t>(T_) + 1);
    const int64_t first = (micro_batch * world_ + rank_) * B_;
    for (int64_t b = 0; b < B_; ++b) {
        shards_.read_sample(order_.at(first + b), T_, sample.data(), vocab_);
        split_sample(sample.data(), T_, tokens + b * T_, targets + b * T_);
    }
    sort_tokens(targets + count(), tokens, B_ * T_);
}

MicroBatch TrainLoader::next() {
    const int32_t* batch;
    {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [&] { return error_ || batches_read_ > batches_taken_; });
        if (batches_read_ == batches_taken_) std::rethrow_exception(error_);
        batch = slot(batches_taken_++);
    }
    free_.notify_one();
    return {batch, batch + count(), batch + 2 * count()};
}

EvalLoader::EvalLoader(const ShardSet& shards, int B, int T, int rank, int world, int64_t max_batches, int vocab)
    : shards_(shards), B_(B), T_(T), rank_(rank), world_(world), vocab_(vocab), samples_(shards.samples(T)) {
    const int64_t per_batch = int64_t{B} * world;
    const int64_t all = (samples_ + per_batch - 1) / per_batch;
    batches_ = max_batches < 0 ? all : std::min(all, max_batches);
}

void EvalLoader::read(int64_t batch, int32_t* tokens, int32_t* targets) const {
    if (batch < 0 || batch >= batches_)
        throw Error(ExitCode::failure, "validation batch {} was asked for, there are {}", batch, batches_);
    std::vector<int32_t> sample(static_cast<size_t>(T_) + 1);
    const int64_t first = (batch * world_ + rank_) * B_;
    for (int64_t b = 0; b < B_; ++b) {
        int32_t *row_tokens = tokens + b * T_, *row_targets = targets + b * T_;
        if (first + b < samples_) {
            shards_.read_sample(first + b, T_, sample.data(), vocab_);
            split_sample(sample.data(), T_, row_tokens, row_targets);
        } else {
            std::fill_n(row_tokens, T_, 0);
            std::fill_n(row_targets, T_, -1);
        }
    }
}

}  // namespace llmc
