// Which time counts as waiting for other ranks.
#include "llmc/comm/peer_waits.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

using namespace llmc;

namespace {

constexpr int kMs = 20;  // of each wait below; a wait that should not count would add as much

void sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(kMs)); }

void collective(OperationLog& log) {
    const uint64_t sequence = log.begin("all_gather", "world", 8);
    sleep();
    log.end(sequence);
}

struct Streams {
    stream_t training = create_stream(), other = create_stream();
    ~Streams() {
        destroy_stream(training);
        destroy_stream(other);
    }
};

// A wait in a stream. The stream reaches both of its ends in time, whatever the device does.
void wait_in(PeerWaits& waits, stream_t stream) {
    waits.begin(stream);
    synchronize(stream);
    sleep();
    waits.end(stream);
    synchronize(stream);
}

}  // namespace

TEST_CASE("peer waits: collectives that block the thread count for the step in which they end") {
    const auto log = std::make_shared<OperationLog>();
    const Streams streams;
    PeerWaits waits(log);
    collective(*log);
    waits.begin_step(streams.training, false);
    CHECK(waits.ms(waits.end_step()) == 0);
    const double before = log->blocked_seconds();
    // Between two steps that follow each other, ranks wait too.
    collective(*log);
    waits.begin_step(streams.training, true);
    collective(*log);
    wait_in(waits, streams.training);  // the log has it already
    PeerWaits::Step step = waits.end_step();
    CHECK(step.pairs.empty());
    const double ms = waits.ms(std::move(step));
    CHECK(ms >= 2 * kMs);
    CHECK(ms == doctest::Approx(1e3 * (log->blocked_seconds() - before)).epsilon(1e-9));
    // A step that does not follow the one before has no time from between them.
    collective(*log);
    waits.begin_step(streams.training, false);
    CHECK(waits.ms(waits.end_step()) == 0);
}

TEST_CASE("peer waits: on a device, the places of the training stream count, during steps") {
    const auto log = std::make_shared<OperationLog>();
    const Streams streams;
    PeerWaits waits(log);
    waits.measure_on_device();
    wait_in(waits, streams.training);
    waits.begin_step(streams.training, false);
    wait_in(waits, streams.other);
    collective(*log);
    CHECK(waits.ms(waits.end_step()) == 0);
    wait_in(waits, streams.training);

    for (int i = 0; i < 3; i++) {
        waits.begin_step(streams.training, true);
        wait_in(waits, streams.training);
        waits.begin(streams.training);
        wait_in(waits, streams.training);  // one place within another
        waits.end(streams.training);
        synchronize(streams.training);
        PeerWaits::Step step = waits.end_step();
        CHECK(step.pairs.size() == 2);
        CHECK(waits.ms(std::move(step)) >= 2 * kMs);
    }
}
