// The log of recent collectives.
#include "llmc/comm/operation_log.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

using namespace llmc;

TEST_CASE("operation log: keeps the last operations, and what became of them") {
    OperationLog log;
    CHECK(log.last().sequence == 0);
    CHECK(log.last().describe() == "no collective yet");
    CHECK(log.last_activity() == 0);
    log.set_step(3);
    const uint64_t first = log.begin("all_gather", "world", 40);
    CHECK(log.last().state == OperationEntry::State::running);
    CHECK(log.last().describe() == "all_gather #1 (world, 40 bytes, step 3, running for 0.0 s)");
    log.end(first);
    CHECK(log.last().state == OperationEntry::State::done);
    CHECK(log.last().ended >= log.last().began);
    const uint64_t second = log.begin("reduce_scatter", "shards", 8);
    log.issued(second, [] { return DeviceProgress::waiting; });
    CHECK(log.last().describe() == "reduce_scatter #2 (shards, 8 bytes, step 3, issued 0.0 s ago)");
    CHECK(log.recent().size() == 2);
    CHECK(log.recent()[0].sequence == 1);
    CHECK(log.last_activity() > 0);
}

TEST_CASE("operation log: old operations make room, and may still end") {
    OperationLog log;
    const uint64_t first = log.begin("barrier", "world", 0);
    for (size_t i = 0; i < OperationLog::kKept; i++) log.end(log.begin("broadcast", "world", i));
    log.end(first);
    const std::vector<OperationEntry> recent = log.recent();
    REQUIRE(recent.size() == OperationLog::kKept);
    for (size_t i = 0; i < recent.size(); i++) {
        CHECK(recent[i].sequence == i + 2);
        CHECK(recent[i].bytes == i);
    }
    CHECK_FALSE(log.finishing());
    log.set_finishing();
    CHECK(log.finishing());
}

TEST_CASE("operation log: unfinished operations of a device, and the one it is in") {
    OperationLog log;
    constexpr size_t kCount = 2 * OperationLog::kKept;  // more than are kept, so the host is ahead of the device
    DeviceProgress progress[kCount];
    std::fill_n(progress, kCount, DeviceProgress::waiting);
    for (size_t i = 0; i < kCount; i++)
        log.issued(log.begin("all_gather", "weights", i), [&progress, i] { return progress[i]; });
    log.look();
    CHECK(log.unfinished().sequence == 1);
    CHECK(log.unfinished().state == OperationEntry::State::issued);

    // The first three are done, and the fifth, on another stream, is running and delays the others.
    for (const size_t i : {0, 1, 2}) progress[i] = DeviceProgress::done;
    progress[4] = DeviceProgress::running;
    log.look();
    CHECK(log.unfinished().sequence == 5);
    CHECK(log.unfinished().state == OperationEntry::State::running);
    CHECK(log.unfinished().describe() == "all_gather #5 (weights, 4 bytes, step 0, running, issued 0.0 s ago)");

    std::fill_n(progress, kCount, DeviceProgress::done);
    log.look(kCount / 2);  // only some at a time
    CHECK(log.unfinished().sequence == 3 + kCount / 2 + 1);
    log.look();
    CHECK(log.unfinished().sequence == 0);
    CHECK(log.last().state == OperationEntry::State::done);
    CHECK(log.last().ended >= log.last().began);
}

TEST_CASE("operation log: an operation of the host that runs is waited for") {
    OperationLog log;
    log.issued(log.begin("all_gather", "weights", 8), [] { return DeviceProgress::waiting; });
    const uint64_t barrier = log.begin("barrier", "world", 0);
    CHECK(log.unfinished().sequence == barrier);
    log.end(barrier);
    CHECK(log.unfinished().sequence == barrier - 1);
}

TEST_CASE("operation log: a device that does not answer does not keep other threads from reading the log") {
    OperationLog log;
    std::atomic<bool> asked = false, answer = false;
    log.issued(log.begin("all_reduce", "world", 8), [&] {
        asked = true;
        while (!answer) std::this_thread::yield();
        return DeviceProgress::done;
    });
    std::thread looking([&] { log.look(); });
    while (!asked) std::this_thread::yield();
    CHECK(log.unfinished().sequence == 1);
    answer = true;
    looking.join();
    CHECK(log.unfinished().sequence == 0);
}
