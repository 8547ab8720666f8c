// What travels in a step, by hand for a small table; times of collectives, by hand for round numbers. That the bytes
// are those of a real run is test/comm/ranks/training.cpp's.
#include "llmc/run/wire.h"

#include <doctest/doctest.h>

using namespace llmc;

namespace {

// For 4 ranks: an embedding of 1024 elements, three blocks of 528 padded to 768, a final norm of 16 padded to 256.
ParameterTable small_table() {
    std::vector<Unit> units(5);
    units[0].tensors = {{"wte", {64, 16}, true}};
    for (size_t u = 1; u <= 3; u++)
        units[u].tensors = {{"a", {16, 16}, true}, {"b", {16, 16}, true}, {"c", {16}, false}};
    units[4].tensors = {{"norm", {16}, false}};
    return ParameterTable(units, 4);
}

Sharding stage(int stage, Wire wire = Wire::fp32) {
    Sharding sharding;
    sharding.stage = stage, sharding.wire = wire;
    return sharding;
}

WireSchedule schedule(Sharding sharding, int micro_steps = 1, int within = 0) {
    sharding.within = within;
    return wire_schedule(small_table(), sharding, {4, micro_steps, 2});
}

const Interconnect kRound = {350e9, 50e9, true};

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-9); }

}  // namespace

TEST_CASE("wire: bytes and calls of the stages, by hand") {
    REQUIRE(small_table().count() == 1024 + 3 * 768 + 256);
    const Sent none = schedule(stage(0)).total();
    CHECK(none.weights.bytes == 0);
    CHECK(none.gradients.bytes == 10752);  // 3 / 4 of 3584 values, 4 bytes each
    CHECK(none.sums.bytes == 10752);
    CHECK(none.sums.calls == 5);
    CHECK(none.bytes() == 2 * 10752);
    CHECK(schedule(stage(0), 7).total().bytes() == 2 * 10752);  // micro-steps add up before

    const Sent one = schedule(stage(1), 3).total();
    CHECK(one.weights.bytes == 5376);
    CHECK(one.weights.calls == 5);
    CHECK(one.gradients.bytes == 10752);
    CHECK(schedule(stage(1, Wire::bf16)).total().gradients.bytes == 10752 / 2);

    const Sent two = schedule(stage(2), 3).total();
    CHECK(two.weights.bytes == 5376);
    CHECK(two.gradients.bytes == 3 * 10752);
    CHECK(two.gradients.calls == 15);

    // The embedding, the final norm, and block 1 three times, block 2 once, block 3 twice.
    const Sent three = schedule(stage(3), 2).total();
    CHECK(three.weights.bytes == 1.5 * (1024 + 256 + 6 * 768));
    CHECK(three.weights.calls == 8);
    CHECK(three.gradients.bytes == 2 * 10752);
    CHECK(wire_schedule(small_table(), stage(3), {1, 1, 2}).total().bytes() == 0);
}

TEST_CASE("wire: FP8 weights travel as one byte, the rest of their unit as a working copy") {
    Sharding sharding = stage(1);
    const ParameterTable table = small_table();
    for (const Unit& unit : table.units()) sharding.fp8.emplace_back(unit.tensors.size(), false);
    for (size_t u = 1; u <= 3; u++) sharding.fp8[u][0] = true;
    const WireSchedule s = schedule(sharding);
    CHECK(s.fp8_weights);
    CHECK(s.total().weights.bytes == 1.5 * (1024 + 256) + 3 * 0.75 * 768);
    CHECK(s.total().pieces.bytes == 3 * 0.75 * (768 - 256) * 2);
    sharding.stage = 0;
    CHECK(!schedule(sharding).fp8_weights);
    CHECK(schedule(sharding).total().pieces.bytes == 0);
}

TEST_CASE("wire: groups of ranks that share slices") {
    const Sent half = schedule(stage(1), 1, 2).total();
    CHECK(half.weights.bytes == 3584);
    CHECK(half.gradients.bytes == 2 * 3584);
    CHECK(half.group_gradients.bytes == 0.5 * 1792 * 4);
    CHECK(half.group_sums.bytes == 0.5 * 1792 * 4);
    CHECK(half.group_sums.calls == 5);
    CHECK(half.bytes() == 3 * 3584 + 3584 * 2);
    CHECK(schedule(stage(1, Wire::bf16), 1, 2).total().group_gradients.bytes == 0.5 * 1792 * 2);
    const Sent steps = schedule(stage(3), 2, 2).total();  // between groups once a step
    CHECK(steps.gradients.bytes == 4 * 3584);
    CHECK(steps.group_gradients.bytes == half.group_gradients.bytes);
    CHECK(schedule(stage(2), 1, 1).total().weights.bytes == 0);
    CHECK(schedule(stage(2), 2, 4).total().bytes() == schedule(stage(2), 2).total().bytes());
}

