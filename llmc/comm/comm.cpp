// How communicators come about and recognise their machines, their collectives on host memory, and how they end.
// collectives.cpp has those on device memory.
#include "llmc/comm/comm.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "llmc/comm/agreement.h"
#include "llmc/comm/comm_state.h"

namespace llmc {

// ---- machines: which ranks are on this one, and whether their processes still run -----------------------------------

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

// ---- making one ----------------------------------------------------------------------------------------------------

Comm Comm::self(ReduceOrder order) {
    auto state = std::make_shared<State>();
    state->process = std::make_shared<CommProcess>();
    state->order = order;
    return Comm(state);
}

Comm Comm::planned(int world, const std::string& backend, ReduceOrder order) {
    Comm comm = self(order);
    if (world > 1) {
        comm.state_->world = comm.state_->machine.ranks = world;
        comm.state_->planned = backend == "nccl" ? "nccl" : "mpi";
        comm.state_->machine.hosts.resize(static_cast<size_t>(world), "planned");
    }
    return comm;
}

Comm connect_transport(std::shared_ptr<Transport> transport, bool nccl, ReduceOrder order) {
    Comm comm = Comm::self(order);
    comm.state_->nccl = nccl;
    comm.state_->meet(std::move(transport));
    return comm;
}

Comm Comm::split(int color, const std::string& label) const {
    const State& s = *state_;
    if (s.planned) throw Error(ExitCode::failure, "a planned communicator cannot be split by color");
    auto part = std::make_shared<State>();
    part->group = label;
    part->order = s.order;
    part->nccl = s.nccl;
    part->process = s.process;
    part->machine.hosts = {s.machine.hosts[s.rank]};
    if (!s.transport) return Comm(part);
    std::shared_ptr<Transport> transport;
    s.on_host("split", 0, [&](Transport& whole) { transport = whole.split(color); });
    part->meet(std::move(transport));
    if (s.backend) part->attach();
    return Comm(part);
}

static void require_division(int world, int n) {
    if (n < 1 || world % n != 0)
        refuse("{} ranks cannot be divided into groups of {}; the size of a group must divide the number of ranks",
               world, n);
}

Comm Comm::neighbours(int n, const std::string& label) const {
    require_division(world(), n);
    if (state_->planned) return planned(n, state_->planned, state_->order);
    return split(rank() / n, label);
}
Comm Comm::counterparts(int n, const std::string& label) const {
    require_division(world(), n);
    if (state_->planned) return planned(world() / n, state_->planned, state_->order);
    return split(rank() % n, label);
}

// ---- ranks and machines ---------------------------------------------------------------------------------------------

int Comm::rank() const { return state_->rank; }
int Comm::world() const { return state_->world; }
int Comm::local_rank() const { return state_->machine.rank; }
int Comm::local_world() const { return state_->machine.ranks; }
const std::string& Comm::host(int rank) const { return state_->machine.hosts.at(rank); }
ReduceOrder Comm::reduce_order() const { return state_->order; }
const Traffic& Comm::traffic() const { return state_->traffic; }
void Comm::reset_traffic() const { state_->traffic = {}; }
OperationLog& Comm::log() const { return *state_->process->log; }
PeerWaits& Comm::waits() const { return state_->process->waits; }

void Comm::wait_for_peers(stream_t stream, event_t event) const {
    waits().begin(stream);
    wait(stream, event);
    waits().end(stream);
}

const char* Comm::name() const {
    if (state_->planned) return state_->planned;
    if (state_->nccl) return "nccl";
    return state_->transport ? state_->transport->name() : "self";
}

// ---- host collectives ----------------------------------------------------------------------------------------------

void Comm::host_all_gather(void* out, const void* in, size_t bytes) const {
    const State& s = *state_;
    if (bytes == 0) return;
    if (s.world == 1) {
        if (out != in) std::memcpy(out, in, bytes);
        return;
    }
    s.on_host("host_all_gather", s.others() * bytes, [=](Transport& t) { t.all_gather(out, in, bytes); });
}

void Comm::host_broadcast(void* data, size_t bytes, int root) const {
    const State& s = *state_;
    if (bytes == 0 || s.world == 1) return;
    s.on_host("host_broadcast", s.rank == root ? s.others() * bytes : 0,
              [=](Transport& t) { t.broadcast(data, bytes, root); });
}

int64_t Comm::host_max(int64_t value) const {
    std::vector<int64_t> values(static_cast<size_t>(world()));
    host_all_gather(values.data(), &value, sizeof value);
    return *std::max_element(values.begin(), values.end());
}

void Comm::barrier() const {
    if (state_->world > 1) state_->on_host("barrier", 0, [](Transport& t) { t.barrier(); });
}

std::string BackendList::failure() {
    const std::lock_guard lock(mutex_);
    for (const auto& one : backends_)
        if (const auto backend = one.lock())
            if (std::string found = backend->failure(); !found.empty()) return found;
    return {};
}

std::string peer_text(const char* data, size_t capacity) {
    std::string text(data, strnlen(data, capacity));
    for (char& c : text)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
    return text;
}

// A line of JSON without its indentation and the comma after it, shortened for a message.
static std::string shown_line(const std::string& line) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const size_t end = line.ends_with(',') ? line.size() - 1 : line.size();
    return begin < end ? line.substr(begin, std::min<size_t>(end - begin, 200)) : "";
}

