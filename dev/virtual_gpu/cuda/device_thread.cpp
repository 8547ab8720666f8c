// The scheduler of streams: which work runs next, and how host threads wait for it (device_thread.h).
#include "dev/virtual_gpu/cuda/device_thread.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "dev/virtual_gpu/cuda/errors.h"
#include "dev/virtual_gpu/options.h"
#include "dev/virtual_gpu/ptx/kernel.h"

namespace virtual_gpu {
namespace {

using std::chrono::microseconds, std::chrono::milliseconds, std::chrono::seconds;

// Ranks wait for each other, and a host thread may poll. So once nothing has arrived or run for this long, all
// available work runs.
constexpr milliseconds kLazyPatience{100};
constexpr microseconds kFirstPause{20}, kLongestPause{1000};
constexpr microseconds kLongestPostponement{300};
constexpr int kOneInPostponed = 8;
constexpr seconds kPatienceAtExit{2};

void at_exit() {
    DeviceThread::get().stop();
    set_unloading();
    if (!options().counts.empty()) write_counts(options().counts);
}

}  // namespace

DeviceThread& DeviceThread::get() {
    static DeviceThread* const thread = new DeviceThread;  // outlives all static destructors
    return *thread;
}
DeviceThread::DeviceThread() : random_(options().seed) {}

// ---- streams -------------------------------------------------------------------------------------------------------

CUstream_st* DeviceThread::find(cudaStream_t handle, int device) {
    const std::lock_guard lock(mutex_);
    if (handle == nullptr || handle == cudaStreamLegacy) {
        CUstream_st*& stream = default_streams_[device];
        if (!stream) {
            stream = new CUstream_st;
            stream->device = device;
            stream->legacy = true;
            streams_.insert(stream);
        }
        return stream;
    }
    return streams_.contains(handle) && !handle->destroyed && !handle->legacy ? handle : nullptr;
}

CUstream_st* DeviceThread::create(int device, unsigned flags, int priority) {
    auto* stream = new CUstream_st;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    const std::lock_guard lock(mutex_);
    streams_.insert(stream);
    return stream;
}

// The object stays, small as it is: events refer to it, and a reused handle must not become a new stream's.
void DeviceThread::destroy(CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    stream->destroyed = true;
    if (stream->queue.empty()) streams_.erase(stream);
}

// ---- the host's side -----------------------------------------------------------------------------------------------

uint64_t DeviceThread::enqueue(CUstream_st* stream, Work work) {
    const std::lock_guard lock(mutex_);
    if (device_error() != cudaSuccess) return stream->last;  // the device was lost meanwhile
    work.number = stream->last = ++count_;
    last_move_ = Clock::now();
    if (work.records) {
        work.records->stream = stream;
        work.records->number = work.number;
    }
    const uint64_t number = work.number;
    stream->queue.push_back(std::move(work));
    start();
    something_new_.notify_one();
    return number;
}

void DeviceThread::wait(CUstream_st* stream, uint64_t number) {
    std::unique_lock lock(mutex_);
    stream->wanted = std::max(stream->wanted, number);
    wait(lock, {stream, number});
}
void DeviceThread::wait_for_all() {
    std::unique_lock lock(mutex_);
    for (CUstream_st* stream : streams_) stream->wanted = std::max(stream->wanted, stream->last);
    wait(lock, {nullptr, count_});
}
void DeviceThread::wait(std::unique_lock<std::mutex>& lock, const Waiter& waiter) {
    if (is_over(waiter)) return;
    something_new_.notify_one();
    waiters_.push_back(waiter);
    something_done_.wait(lock, [&] { return is_over(waiter); });
    waiters_.erase(std::find_if(waiters_.begin(), waiters_.end(), [&](const Waiter& w) {
        return w.stream == waiter.stream && w.number == waiter.number;
    }));
}
bool DeviceThread::is_over(const Waiter& waiter) const {
    if (device_error() != cudaSuccess || stopped_) return true;
    if (waiter.stream) return waiter.stream->done >= waiter.number;
    return std::all_of(streams_.begin(), streams_.end(), [&](const CUstream_st* s) {
        return s->queue.empty() || s->queue.front().number > waiter.number;
    });
}

bool DeviceThread::is_done(const CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    return stream->queue.empty();
}
bool DeviceThread::is_done(const Recording& recording) {
    const std::lock_guard lock(mutex_);
    return recording.done;
}
uint64_t DeviceThread::last_of(const CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    return stream->last;
}

void DeviceThread::start() {
    if (started_) return;
    started_ = true;
    std::atexit(at_exit);
    std::thread([this] { loop(); }).detach();
}

// Waits for work that has begun, unless it takes too long: a kernel may never end.
void DeviceThread::stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    something_new_.notify_one();
    something_done_.wait_for(lock, kPatienceAtExit, [&] { return stopped_; });
}

