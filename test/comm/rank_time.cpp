// Which time counts as waiting for other ranks, and the rule for slow ranks, with times that are made up.
#include "llmc/comm/rank_time.h"
#include "llmc/comm/operation_log.h"

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <thread>

using namespace llmc;
using Change = SlowRankWatch::Change;

namespace {

constexpr int kSteps = SlowRankWatch::kSlowSteps;

// 100 ranks in a step of 150 ms, of which each works 100 ms itself, except for `slow`.
SlowestRank hundred(int slow, float own_ms) {
    std::vector<RankTime> ranks(100, {150, 50, 1});
    ranks[static_cast<size_t>(slow)] = {150, 150 - own_ms, 1};
    return slowest_rank(ranks);
}

// How often each change comes in `steps` equal steps.
std::vector<Change> changes(SlowRankWatch& watch, const SlowestRank& step, int steps) {
    std::vector<Change> all;
    for (int i = 0; i < steps; i++) all.push_back(watch.observe(step));
    return all;
}
std::vector<Change> last_of(int steps, Change change) {
    std::vector<Change> all(static_cast<size_t>(steps), Change::none);
    all.back() = change;
    return all;
}

}  // namespace

TEST_CASE("slow rank: the rank that works longest, against the median of the others") {
    const SlowestRank three = slowest_rank({{100, 40, 0}, {100, 10, 30}, {100, 50, 2}});
    CHECK(three.rank == 1);
    CHECK(three.own_ms == 90);
    CHECK(three.others_ms == 60);
    CHECK(three.peers_ms == 40);
    CHECK(three.data_ms == 30);
    CHECK(three.ratio() == 1.5);
    // Each of two ranks is compared with the other one. A mean of both would hide half of the difference.
    CHECK(slowest_rank({{100, 0, 0}, {100, 50, 0}}).ratio() == 2);
    const SlowestRank many = hundred(71, 125);
    CHECK(many.rank == 71);
    CHECK(many.ratio() == 1.25);
    // A rank may send anything.
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
    const SlowestRank lied_to = slowest_rank({{kNan, 1, 1}, {100, 40, 1}, {kInf, -5, kNan}, {-3, kNan, 0}});
    CHECK(lied_to.rank == 1);
    CHECK(lied_to.ratio() == 1);
}

TEST_CASE("slow rank: data is the reason if waiting for it is half of the difference") {
    const auto waits = [](float data_ms) { return slowest_rank({{100, 0, data_ms}, {100, 40, 0}}).waits_for_data(); };
    CHECK_FALSE(waits(0));
    CHECK_FALSE(waits(19));
    CHECK(waits(20));
    CHECK(waits(40));
    CHECK_FALSE(slowest_rank({{100, 0, 0}, {100, 0, 0}}).waits_for_data());
}

TEST_CASE("slow rank: it is slow after enough steps in a row, once, and until as many steps without") {
    SlowRankWatch watch;
    CHECK(changes(watch, hundred(3, 119), 20) == std::vector(20, Change::none));
    CHECK(changes(watch, hundred(3, 121), kSteps) == last_of(kSteps, Change::begins));
    CHECK(changes(watch, hundred(3, 150), 20) == std::vector(20, Change::none));
    // A few fast steps in between change nothing.
    CHECK(changes(watch, hundred(3, 100), kSteps - 1) == std::vector(kSteps - 1, Change::none));
    CHECK(changes(watch, hundred(3, 150), 20) == std::vector(20, Change::none));
    CHECK(changes(watch, hundred(3, 100), kSteps) == last_of(kSteps, Change::ends));
    CHECK(changes(watch, hundred(3, 100), 20) == std::vector(20, Change::none));
}

TEST_CASE("slow rank: steps of different ranks do not add up, and another rank may follow at once") {
    SlowRankWatch watch;
    for (int i = 0; i < 10; i++) {
        CHECK(changes(watch, hundred(3, 140), kSteps - 1) == std::vector(kSteps - 1, Change::none));
        CHECK(changes(watch, hundred(8, 140), 1) == std::vector{Change::none});
    }
    CHECK(changes(watch, hundred(3, 140), kSteps) == last_of(kSteps, Change::begins));
    CHECK(changes(watch, hundred(8, 140), kSteps) == last_of(kSteps, Change::begins));
}

TEST_CASE("slow rank: the message") {
    const SlowestRank slowest = slowest_rank({{131, 34, 0}, {131, 0, 0}});
    CHECK(format_slow_rank(118, slowest, "rank 1 on node7 (NVIDIA H100)") ==
          "step 118: rank 1 on node7 (NVIDIA H100) is slow: its own work took 131.0 ms, 1.35 times as long as the "
          "other ranks', 5 steps in a row; it does not wait for its data");
    const SlowestRank starved = slowest_rank({{131, 34, 0}, {131, 0, 30}});
    CHECK(format_slow_rank(118, starved, "rank 1 on node7").find("; it waits 30.0 ms for its data") !=
          std::string::npos);
}

// ---- waits for other ranks ------------------------------------------------------------------------------------------

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
