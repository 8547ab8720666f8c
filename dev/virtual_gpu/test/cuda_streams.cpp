// Streams and events: which work may run when, for each of VIRTUAL_GPU_STREAMS.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dev/virtual_gpu/cuda/streams.h"
#include "dev/virtual_gpu/test/child.h"

using namespace virtual_gpu;
using namespace virtual_gpu::test;

namespace {

using Clock = std::chrono::steady_clock;

// A record of the work that ran, in order.
class Log {
public:
    std::function<void()> entry(char what) {
        return [this, what] {
            const std::lock_guard lock(mutex_);
            text_ += what;
        };
    }
    std::string text() {
        const std::lock_guard lock(mutex_);
        return text_;
    }

private:
    std::mutex mutex_;
    std::string text_;
};

struct Stream {
    explicit Stream(unsigned flags = cudaStreamNonBlocking) {
        REQUIRE(cudaStreamCreateWithFlags(&handle, flags) == cudaSuccess);
    }
    ~Stream() { CHECK(cudaStreamDestroy(handle) == cudaSuccess); }
    operator cudaStream_t() const { return handle; }
    cudaStream_t handle = nullptr;
};
struct Event {
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
    }
    ~Event() { CHECK(cudaEventDestroy(handle) == cudaSuccess); }
    operator cudaEvent_t() const { return handle; }
    cudaEvent_t handle = nullptr;
};

// Work that blocks its stream until the gate is opened.
class Gate {
public:
    explicit Gate(cudaStream_t stream) {
        REQUIRE(submit(
                    stream, "a gate", [] {}, [this] { return open_.load(); }) == cudaSuccess);
    }
    void open() { open_ = true; }

private:
    std::atomic<bool> open_{false};
};

void drain(cudaStream_t stream) { CHECK(cudaStreamSynchronize(stream) == cudaSuccess); }

// Two streams wait for the same event in many rounds. Counts the rounds in which the second went first.
constexpr int kRounds = 100;
int rounds_reversed() {
    Stream first, second, third;
    Event event;
    int reversed = 0;
    for (int round = 0; round < kRounds; round++) {
        Log log;
        Gate gate(third);
        REQUIRE(cudaEventRecord(event, third) == cudaSuccess);
        for (cudaStream_t s : {first.handle, second.handle}) REQUIRE(cudaStreamWaitEvent(s, event, 0) == cudaSuccess);
        REQUIRE(submit(first, "a", log.entry('a')) == cudaSuccess);
        REQUIRE(submit(second, "b", log.entry('b')) == cudaSuccess);
        gate.open();
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        reversed += log.text() == "ba";
    }
    return reversed;
}

}  // namespace