// ---- the device thread's side --------------------------------------------------------------------------------------

void DeviceThread::loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        if (CUstream_st* const stream = next(lock))
            run_first_of(*stream, lock);
        else if (!stopping_)
            sleep(lock);
    }
    stopped_ = true;
    something_done_.notify_all();
}

void DeviceThread::sleep(std::unique_lock<std::mutex>& lock) {
    Clock::time_point until = wake_;
    if (pause_.count()) until = std::min(until, Clock::now() + pause_);
    if (until == Clock::time_point::max())
        something_new_.wait(lock);
    else
        something_new_.wait_until(lock, until);
}

// CUDA C++ Programming Guide, "Default Stream": work in the legacy default stream waits for earlier work in all
// blocking streams of its device, and later work in those waits for it.
DeviceThread::Blocker DeviceThread::blocker_of(const CUstream_st& stream) const {
    const Work& first = stream.queue.front();
    if (first.waits_for && !first.waits_for->done) return {first.waits_for->stream, first.waits_for->number};
    if (!stream.legacy && !stream.blocking()) return {};
    for (CUstream_st* other : streams_) {
        if (other->device != stream.device || other->queue.empty()) continue;
        if (stream.legacy ? !other->blocking() : !other->legacy) continue;
        const uint64_t number = other->queue.front().number;
        if (number < first.number) return {other, number};
    }
    return {};
}

// If somebody waits for work, the work that blocks it is wanted too.
void DeviceThread::pass_wishes_on() {
    const auto pass_on = [](CUstream_st& stream, uint64_t number) {
        if (stream.wanted >= number) return false;
        stream.wanted = number;
        return true;
    };
    for (bool changed = true; changed;) {
        changed = false;
        for (const CUstream_st* stream : streams_) {
            if (stream->queue.empty() || stream->wanted < stream->queue.front().number) continue;
            const Blocker blocker = blocker_of(*stream);
            if (blocker.stream) changed |= pass_on(*blocker.stream, blocker.number);
            if (!stream->queue.front().ready) continue;
            for (CUstream_st* other : streams_)  // collectives start after those that were enqueued before them
                for (const Work& work : other->queue)
                    if (work.ready && work.number < stream->queue.front().number)
                        changed |= pass_on(*other, work.number);
        }
    }
}

// If the device has stood still, it continues as if somebody waited for everything.
void DeviceThread::lose_patience(Clock::time_point now) {
    if (last_move_ + kLazyPatience > now) return;
    for (CUstream_st* stream : streams_) stream->wanted = std::max(stream->wanted, stream->last);
}

