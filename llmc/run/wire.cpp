#include "llmc/run/wire.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace llmc {
namespace {

// Of a link's data-sheet rate, what NCCL reaches with large messages. NVLink: 350 of an H100's 450 GB/s, as estimates
// in public use; assumed for other cards. PCIe: the middle of the one range that is published, 35 to 45 of 64 GB/s
// between eight H100 PCIe; assumed for other cards, and too high for GeForce cards, which reach each other through host
// memory alone.
constexpr double kNvlinkFraction = 350.0 / 450;
constexpr double kPcieFraction = 40.0 / 64;
constexpr double kNic = 50e9;  // 400 Gb/s, its line rate

// NCCL's own model of a ring, which its tuner chooses the protocol with (tuning.cc of 2.28: base latency, latency a
// step over NVLink, PCIe and the network in microseconds, share of the bandwidth).
struct Protocol {
    double base, nvlink, pcie, net, share;
};
constexpr Protocol kProtocols[] = {{6.6, 0.6, 1.0, 2.7, 0.5}, {14.0, 1.9, 2.5, 4.0, 0.92}, {8.4, 3.4, 5.7, 14.0, 1.0}};

class Wires {
public:
    Wires(const ParameterTable& table, const Sharding& sharding, const WireLayout& layout)
        : table_(table), sharding_(sharding), layout_(layout) {
        shard_ranks_ = sharding.within > 0 ? sharding.within : layout.ranks;
    }

    int shard_ranks() const { return shard_ranks_; }
    bool any_fp8() const {
        for (const std::vector<bool>& unit : sharding_.fp8)
            if (std::find(unit.begin(), unit.end(), true) != unit.end()) return true;
        return false;
    }

    // Weights::send(): codes of whole slices and the few others in pieces, or working copies.
    Sent weights(size_t unit) const {
        const double count = double(table_.unit(unit).count), share = others() / shard_ranks_;
        double fp8 = 0;
        if (!sharding_.fp8.empty())
            for (size_t t = 0; t < table_.unit(unit).tensors.size(); t++)
                if (sharding_.fp8[unit][t]) fp8 += double(table_.unit(unit).tensors[t].count());
        Sent sent;
        const double element = double(layout_.element);
        sent.weights = {1, share * count * (fp8 > 0 ? 1 : element)};
        if (fp8 > 0) sent.pieces = {0, share * (count - fp8) * element};
        return sent;
    }

    // Gradients::reduce(). `last`: of the step.
    Sent gradients(size_t unit, bool last) const {
        Sent sent;
        if (!last && sharding_.stage < 2 && !layout_.rank_order) return sent;
        const double slice = double(table_.unit(unit).count) / shard_ranks_;
        const double groups = double(layout_.ranks) / shard_ranks_, value = sharding_.wire == Wire::bf16 ? 2 : 4;
        sent.gradients = {1, others() * slice * value};
        if (last && sharding_.stage == 0) sent.sums = {1, others() * slice * sizeof(float)};
        const double share = (groups - 1) / groups * slice;
        if (last && groups > 1) sent.group_gradients = {1, share * value}, sent.group_sums = {1, share * sizeof(float)};
        return sent;
    }

private:
    double others() const { return shard_ranks_ - 1; }

    const ParameterTable& table_;
    const Sharding& sharding_;
    const WireLayout& layout_;
    int shard_ranks_;
};

// Ranks of a group in one node, when as few nodes as possible share them evenly.
int ranks_per_node(int size, int node) {
    const int nodes = (size + node - 1) / node;
    return (size + nodes - 1) / nodes;
}

}  // namespace

void Sent::add(const Sent& other, double times) {
    for (Count Sent::*kind :
         {&Sent::weights, &Sent::pieces, &Sent::gradients, &Sent::sums, &Sent::group_gradients, &Sent::group_sums}) {
        (this->*kind).calls += times * (other.*kind).calls;
        (this->*kind).bytes += times * (other.*kind).bytes;
    }
}

Sent WireSchedule::total() const {
    Sent sum;
    const double more = layout.micro_steps - 1;
    for (const auto& [phase, times] : {std::pair{&first_forward, 1.0}, std::pair{&forward, more},
                                       std::pair{&backward, more}, std::pair{&last_backward, 1.0}}) {
        sum.add(phase->alone, times);
        sum.add(phase->behind, times);
    }
    return sum;
}

