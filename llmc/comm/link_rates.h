// The speed of the links between ranks, which plans use.
#pragma once
#include "llmc/comm/comm.h"

namespace llmc {

// Bytes that a rank sends to the others per second, in each of the two collectives that sharding needs.
struct LinkRates {
    double all_gather = 0, reduce_scatter = 0;
};
// A collective. Call it while the ranks are idle. Its bytes do not count as traffic.
LinkRates measure_links(const Comm& comm);

}  // namespace llmc
