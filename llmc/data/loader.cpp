// The prefetch thread of training and the plain reads of evaluation.
// build: threads
#include "llmc/data/loader.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"
#include "llmc/kernels/embedding.h"

namespace llmc {

// A sample's T+1 tokens as inputs and as targets one place further.
static void split_sample(const int32_t* sample, int T, int32_t* tokens, int32_t* targets) {
    std::copy_n(sample, T, tokens);
    std::copy_n(sample + 1, T, targets);
}

double ReadRetry::attempt(const std::function<void()>& read) {
    try {
        read();
    } catch (const ReadError& error) {
        const double now = monotonic_seconds();
        if (since_ < 0) {
            since_ = now;
            pause_ = 0.025;
            print_error("train_gpt: warning: {}; trying again for {:g} seconds", sanitize(error.what()), patience_);
        }
        if (now - since_ >= patience_) throw;
        return pause_ = std::min(2 * pause_, 1.0);
    }
    if (since_ >= 0) print_error("train_gpt: the data can be read again");
    since_ = -1;
    return 0;
}

TrainLoader::TrainLoader(const ShardSet& shards, SampleOrder order, int B, int T, int rank, int world,
                         int64_t first_batch, int vocab, int64_t most_ahead, double patience)
    : shards_(shards),
      order_(std::move(order)),
      B_(B),
      T_(T),
      rank_(rank),
      world_(world),
      first_batch_(first_batch),
      vocab_(vocab),
      most_ahead_(std::max<int64_t>(most_ahead, kAhead)),
      retry_(patience),
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
    std::unique_lock lock(mutex_);
    double next_attempt = 0;  // monotonic_seconds()
    while (!stop_) {
        const double wait = next_attempt - monotonic_seconds();
        if (!samples_.empty() && batches_laid_out_ - batches_taken_ < kAhead) {
            const Samples samples = std::move(samples_.front());
            samples_.pop_front();
            lock.unlock();
            lay_out(samples, slot(batches_laid_out_));
            lock.lock();
            batches_laid_out_++;
        } else if (error_ || batches_read_ - batches_taken_ >= most_ahead_) {
            free_.wait(lock);
        } else if (wait > 0) {
            free_.wait_for(lock, std::chrono::duration<double>(wait));
        } else {
            lock.unlock();
            std::optional<Samples> samples;
            std::exception_ptr error;
            try {
                const double pause = retry_.attempt([&] { samples = read_batch(first_batch_ + batches_read_); });
                next_attempt = monotonic_seconds() + pause;
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            error_ = error;
            if (samples) {
                samples_.push_back(std::move(*samples));
                batches_read_++;
            }
        }
        ready_.notify_one();
    }
}

TrainLoader::Samples TrainLoader::read_batch(int64_t micro_batch) const {
    const size_t length = static_cast<size_t>(T_) + 1;
    Samples samples(static_cast<size_t>(B_) * length);
    const int64_t first = (micro_batch * world_ + rank_) * B_;
    for (int64_t b = 0; b < B_; ++b)
        shards_.read_sample(order_.at(first + b), T_, &samples[static_cast<size_t>(b) * length], vocab_);
    return samples;
}

void TrainLoader::lay_out(const Samples& samples, int32_t* slot) const {
    int32_t *const tokens = slot, *const targets = slot + count();
    for (int64_t b = 0; b < B_; ++b)
        split_sample(&samples[static_cast<size_t>(b) * (static_cast<size_t>(T_) + 1)], T_, tokens + b * T_,
                     targets + b * T_);
    sort_tokens(targets + count(), tokens, B_ * T_);
}

MicroBatch TrainLoader::next() {
    const int32_t* batch;
    {
        std::unique_lock lock(mutex_);
        const auto is_missing = [&] { return error_ && batches_read_ == batches_taken_; };
        ready_.wait(lock, [&] { return is_missing() || batches_laid_out_ > batches_taken_; });
        if (is_missing()) std::rethrow_exception(error_);
        batch = slot(batches_taken_++);
    }
    free_.notify_one();
    return {batch, batch + count(), batch + 2 * count()};
}

std::string TrainLoader::wait_for(int64_t batches, const std::function<bool()>& goes_on) {
    std::unique_lock lock(mutex_);
    const int64_t until = batches_taken_ + std::min(batches, most_ahead_);
    while (batches_read_ < until && !error_ && goes_on()) ready_.wait_for(lock, std::chrono::milliseconds(200));
    if (batches_read_ >= until || !error_) return "";
    try {
        std::rethrow_exception(error_);
    } catch (const std::exception& error) {
        return error.what();
    }
}

EvalLoader::EvalLoader(const ShardSet& shards, int B, int T, int rank, int world, int64_t max_batches, int vocab,
                       double patience)
    : shards_(shards),
      B_(B),
      T_(T),
      rank_(rank),
      world_(world),
      vocab_(vocab),
      patience_(patience),
      samples_(shards.samples(T)) {
    const int64_t per_batch = int64_t{B} * world;
    const int64_t all = (samples_ + per_batch - 1) / per_batch;
    batches_ = max_batches < 0 ? all : std::min(all, max_batches);
}

void EvalLoader::read(int64_t batch, int32_t* tokens, int32_t* targets, const std::function<void()>& alive) const {
    if (batch < 0 || batch >= batches_)
        throw Error(ExitCode::failure, "validation batch {} was asked for, there are {}", batch, batches_);
    const int64_t first = (batch * world_ + rank_) * B_;
    ReadRetry retry(patience_);
    for (int64_t b = 0; b < B_; b++) {
        const auto read_next = [&] { read_row(first + b, tokens + b * T_, targets + b * T_); };
        while (const double pause = retry.attempt(read_next)) {
            std::this_thread::sleep_for(std::chrono::duration<double>(pause));
            alive();
        }
    }
}

// Past the end of the set, tokens are 0 and targets -1.
void EvalLoader::read_row(int64_t sample, int32_t* tokens, int32_t* targets) const {
    std::vector<int32_t> row(static_cast<size_t>(T_) + 1, -1);
    if (sample < samples_) shards_.read_sample(sample, T_, row.data(), vocab_);
    split_sample(row.data(), T_, tokens, targets);
    if (sample >= samples_) std::fill_n(tokens, T_, 0);
}

}  // namespace llmc
