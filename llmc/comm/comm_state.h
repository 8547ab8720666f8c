// The state behind a Comm, and which of its ranks run on this process's machine. Only comm.cpp and
// collectives.cpp include this.
#pragma once
#include <sys/types.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/comm/backend.h"
#include "llmc/comm/comm.h"

namespace llmc {

struct Machine {
    int rank = 0, ranks = 1;                         // this rank's index among the ranks of the machine; their number
    std::vector<std::string> hosts = {host_name()};  // the machine of every rank of the communicator, by its name
    // With MPI: the other ranks of the machine with their process ids.
    std::vector<std::pair<int, pid_t>> processes = {};

    // A sentence about one of these processes that has ended, or "".
    std::string ended_process() const;
};

// A collective.
Machine find_machine(Transport& transport);

struct Comm::State {
    int rank = 0, world = 1;
    Machine machine;
    std::string group = "world";
    const char* planned = nullptr;  // the back-end that is planned for; its collectives throw
    bool nccl = false;              // true if attach_device() must create NCCL's back-end
    ReduceOrder order = ReduceOrder::any;
    std::shared_ptr<CommProcess> process;  // shared by all communicators of the process
    std::shared_ptr<Transport> transport;  // nullptr for one rank
    std::shared_ptr<Backend> backend;      // nullptr for one rank, or for NCCL before attach_device()
    Traffic traffic;

    size_t others() const { return static_cast<size_t>(world - 1); }
    Backend& device() const {
        if (planned) throw Error(ExitCode::failure, "a planned communicator cannot communicate");
        if (!backend) throw Error(ExitCode::failure, "attach_device() has to come before the first device collective");
        if (process->grouping && process->grouping != backend.get()) refuse_group("another communicator's collective");
        return *backend;
    }
    Transport& control() const {
        if (!transport) throw Error(ExitCode::failure, "a planned communicator cannot communicate");
        return *transport;
    }
    bool library_reduces() const {
        return order == ReduceOrder::any && (planned ? std::strcmp(planned, "nccl") == 0 : nccl);
    }
    void count(Traffic::Count& entry, size_t bytes) const {
        entry.calls++;
        entry.bytes += bytes;
    }
    void refuse_group(const char* what) const {
        if (process->grouping) throw Error(ExitCode::failure, "{} cannot be part of a Group", what);
    }
    // Runs a collective on host memory after everything submitted so far, in the same order as on every other rank.
    template <class Function>
    void on_host(const char* what, size_t sent, Function function) const {
        Transport& t = control();
        process->queue.drain();
        const uint64_t sequence = process->log->begin(what, group, sent);
        function(t);
        process->log->end(sequence);
    }
    // Joins the ranks that `joined` connects.
    void meet(std::shared_ptr<Transport> joined) {
        transport = std::move(joined);
        rank = transport->rank();
        world = transport->world();
        machine = find_machine(*transport);
        if (!nccl) backend = make_host_backend(transport, process, group);
    }
    // Creates NCCL's back-end if this communicator needs one.
    void attach() {
        if (!nccl || backend || world == 1) return;
        backend = make_nccl_backend(control(), process, group);
        process->backends.add(backend);
    }
};

}  // namespace llmc
