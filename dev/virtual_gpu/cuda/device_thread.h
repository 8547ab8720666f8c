// The queues of all streams, and the one thread that empties them.
//
// One lock protects everything, but work and its readiness checks run without it. Every piece of work has a number,
// counted over everything ever enqueued. A stream's progress is the number of its last finished work, and a waiter
// names a stream and a number.
#pragma once
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace virtual_gpu {

using Clock = std::chrono::steady_clock;

// One recording of an event. If the event is recorded again or destroyed, existing waiters are not affected.
struct Recording {
    CUstream_st* stream = nullptr;
    uint64_t number = 0;
    bool done = false;
    Clock::time_point time;
};

struct Work {
    std::string what;
    std::function<void()> run;    // empty for a recording or a wait
    std::function<bool()> ready;  // empty if always ready
    std::shared_ptr<Recording> waits_for, records;
    uint64_t number = 0;
    Clock::time_point not_before;  // for VIRTUAL_GPU_STREAMS=random
    bool considered = false;       // true once not_before is set
};

}  // namespace virtual_gpu

// The objects behind cudaStream_t and cudaEvent_t.
struct CUstream_st {
    int device = 0, priority = 0;
    unsigned flags = 0;
    bool legacy = false;     // the default stream
    bool destroyed = false;  // accepts nothing new; existing work still runs
    std::deque<virtual_gpu::Work> queue;
    uint64_t last = 0, done = 0;  // numbers of the last work enqueued and the last work done
    uint64_t wanted = 0;          // somebody waits for the work with this number

    // The legacy default stream waits for such streams, and they wait for it.
    bool blocking() const { return !legacy && !(flags & cudaStreamNonBlocking); }
};
struct CUevent_st {
    int device = 0;
    unsigned flags = 0;
    std::shared_ptr<virtual_gpu::Recording> last;  // nullptr if never recorded
};

namespace virtual_gpu {

class DeviceThread {
public:
    static DeviceThread& get();

    // The stream behind a handle, or the device's default stream for 0. nullptr if there is no such stream.
    CUstream_st* find(cudaStream_t handle, int device);
    CUstream_st* create(int device, unsigned flags, int priority);
    void destroy(CUstream_st* stream);

    uint64_t enqueue(CUstream_st* stream, Work work);
    // Waits until that work has run or the device is lost.
    void wait(CUstream_st* stream, uint64_t number);
    void wait_for_all();
    bool is_done(const CUstream_st* stream);
    bool is_done(const Recording& recording);
    uint64_t last_of(const CUstream_st* stream);

    void stop();  // at the end of the process: no more work begins

private:
    struct Blocker {  // the work that the first work of a stream waits for
        CUstream_st* stream = nullptr;
        uint64_t number = 0;
    };
    // A host thread that waits until a stream, or all streams if nullptr, have finished the work with this number.
    struct Waiter {
        CUstream_st* stream;
        uint64_t number;
    };
    DeviceThread();
    void wait(std::unique_lock<std::mutex>& lock, const Waiter& waiter);
    bool is_over(const Waiter& waiter) const;
    void start();
    void loop();
    CUstream_st* next(std::unique_lock<std::mutex>& lock);
    std::vector<CUstream_st*> candidates(Clock::time_point now);
    bool chosen(CUstream_st& stream, Clock::time_point now);
    Blocker blocker_of(const CUstream_st& stream) const;
    void lose_patience(Clock::time_point now);
    void pass_wishes_on();
    void run_first_of(CUstream_st& stream, std::unique_lock<std::mutex>& lock);
    void drop_all(std::unique_lock<std::mutex>& lock);
    void sleep(std::unique_lock<std::mutex>& lock);

    std::mutex mutex_;
    std::condition_variable something_new_, something_done_;
    std::set<CUstream_st*> streams_;
    std::map<int, CUstream_st*> default_streams_;
    std::vector<Waiter> waiters_;
    uint64_t count_ = 0;
    bool started_ = false, stopping_ = false, stopped_ = false;
    std::chrono::microseconds pause_{0};  // until work that was not ready is asked again
    Clock::time_point wake_;              // when the policy lets the next work run
    Clock::time_point last_move_;         // when work last arrived or ended
    std::mt19937_64 random_;
};

}  // namespace virtual_gpu