TEST_CASE("virtual_gpu streams: one stream's work runs in order while others continue") {
    Stream a, b;
    Log log;
    Gate gate(a);
    CHECK(submit(a, "1", log.entry('1')) == cudaSuccess);
    CHECK(submit(a, "2", log.entry('2')) == cudaSuccess);
    CHECK(submit(b, "3", log.entry('3')) == cudaSuccess);
    drain(b);
    CHECK(log.text() == "3");
    CHECK(cudaStreamQuery(a) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    gate.open();
    drain(a);
    CHECK(log.text() == "312");
    CHECK(cudaStreamQuery(a) == cudaSuccess);
}

TEST_CASE("virtual_gpu streams: the default stream waits for blocking streams and they for it") {
    Stream blocking(cudaStreamDefault), other(cudaStreamDefault), independent;
    Log log;
    Gate gate(blocking);
    CHECK(submit(blocking, "b", log.entry('b')) == cudaSuccess);
    CHECK(submit(nullptr, "d", log.entry('d')) == cudaSuccess);
    CHECK(submit(other, "o", log.entry('o')) == cudaSuccess);
    CHECK(submit(independent, "i", log.entry('i')) == cudaSuccess);
    drain(independent);
    CHECK(log.text() == "i");
    gate.open();
    drain(other);
    CHECK(log.text() == "ibdo");

    // Also without work of its own.
    Gate second(blocking);
    CHECK(submit(blocking, "l", log.entry('l')) == cudaSuccess);
    std::thread opener([&] { second.open(); });
    drain(nullptr);
    CHECK(log.text() == "ibdol");
    opener.join();
}

TEST_CASE("virtual_gpu events: a wait is for the recording known at the call") {
    Stream a, b;
    Event event;
    Log log;
    CHECK(cudaStreamWaitEvent(b, event, 0) == cudaSuccess);  // never recorded, so no wait
    Gate first(a);
    CHECK(submit(a, "a", log.entry('a')) == cudaSuccess);
    CHECK(cudaEventRecord(event, a) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(b, event, 0) == cudaSuccess);
    Gate second(a);
    CHECK(cudaEventRecord(event, a) == cudaSuccess);
    CHECK(submit(b, "b", log.entry('b')) == cudaSuccess);
    CHECK(log.text().empty());
    first.open();
    drain(b);
    CHECK(log.text() == "ab");
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    cudaGetLastError();
    second.open();
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("virtual_gpu events: elapsed time needs two timed recordings") {
    Stream stream;
    Event from(cudaEventDefault), to(cudaEventDefault), none(cudaEventDefault), untimed;
    float ms = -1;
    CHECK(cudaEventRecord(from, stream) == cudaSuccess);
    CHECK(submit(stream, "a while", [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }) == cudaSuccess);
    Gate gate(stream);
    CHECK(cudaEventRecord(to, stream) == cudaSuccess);
    CHECK(cudaEventRecord(untimed, stream) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&ms, from, to) == cudaErrorNotReady);
    gate.open();
    drain(stream);
    CHECK(cudaEventElapsedTime(&ms, from, to) == cudaSuccess);
    CHECK(ms >= 2);
    CHECK(cudaEventElapsedTime(&ms, to, from) == cudaSuccess);
    CHECK(ms <= -2);
    CHECK(cudaEventElapsedTime(&ms, from, none) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventElapsedTime(&ms, from, untimed) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
}

TEST_CASE("virtual_gpu streams: enqueued work still runs after handles are destroyed") {
    std::atomic<bool> done{false};
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    Gate gate(stream);
    CHECK(submit(stream, "x", [&] { done = true; }) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    gate.open();
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(done);
    CHECK(cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

// The case, in a process of its own, must end with this message.
static void expect_end(const std::string& message) {
    const Child child = run_child({});
    CHECK(child.status != 0);
    CHECK(child.output.find(message) != std::string::npos);
}

TEST_CASE("virtual_gpu streams: the use of a destroyed stream ends the program") {
    if (!is_child()) return expect_end("a stream is used that does not exist or was destroyed");
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    cudaStreamSynchronize(stream);
}

TEST_CASE("virtual_gpu streams: the use of a destroyed event ends the program") {
    if (!is_child()) return expect_end("an event is used that does not exist or was destroyed");
    cudaEvent_t event = nullptr;
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    cudaEventRecord(event, nullptr);
}

TEST_CASE("virtual_gpu streams: priorities and flags") {
    int least = 1, greatest = 1, priority = 1;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
    CHECK(least == 0);
    CHECK(greatest == -5);
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -100) == cudaSuccess);
    CHECK(cudaStreamGetPriority(stream, &priority) == cudaSuccess);
    CHECK(priority == greatest);
    unsigned flags = 0;
    CHECK(cudaStreamGetFlags(stream, &flags) == cudaSuccess);
    CHECK(flags == cudaStreamNonBlocking);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&stream, 64) == cudaErrorInvalidValue);
    cudaGetLastError();
}

TEST_CASE("virtual_gpu streams: functions of the host run in their turn and may not call CUDA") {
    Stream stream;
    struct Data {
        int calls = 0;
        cudaError_t inside = cudaSuccess;
    } data;
    const auto function = [](void* p) {
        auto& d = *static_cast<Data*>(p);
        d.calls++;
        d.inside = cudaDeviceSynchronize();
    };
    CHECK(cudaLaunchHostFunc(stream, function, &data) == cudaSuccess);
    drain(stream);
    CHECK(data.calls == 1);
    CHECK(data.inside == cudaErrorNotPermitted);
    CHECK(cudaGetLastError() == cudaSuccess);  // the error belongs to another thread
}

TEST_CASE("virtual_gpu streams: now is the order of the calls") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "now"}});
    CHECK(rounds_reversed() == 0);
}

