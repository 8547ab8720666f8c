// The record of the last collectives.
#include "llmc/comm/operation_log.h"

#include <doctest/doctest.h>

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
    log.end(second, OperationEntry::State::issued);
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
