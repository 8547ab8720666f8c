// Which ranks of a communicator run on this process's machine.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace llmc {

class Transport;

// The name of this machine.
std::string host_name();

struct Machine {
    int rank = 0, ranks = 1;                         // this rank's place among the ranks of the machine; their number
    std::vector<std::string> hosts = {host_name()};  // the machine of every rank of the communicator, by its name
    // With MPI: the other ranks of the machine with their process ids.
    std::vector<std::pair<int, pid_t>> processes = {};

    // A sentence about one of these processes that has ended, or "".
    std::string ended_process() const;
};

// A collective.
Machine find_machine(Transport& transport);

}  // namespace llmc