void Comm::require_equal(const std::string& what, const std::string& text) const {
    if (world() == 1) return;
    const std::string reference = broadcast_text(*this, text);
    std::string mine;
    if (text != reference) {
        const auto [here, there] = first_difference(text, reference);
        mine = fmt::format("rank {} on {} has another {} than rank 0: '{}' against '{}'", rank(), host(rank()), what,
                           shown_line(here), shown_line(there));
    }
    std::vector<std::string> differences = gather_texts(*this, mine);
    std::erase(differences, "");
    if (differences.empty()) return;
    std::string message = peer_text(differences[0].data(), differences[0].size());
    if (differences.size() > 1) message += fmt::format(" ({} ranks differ from rank 0)", differences.size());
    refuse(message + "; start every rank with the same program and the same flags");
}

// ---- life ----------------------------------------------------------------------------------------------------------

void Comm::attach_device() const {
    State& s = *state_;
    if (s.nccl && s.world > 1 && !s.backend) {
        const std::vector<std::string> gpus = gather_texts(*this, device_identity());
        std::map<std::string, int> owners;
        for (int r = 0; r < s.world; r++) {
            const std::string gpu = peer_text(gpus[r].data(), gpus[r].size());
            const auto [other, fresh] = owners.emplace(host(r) + " GPU " + gpu, r);
            if (!fresh)
                refuse(
                    "ranks {} and {} share one GPU ({}), which NCCL does not allow: start one rank per GPU, or "
                    "use --comm mpi",
                    other->second, r, other->first);
        }
    }
    s.attach();
}

void Comm::finish() const {
    const State& s = *state_;
    if (!s.transport) return;
    s.process->queue.drain();
    s.process->log->set_finishing();
    s.transport->barrier();
    s.transport->finish();
}

std::string Comm::failure() const {
    const State& s = *state_;
    if (!s.transport || s.process->log->finishing()) return {};
    // Looks only at the world's connections: those of a split also close when a rank is done with it.
    if (const int lost = s.transport->lost_peer(); lost >= 0)
        return fmt::format("rank {} on {} is gone: its connection was closed, or its machine answers nothing", lost,
                           host(lost));
    return s.process->backends.failure();
}

std::string Comm::ended_neighbour() const {
    const State& s = *state_;
    if (!s.transport || s.process->log->finishing()) return {};
    return s.machine.ended_process();
}

}  // namespace llmc
