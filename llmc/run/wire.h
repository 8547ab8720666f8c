// What ranks send each other in an optimizer step, in bytes, and how long that takes on a card's links: pure functions
// of what Weights and Gradients (shard/) issue and what Comm counts as Traffic. Sums of single values (loss, norm,
// amaxes: kilobytes) are left out.
#pragma once
#include <cstddef>

#include "llmc/run/gpu_table.h"
#include "llmc/shard/layout.h"
#include "llmc/shard/table.h"

namespace llmc {

struct WireLayout {
    int ranks = 1;
    int micro_steps = 1;      // of a step
    size_t element = 2;       // bytes of a working weight
    bool rank_order = false;  // --reduce-order rank: gradients are exchanged every micro-step and summed
};

// What a rank sends, as Traffic counts it; where some ranks send and others do not, the mean over the ranks.
struct Sent {
    struct Count {
        double calls = 0, bytes = 0;
    };
    Count weights;  // all_gather, of working copies and FP8 codes
    Count pieces;   // broadcast: what is not FP8 in units with FP8 tensors; part of the launch of the codes' all_gather
    Count gradients;        // reduce_scatter
    Count sums;             // all_gather of summed gradients, in stage 0
    Count group_gradients;  // reduce_scatter between groups (--shard-within)
    Count group_sums;       // all_gather between groups
    double bytes() const {
        return weights.bytes + pieces.bytes + gradients.bytes + sums.bytes + group_gradients.bytes + group_sums.bytes;
    }
    // Adds `other` so many times.
    void add(const Sent& other, double times = 1);
};

// Part of a micro-step. What travels alone has nothing to hide behind: the embedding and the first block, which come
// first and whose gradients leave last. The rest travels while blocks are computed.
struct WirePhase {
    Sent alone, behind;
};

struct WireSchedule {
    WireLayout layout;
    int shard_ranks = 1;  // of a group that shares slices; where everything is everywhere, all ranks
    Wire gradients_as = Wire::fp32;
    bool fp8_weights = false;  // some travel as FP8
    bool exchanged = false;    // gradients go from every rank to every other, instead of round a ring
    WirePhase first_forward, forward, backward, last_backward;
    Sent total() const;  // of a step
};

// `table` is laid out for layout.ranks.
WireSchedule wire_schedule(const ParameterTable& table, const Sharding& sharding, const WireLayout& layout);

// What a GPU reaches, in bytes a second and direction.
struct Interconnect {
    double link;        // to the other GPUs of its node
    double nic;         // through its NIC, to other nodes
    bool nvlink;        // the link is NVLink, not PCIe
    int node_gpus = 8;  // each with a NIC of its own
};
Interconnect interconnect_of(const GpuSpec& gpu);

// Seconds of collectives among `size` ranks, `per_node` of them in a node. Round a ring every byte comes into a node
// once, through all its NICs. Exchanged, every rank's bytes leave through its own.
double ring_seconds(const Sent::Count& sent, int size, int per_node, const Interconnect& net);
double exchange_seconds(const Sent::Count& sent, int size, int per_node, const Interconnect& net);
double wire_seconds(const Sent& sent, const WireSchedule& schedule, const Interconnect& net);

struct WireTime {
    double total = 0;     // seconds of a step in which something travels
    double exposed = 0;   // those of them in which the model has to wait
    double hides_at = 0;  // times the blocks' compute that hides all that can be hidden; 0: nothing can be
};
// forward, backward: seconds of the blocks' compute in one micro-step.
WireTime wire_time(const WireSchedule& schedule, const Interconnect& net, double forward, double backward);

}  // namespace llmc
