// The card check's part between ranks: it sends a known pattern through every operation of every communicator of a run,
// one after the other, then through all communicators at once, each on its own stream, and compares every byte. The
// watchdog stops an operation that never ends.
#pragma once
#include <string>
#include <vector>

#include "llmc/check/findings.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct NamedComm {
    std::string name;
    Comm comm;
};

// A collective of all ranks. Throws Error(communication) on every rank: which operation, of which communicator, on
// which rank, and the first byte that is wrong. Returns the rates of the first communicator.
Rates check_collectives(const std::vector<NamedComm>& comms, const Comm& world);

}  // namespace llmc