// True if the policy lets the first work of a stream run. Otherwise sets wake_ to the time when it will.
bool DeviceThread::chosen(CUstream_st& stream, Clock::time_point now) {
    Work& first = stream.queue.front();
    Clock::time_point from = now;
    if (options().streams == Streams::lazy && stream.wanted < first.number) from = last_move_ + kLazyPatience;
    if (options().streams == Streams::random) {
        if (!first.considered) {
            first.considered = true;
            const auto postponement =
                static_cast<int64_t>(random_() % static_cast<uint64_t>(kLongestPostponement.count()));
            first.not_before = now + microseconds(random_() % kOneInPostponed == 0 ? postponement : 0);
        }
        from = first.not_before;
    }
    if (from > now) wake_ = std::min(wake_, from);
    return from <= now;
}

std::vector<CUstream_st*> DeviceThread::candidates(Clock::time_point now) {
    if (options().streams == Streams::lazy) {
        lose_patience(now);
        pass_wishes_on();
    }
    wake_ = Clock::time_point::max();
    std::vector<CUstream_st*> streams;
    for (CUstream_st* stream : streams_)
        if (!stream->queue.empty() && !blocker_of(*stream).stream && chosen(*stream, now)) streams.push_back(stream);
    std::sort(streams.begin(), streams.end(), [](const CUstream_st* a, const CUstream_st* b) {
        return a->queue.front().number < b->queue.front().number;
    });
    if (options().streams == Streams::random) std::shuffle(streams.begin(), streams.end(), random_);
    // The newest first: a stream that fails to wait for another then runs ahead of it.
    if (options().streams == Streams::lazy) std::reverse(streams.begin(), streams.end());
    return streams;
}

// The stream whose first work runs next. The lock is released while work is asked whether it is ready. Only this thread
// takes work out of a queue, so the work is still there afterwards.
CUstream_st* DeviceThread::next(std::unique_lock<std::mutex>& lock) {
    bool asked = false;
    for (CUstream_st* stream : candidates(Clock::now())) {
        Work& first = stream->queue.front();
        if (!first.ready) {
            pause_ = microseconds(0);
            return stream;
        }
        asked = true;
        lock.unlock();
        bool ready = true;
        try {
            ready = first.ready();
        } catch (const std::exception&) {
            first.run = [fault = std::current_exception()] { std::rethrow_exception(fault); };
        }
        lock.lock();
        if (stopping_) return nullptr;
        if (ready) {
            pause_ = microseconds(0);
            return stream;
        }
    }
    pause_ = asked ? std::clamp(pause_ * 2, kFirstPause, kLongestPause) : microseconds(0);
    return nullptr;
}

void DeviceThread::run_first_of(CUstream_st& stream, std::unique_lock<std::mutex>& lock) {
    Work& work = stream.queue.front();
    if (work.run) {
        lock.unlock();
        cudaError_t error = cudaSuccess;
        try {
            work.run();
        } catch (const Fault& fault) {
            report("%s: %s", work.what.c_str(), fault.what());
            error = error_of(fault);
        } catch (const std::exception& failure) {
            report("%s: %s", work.what.c_str(), failure.what());
            error = cudaErrorLaunchFailure;
        }
        work.run = nullptr;
        work.ready = nullptr;
        lock.lock();
        if (error != cudaSuccess) {
            set_device_error(error);
            drop_all(lock);
            return;
        }
    }
    if (work.records) {
        work.records->done = true;
        work.records->time = Clock::now();
    }
    last_move_ = Clock::now();
    stream.done = work.number;
    stream.queue.pop_front();
    if (stream.destroyed && stream.queue.empty()) streams_.erase(&stream);
    if (std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter& w) { return is_over(w); }))
        something_done_.notify_all();
}

// Drops all work: nothing runs on a lost device.
void DeviceThread::drop_all(std::unique_lock<std::mutex>& lock) {
    std::vector<std::deque<Work>> dropped;
    for (CUstream_st* stream : streams_) dropped.push_back(std::exchange(stream->queue, {}));
    something_done_.notify_all();
    lock.unlock();
    dropped.clear();  // destroyed without the lock, since work may hold anything
    lock.lock();
}

}  // namespace virtual_gpu
