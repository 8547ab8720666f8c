// How ranks recognise their machine, and whether another rank's process still runs.
#include "llmc/comm/comm_state.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace llmc {
namespace {

// Identifies a process to other processes on its machine.
struct Identity {
    char host[256];
    char boot[64];           // boot id: tells machines with equal names apart, which are common among containers
    char pid_namespace[64];  // process ids are only meaningful within one namespace
    int64_t pid;
};

Identity own_identity() {
    Identity mine = {};
    std::snprintf(mine.host, sizeof mine.host, "%s", host_name().c_str());
    if (std::FILE* f = std::fopen("/proc/sys/kernel/random/boot_id", "r")) {
        if (!std::fgets(mine.boot, sizeof mine.boot, f)) mine.boot[0] = 0;
        std::fclose(f);
    }
    if (readlink("/proc/self/ns/pid", mine.pid_namespace, sizeof mine.pid_namespace - 1) > 0) mine.pid = getpid();
    return mine;
}

template <size_t N>
bool same_text(const char (&a)[N], const char (&b)[N]) {
    return strncmp(a, b, N) == 0;
}

}  // namespace

std::string host_name() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

Machine find_machine(Transport& transport) {
    const Identity mine = own_identity();
    const bool mpi = std::strcmp(transport.name(), "mpi") == 0;
    std::vector<Identity> all(transport.world());
    transport.all_gather(all.data(), &mine, sizeof mine);
    all[transport.rank()] = mine;  // whatever rank 0 sent back, at least one rank is here
    Machine machine{.ranks = 0, .hosts = {}};
    for (int r = 0; r < transport.world(); r++) {
        const Identity& other = all[r];
        machine.hosts.push_back(peer_text(other.host, sizeof other.host));
        if (!same_text(other.host, mine.host) || !same_text(other.boot, mine.boot)) continue;
        if (r < transport.rank()) machine.rank++;
        machine.ranks++;
        if (mpi && r != transport.rank() && other.pid > 0 && same_text(other.pid_namespace, mine.pid_namespace))
            machine.processes.emplace_back(r, static_cast<pid_t>(other.pid));
    }
    return machine;
}

std::string Machine::ended_process() const {
    for (const auto& [rank, pid] : processes)
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return fmt::format("rank {} on {} is gone: its process {} has ended", rank, hosts.at(rank), pid);
    return {};
}

}  // namespace llmc