WireSchedule wire_schedule(const ParameterTable& table, const Sharding& sharding, const WireLayout& layout) {
    WireSchedule s;
    s.layout = layout;
    if (layout.ranks == 1) return s;
    const Wires wires(table, sharding, layout);
    s.shard_ranks = wires.shard_ranks();
    s.gradients_as = sharding.wire;
    s.fp8_weights = sharding.stage > 0 && wires.any_fp8();
    s.exchanged = layout.rank_order || sharding.wire == Wire::bf16;
    const size_t last = table.units().size() - 1, blocks = last - 1;  // units: embedding, blocks from 1 on, final norm
    for (size_t u = 0; u <= last; u++) {
        const bool first = u <= 1;
        if (sharding.stage > 0) (first ? s.first_forward.alone : s.first_forward.behind).add(wires.weights(u));
        // Stage 3 keeps the two blocks at which the model turns round, the embedding and the final norm.
        if (sharding.stage == 3 && u > 2 && u <= blocks) s.forward.behind.add(wires.weights(u));
        if (sharding.stage == 3 && u > 0 && u + 1 < blocks) {
            s.backward.behind.add(wires.weights(u));
            s.last_backward.behind.add(wires.weights(u));
        }
        (first ? s.backward.alone : s.backward.behind).add(wires.gradients(u, false));
        (first ? s.last_backward.alone : s.last_backward.behind).add(wires.gradients(u, true));
    }
    return s;
}

Interconnect interconnect_of(const GpuSpec& gpu) {
    const bool nvlink = gpu.link == Link::nvlink;
    return {gpu.link_gbs * 1e9 * (nvlink ? kNvlinkFraction : kPcieFraction), kNic, nvlink};
}

double ring_seconds(const Sent::Count& sent, int size, int per_node, const Interconnect& net) {
    if (size == 1) return 0;
    const int nodes = (size + per_node - 1) / per_node;
    const double into_node = nodes > 1 ? sent.bytes * (size - per_node) / (size - 1) : 0;
    const double data = std::max(sent.bytes / net.link, into_node / (per_node * net.nic));
    double best = INFINITY;
    for (const Protocol& p : kProtocols) {
        const double steps = (size - nodes) * (net.nvlink ? p.nvlink : p.pcie) + (nodes - 1) * p.net;
        best = std::min(best, sent.calls * (p.base + steps) * 1e-6 + data / p.share);
    }
    return best;
}

double exchange_seconds(const Sent::Count& sent, int size, int per_node, const Interconnect& net) {
    if (size == 1) return 0;
    const Protocol& simple = kProtocols[2];
    const bool leaves = size > per_node;
    const double out_of_node = leaves ? sent.bytes * (size - per_node) / (size - 1) : 0;
    const double step = leaves ? simple.net : net.nvlink ? simple.nvlink : simple.pcie;
    return sent.calls * (simple.base + step) * 1e-6 + std::max(sent.bytes / net.link, out_of_node / net.nic);
}

double wire_seconds(const Sent& sent, const WireSchedule& schedule, const Interconnect& net) {
    if (schedule.layout.ranks == 1) return 0;
    const auto seconds = [&](const Sent::Count& gathered, const Sent::Count& reduced, int size, int per_node) {
        return ring_seconds(gathered, size, per_node, net) + (schedule.exchanged
                                                                  ? exchange_seconds(reduced, size, per_node, net)
                                                                  : ring_seconds(reduced, size, per_node, net));
    };
    const int size = schedule.shard_ranks, groups = schedule.layout.ranks / size;
    const Sent::Count gathered = {sent.weights.calls + sent.sums.calls,
                                  sent.weights.bytes + sent.pieces.bytes + sent.sums.bytes};
    return seconds(gathered, sent.gradients, size, ranks_per_node(size, net.node_gpus)) +
           seconds(sent.group_sums, sent.group_gradients, groups,
                   ranks_per_node(groups, std::max(1, net.node_gpus / size)));
}

WireTime wire_time(const WireSchedule& schedule, const Interconnect& net, double forward, double backward) {
    WireTime time;
    const auto add = [&](const WirePhase& phase, double compute, int times) {
        if (times == 0) return;
        const double alone = wire_seconds(phase.alone, schedule, net),
                     behind = wire_seconds(phase.behind, schedule, net);
        time.total += times * (alone + behind);
        time.exposed += times * (alone + std::max(0.0, behind - compute));
        time.hides_at = std::max(time.hides_at, behind / compute);
    };
    const int more = schedule.layout.micro_steps - 1;
    add(schedule.first_forward, forward, 1);
    add(schedule.forward, forward, more);
    add(schedule.backward, backward, more);
    add(schedule.last_backward, backward, 1);
    return time;
}

}  // namespace llmc