TEST_CASE("virtual_gpu streams: random is any order that is allowed") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "random"}, {"VIRTUAL_GPU_SEED", "7"}});
    // Both orders are equally likely: of 100 fair rounds, fewer than 25 or more than 75 occur once in millions of runs.
    const int reversed = rounds_reversed();
    CHECK(reversed >= kRounds / 4);
    CHECK(reversed <= kRounds * 3 / 4);
}

TEST_CASE("virtual_gpu streams: lazy runs the work that somebody waits for") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "lazy"}});
    constexpr std::chrono::milliseconds kPatience{100};
    Stream a, b, c;
    Event event;
    bool seen = false;
    for (int attempt = 0; attempt < 20 && !seen; attempt++) {  // a busy machine may take too long once or twice
        Log log;
        const Clock::time_point begin = Clock::now();
        CHECK(submit(c, "c", log.entry('c')) == cudaSuccess);
        CHECK(submit(a, "a", log.entry('a')) == cudaSuccess);
        CHECK(cudaEventRecord(event, a) == cudaSuccess);
        CHECK(submit(a, "A", log.entry('A')) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(b, event, 0) == cudaSuccess);
        CHECK(submit(b, "b", log.entry('b')) == cudaSuccess);
        drain(b);  // and the work that b waits for, but no more
        const std::string text = log.text();
        seen = text == "ab" && Clock::now() - begin < kPatience;
        // Nobody waits for the other work, but it still runs eventually.
        CHECK(eventually([&] { return log.text().size() == 4; }));
        CHECK(Clock::now() - begin >= kPatience);
    }
    CHECK(seen);
}

TEST_CASE("virtual_gpu streams: lazy defers work that nobody waits for while the device has other work") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_STREAMS", "lazy"}});
    Stream a, c;
    bool seen = false;
    for (int attempt = 0; attempt < 20 && !seen; attempt++) {  // a busy machine may stand still, too
        Log log;
        CHECK(submit(c, "c", log.entry('c')) == cudaSuccess);
        for (int i = 0; i < 5; i++)
            CHECK(submit(a, "a", [entry = log.entry('a')] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // in total longer than its patience
                      entry();
                  }) == cudaSuccess);
        drain(a);
        seen = log.text() == "aaaaa";
        CHECK(eventually([&] { return log.text().size() == 6; }));
    }
    CHECK(seen);
}

TEST_CASE("virtual_gpu streams: a stream belongs to its device") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_DEVICES", "2"}});
    Stream here;
    Event event;
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(submit(here, "x", [] {}) == cudaErrorInvalidResourceHandle);
    Stream there;
    CHECK(cudaEventRecord(event, there) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event, here) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(there, event, 0) == cudaSuccess);  // across devices
    CHECK(cudaStreamSynchronize(here) == cudaSuccess);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

TEST_CASE("virtual_gpu streams: a thread that calls CUDA has chosen its device") {
    if (!is_child()) return expect_child({{"VIRTUAL_GPU_DEVICES", "2"}}, {"context on device 0"});
    CHECK(cudaSetDevice(1) == cudaSuccess);
    Event event;
    std::thread([&] {
        CHECK(cudaEventQuery(event) == cudaErrorInvalidDevice);
        CHECK(cudaSetDevice(1) == cudaSuccess);
        CHECK(cudaEventQuery(event) == cudaSuccess);
    }).join();
}
