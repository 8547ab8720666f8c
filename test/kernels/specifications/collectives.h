// Sends known values through every operation of every communicator of a run, one after the other, then through all
// communicators at once, each on its own stream, and compares every byte. The watchdog stops an operation that never
// ends.
#pragma once
#include <string>
#include <vector>

#include "llmc/comm/comm.h"

namespace llmc {

struct NamedComm {
    std::string name;
    Comm comm;
};

// A collective of all ranks. If a byte is wrong, throws Error(communication) on every rank, with the operation, the
// communicator, the rank and the first wrong byte.
void check_collectives(const std::vector<NamedComm>& comms, const Comm& world);

}  // namespace llmc