TEST_CASE("wire: what has nothing to hide behind") {
    const WireSchedule one = schedule(stage(1), 2);
    CHECK(one.first_forward.alone.bytes() == 1.5 * (1024 + 768));
    CHECK(one.first_forward.behind.bytes() == 1.5 * (2 * 768 + 256));
    CHECK(one.forward.behind.bytes() + one.backward.behind.bytes() + one.backward.alone.bytes() == 0);
    CHECK(one.last_backward.alone.bytes() == 3 * (1024 + 768));
    const WireSchedule three = schedule(stage(3), 2);
    CHECK(three.forward.alone.bytes() == 0);  // block 1 is still there
    CHECK(three.forward.behind.bytes() == 1.5 * 768);
    CHECK(three.backward.behind.weights.bytes == 1.5 * 768);
    CHECK(three.backward.alone.bytes() == 3 * (1024 + 768));
    CHECK(!three.exchanged);
    CHECK(schedule(stage(3, Wire::bf16)).exchanged);
    CHECK(wire_schedule(small_table(), stage(1), {4, 1, 2, true}).exchanged);
}

TEST_CASE("wire: seconds of a collective, by hand") {
    // 1 ms of data in a node of eight: 7 steps of 3.4 us.
    CHECK(ring_seconds({1, 350e6}, 8, 8, kRound) == near(1e-3 + 8.4e-6 + 7 * 3.4e-6));
    // Hardly any data: the protocol for low latency, at half the bandwidth.
    CHECK(ring_seconds({1, 3500}, 8, 8, kRound) == near(2e-8 + 6.6e-6 + 7 * 0.6e-6));
    CHECK(ring_seconds({10, 350e6}, 8, 8, kRound) < 10 * ring_seconds({1, 350e6}, 8, 8, kRound));
    // Two nodes: 14 steps in them and one between. Every NIC takes an eighth of what comes in: 100 MB in 2 ms.
    CHECK(ring_seconds({1, 15e8}, 16, 8, kRound) == near(15e8 / 350e9 + 8.4e-6 + 14 * 3.4e-6 + 14e-6));
    CHECK(ring_seconds({1, 15e8}, 16, 8, {900e9, 50e9, true}) == near(2e-3 + 8.4e-6 + 14 * 3.4e-6 + 14e-6));
    // Exchanged, a NIC sends what its rank has for the eight others: 800 MB in 16 ms.
    CHECK(exchange_seconds({1, 15e8}, 16, 8, kRound) == near(16e-3 + 8.4e-6 + 14e-6));
    CHECK(exchange_seconds({1, 350e6}, 8, 8, kRound) == near(1e-3 + 8.4e-6 + 3.4e-6));
    // One rank a node: the NIC takes all.
    CHECK(ring_seconds({1, 3e8}, 4, 1, kRound) == near(6e-3 + 8.4e-6 + 3 * 14e-6));
    CHECK(ring_seconds({1, 25e6}, 2, 2, {25e9, 50e9, false}) == near(1e-3 + 8.4e-6 + 5.7e-6));  // PCIe
    CHECK(ring_seconds({5, 0}, 1, 1, kRound) == 0);
}

TEST_CASE("wire: waiting is what compute does not cover") {
    WireSchedule s;
    s.layout = {8, 2, 2}, s.shard_ranks = 8;
    const auto milliseconds = [](double time) {
        Sent sent;
        sent.weights.bytes = time * 350e6;  // without calls: no latency
        return sent;
    };
    s.first_forward = {milliseconds(1), milliseconds(2)};
    s.forward = {{}, milliseconds(1)};
    s.backward = s.last_backward = {milliseconds(1), milliseconds(4)};
    const WireTime time = wire_time(s, kRound, 1.5e-3, 3e-3);
    CHECK(time.total == near(14e-3));
    CHECK(time.exposed == near(1e-3 + 0.5e-3 + 0 + 2e-3 + 2e-3));
    CHECK(time.hides_at == near(4.0 / 3));
    CHECK(wire_time(s, kRound, 1.5e-3 * 4 / 3, 3e-3 * 4 / 3).exposed == near(3e-3));  // all but what is alone
    s.layout.micro_steps = 1;
    CHECK(wire_time(s, kRound, 1.5e-3, 3e-3).exposed == near(3.5e-3));
}

TEST_CASE("wire: groups in a node use its link, their copies the network") {
    WireSchedule s;
    s.layout = {16, 1, 2}, s.shard_ranks = 8;
    Sent sent;
    sent.weights.bytes = 350e6, sent.group_sums.bytes = 50e6;
    CHECK(wire_seconds(sent, s, kRound) == near(1e-3 + 1e-3));
    s.shard_ranks = 4;  // four copies, two in each node, so that two NICs share
    sent.group_sums.bytes = 150e6;
    CHECK(wire_seconds(sent, s, kRound) == near(1e-3 + 1e-3));
    s.layout.ranks = 1;
    CHECK(wire_seconds(sent, s, kRound) == 0);
}
