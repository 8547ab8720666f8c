// The part of Comm that all back-ends share. Reductions that a back-end lacks, or that must not depend on its
// algorithm, exchange pieces and sum them in rank order (pieces.h).
#include "llmc/comm/comm.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <sstream>
#include <type_traits>
#include <utility>

#include "llmc/comm/agreement.h"
#include "llmc/comm/backend.h"
#include "llmc/kernels/elementwise.h"

namespace llmc {

struct Comm::State {
    int rank = 0, world = 1;
    int local_rank = 0, local_world = 1;
    std::vector<std::string> hosts;                 // by rank
    std::vector<std::pair<int, pid_t>> neighbours;  // MPI: the other ranks of this machine with their process ids
    std::string group = "world";
    const char* planned = nullptr;  // the back-end that is planned for; its collectives throw
    bool nccl = false;              // true if attach_device() must create NCCL's back-end
    ReduceOrder order = ReduceOrder::any;
    std::shared_ptr<OperationLog> log = std::make_shared<OperationLog>();
    std::shared_ptr<PeerWaits> waits = std::make_shared<PeerWaits>(log);
    std::shared_ptr<HostExchange> exchange;     // shared by all communicators of the process
    std::shared_ptr<Transport> transport;       // nullptr for one rank
    std::shared_ptr<Backend> backend;           // nullptr for one rank, or for NCCL before attach_device()
    std::vector<std::shared_ptr<State>> parts;  // communicators split off before attach_device()
    std::shared_ptr<CollectiveChain> chain;     // keeps NCCL's collectives in order; shared by all communicators
    std::shared_ptr<BackendList> backends;      // all communicators of the process
    int group_depth = 0;
    Traffic traffic;

    size_t others() const { return static_cast<size_t>(world - 1); }
    Backend& device() const {
        if (planned) throw Error(ExitCode::failure, "a planned communicator cannot communicate");
        if (!backend) throw Error(ExitCode::failure, "attach_device() has to come before the first device collective");
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
        if (group_depth) throw Error(ExitCode::failure, "{} cannot be part of a Group", what);
    }
    // Runs a collective on host memory after everything submitted so far, in the same order as on every other rank.
    template <class Function>
    void on_host(const char* what, size_t sent, Function function) const {
        Transport& t = control();
        exchange->drain();
        const uint64_t sequence = log->begin(what, group, sent);
        function(t);
        log->end(sequence);
    }
    void meet_neighbours(Transport& transport);
    void attach() {
        if (nccl && !backend && world > 1) {
            backend = make_nccl_backend(control(), log, waits, group, chain);
            backends->add(backend);
        }
        for (const auto& part : parts) part->attach();
    }
};

namespace {

std::string host_name() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes of a piece on the wire.
size_t piece_bytes(size_t count, Wire wire) {
    if (wire == Wire::fp8) return Fp8Piece{count}.bytes();
    return count * (wire == Wire::bf16 ? sizeof(bf16) : sizeof(float));
}

}  // namespace

// ---- making one ----------------------------------------------------------------------------------------------------

Comm Comm::self(ReduceOrder order) {
    auto state = std::make_shared<State>();
    state->order = order;
    state->hosts = {host_name()};
    return Comm(state);
}

Comm Comm::planned(int world, const std::string& backend, ReduceOrder order) {
    Comm comm = self(order);
    if (world > 1) {
        comm.state_->world = comm.state_->local_world = world;
        comm.state_->planned = backend == "nccl" ? "nccl" : "mpi";
        comm.state_->hosts.resize(static_cast<size_t>(world), "planned");
    }
    return comm;
}

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

// Finds the ranks that share this machine.
void Comm::State::meet_neighbours(Transport& transport) {
    const Identity mine = own_identity();
    const bool mpi = std::strcmp(transport.name(), "mpi") == 0;
    std::vector<Identity> all(static_cast<size_t>(transport.world()));
    transport.all_gather(all.data(), &mine, sizeof mine);
    all[static_cast<size_t>(transport.rank())] = mine;  // whatever rank 0 sent back, at least one rank is here
    local_rank = local_world = 0;
    hosts.clear();
    for (int r = 0; r < transport.world(); r++) {
        const Identity& other = all[r];
        hosts.push_back(peer_text(other.host, sizeof other.host));
        if (!same_text(other.host, mine.host) || !same_text(other.boot, mine.boot)) continue;
        local_world++;
        if (r < transport.rank()) local_rank++;
        if (mpi && r != transport.rank() && other.pid > 0 && same_text(other.pid_namespace, mine.pid_namespace))
            neighbours.emplace_back(r, static_cast<pid_t>(other.pid));
    }
}

Comm connect_transport(std::shared_ptr<Transport> transport, bool nccl, ReduceOrder order) {
    auto state = std::make_shared<Comm::State>();
    state->rank = transport->rank();
    state->world = transport->world();
    state->meet_neighbours(*transport);
    state->order = order;
    state->nccl = nccl;
    state->exchange = std::make_shared<HostExchange>();
    state->transport = std::move(transport);
    state->chain = std::make_shared<CollectiveChain>();
    state->backends = std::make_shared<BackendList>();
    if (!nccl) state->backend = make_host_backend(state->transport, state->exchange, state->log, state->group);
    return Comm(state);
}

Comm Comm::split(int color, const std::string& label) const {
    const State& s = *state_;
    auto part = std::make_shared<State>();
    part->group = label;
    part->order = s.order;
    part->log = s.log;
    part->waits = s.waits;
    part->hosts = {s.hosts[s.rank]};
    if (!s.transport) {
        if (s.planned) throw Error(ExitCode::failure, "a planned communicator cannot be split by color");
        return Comm(part);
    }
    s.on_host("split", 0, [&](Transport& transport) { part->transport = transport.split(color); });
    part->rank = part->transport->rank();
    part->world = part->transport->world();
    part->nccl = s.nccl;
    part->exchange = s.exchange;
    part->chain = s.chain;
    part->backends = s.backends;
    part->meet_neighbours(*part->transport);
    if (!s.nccl)
        part->backend = make_host_backend(part->transport, part->exchange, part->log, label);
    else if (s.backend)
        part->attach();
    else
        state_->parts.push_back(part);
    return Comm(part);
}

static void require_division(int world, int n) {
    if (n < 1 || world % n != 0)
        throw Error(ExitCode::bad_flags,
                    "{} ranks cannot be divided into groups of {}; the size of a group must divide the number of ranks",
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

// ---- who -----------------------------------------------------------------------------------------------------------

int Comm::rank() const { return state_->rank; }
int Comm::world() const { return state_->world; }
int Comm::local_rank() const { return state_->local_rank; }
int Comm::local_world() const { return state_->local_world; }
const std::string& Comm::host(int rank) const { return state_->hosts.at(rank); }
ReduceOrder Comm::reduce_order() const { return state_->order; }
const Traffic& Comm::traffic() const { return state_->traffic; }
void Comm::reset_traffic() const { state_->traffic = {}; }
OperationLog& Comm::log() const { return *state_->log; }
PeerWaits& Comm::waits() const { return *state_->waits; }

void Comm::wait_for_peers(stream_t stream, event_t event) const {
    state_->waits->begin(stream);
    wait(stream, event);
    state_->waits->end(stream);
}

const char* Comm::name() const {
    if (state_->planned) return state_->planned;
    if (state_->nccl) return "nccl";
    return state_->transport ? state_->transport->name() : "self";
}

// ---- device collectives --------------------------------------------------------------------------------------------

void Comm::all_gather(void* out, const void* in, size_t bytes, stream_t stream) const {
    State& s = *state_;
    s.count(s.traffic.all_gather, s.others() * bytes);
    if (bytes == 0) return;
    if (s.world == 1) {
        if (out != in) copy_on_device(out, in, bytes, stream);
        return;
    }
    s.device().all_gather(out, in, bytes, "all_gather", stream);
}

void Comm::all_to_all(void* out, const void* in, size_t bytes, stream_t stream) const {
    State& s = *state_;
    if (out == in && bytes) throw Error(ExitCode::failure, "all_to_all cannot work in place");
    s.count(s.traffic.all_to_all, s.others() * bytes);
    if (bytes == 0) return;
    if (s.world == 1)
        copy_on_device(out, in, bytes, stream);
    else
        s.device().all_to_all(out, in, bytes, "all_to_all", stream);
}

void Comm::all_to_all_v(void* out, const std::vector<size_t>& receive, const void* in, const std::vector<size_t>& send,
                        stream_t stream) const {
    State& s = *state_;
    const size_t ranks = static_cast<size_t>(s.world), me = static_cast<size_t>(s.rank);
    if (receive.size() != ranks || send.size() != ranks || receive[me] != send[me])
        throw Error(
            ExitCode::failure, "all_to_all_v: sizes of {} and {} pieces, own ones of {} and {} bytes, for {} ranks",
            receive.size(), send.size(), receive.size() > me ? receive[me] : 0, send.size() > me ? send[me] : 0, ranks);
    const size_t total = std::accumulate(send.begin(), send.end(), size_t{0});
    if (out == in && total) throw Error(ExitCode::failure, "all_to_all_v cannot work in place");
    s.count(s.traffic.all_to_all, total - send[me]);
    if (s.world > 1)
        s.device().all_to_all_v(out, receive, in, send, stream);
    else if (total > 0)
        copy_on_device(out, in, total, stream);
}

void Comm::broadcast(void* data, size_t bytes, int root, stream_t stream) const {
    State& s = *state_;
    if (root < 0 || root >= s.world)
        throw Error(ExitCode::failure, "broadcast from rank {} of {} ranks", root, s.world);
    s.count(s.traffic.broadcast, s.rank == root ? s.others() * bytes : 0);
    if (bytes && s.world > 1) s.device().broadcast(data, bytes, root, stream);
}

size_t Comm::reduce_scatter_workspace(size_t count, Wire wire, bool accumulate) const {
    const State& s = *state_;
    if (s.world == 1 || count == 0) return 0;
    const size_t pieces = aligned(piece_bytes(count, wire) * static_cast<size_t>(s.world));
    if (wire != Wire::fp32) return 2 * pieces;  // pieces as sent and as received
    if (s.library_reduces()) return accumulate ? aligned(count * sizeof(float)) : 0;
    return pieces;
}

void Comm::reduce_scatter(float* out, const float* in, size_t count, Wire wire, bool accumulate, void* workspace,
                          stream_t stream, const Feedback& feedback) const {
    State& s = *state_;
    const size_t bytes = piece_bytes(count, wire);
    s.count(s.traffic.reduce_scatter, s.others() * bytes);
    if (count == 0) return;
    if (s.world == 1) {
        if (accumulate)
            add(out, out, in, count, stream);
        else if (out != in)
            copy_on_device(out, in, count * sizeof(float), stream);
        return;
    }
    if (!workspace && reduce_scatter_workspace(count, wire, accumulate) > 0)
        throw Error(ExitCode::failure, "reduce_scatter needs its workspace");
    if (wire == Wire::fp32 && s.library_reduces()) {
        float* sum = accumulate ? static_cast<float*>(workspace) : out;
        s.device().reduce_scatter(sum, in, count, stream);
        if (accumulate) add(out, out, sum, count, stream);
        return;
    }
    s.refuse_group("a reduction in rank order");
    if (wire == Wire::fp32) {
        float* pieces = static_cast<float*>(workspace);
        s.device().all_to_all(pieces, in, bytes, "reduce_scatter", stream);
        sum_pieces(out, pieces, s.world, count, accumulate, stream);
        return;
    }
    const size_t ranks = static_cast<size_t>(s.world);
    uint8_t* sent = static_cast<uint8_t*>(workspace);
    uint8_t* pieces = sent + aligned(bytes * ranks);
    if (wire == Wire::fp8)
        cast_pieces(sent, in, s.world, count, feedback, stream);
    else
        cast<bf16, float>(reinterpret_cast<bf16*>(sent), in, count * ranks, stream);
    s.device().all_to_all(pieces, sent, bytes, "reduce_scatter", stream);
    if (wire == Wire::fp8)
        sum_fp8_pieces(out, pieces, s.world, count, accumulate, stream);
    else
        sum_pieces(out, reinterpret_cast<const bf16*>(pieces), s.world, count, accumulate, stream);
}

template <class T>
static constexpr ElementType element_type() {
    if constexpr (std::is_same_v<T, float>) return ElementType::f32;
    if constexpr (std::is_same_v<T, double>) return ElementType::f64;
    if constexpr (std::is_same_v<T, int32_t>) return ElementType::i32;
    if constexpr (std::is_same_v<T, uint32_t>) return ElementType::u32;
    if constexpr (std::is_same_v<T, uint64_t>) return ElementType::u64;
}

template <class T>
size_t Comm::all_reduce_workspace(size_t count) const {
    const State& s = *state_;
    return s.world == 1 || s.library_reduces() ? 0 : aligned(count * static_cast<size_t>(s.world) * sizeof(T));
}

template <class T>
void Comm::all_reduce(T* data, size_t count, ReduceOp op, void* workspace, stream_t stream) const {
    State& s = *state_;
    const size_t bytes = count * sizeof(T);
    const bool library = s.world > 1 && s.library_reduces();
    s.count(s.traffic.all_reduce, library ? 2 * bytes * s.others() / static_cast<size_t>(s.world) : s.others() * bytes);
    if (count == 0 || s.world == 1) return;
    if (library) return s.device().all_reduce(data, count, element_type<T>(), op, stream);
    s.refuse_group("a reduction in rank order");
    if (!workspace) throw Error(ExitCode::failure, "all_reduce needs its workspace");
    T* pieces = static_cast<T*>(workspace);
    s.device().all_gather(pieces, data, bytes, "all_reduce", stream);
    reduce_pieces(data, pieces, s.world, count, op, stream);
}

template size_t Comm::all_reduce_workspace<float>(size_t) const;
template size_t Comm::all_reduce_workspace<double>(size_t) const;
template size_t Comm::all_reduce_workspace<int32_t>(size_t) const;
template size_t Comm::all_reduce_workspace<uint32_t>(size_t) const;
template size_t Comm::all_reduce_workspace<uint64_t>(size_t) const;
template void Comm::all_reduce<float>(float*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<double>(double*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<int32_t>(int32_t*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<uint32_t>(uint32_t*, size_t, ReduceOp, void*, stream_t) const;
template void Comm::all_reduce<uint64_t>(uint64_t*, size_t, ReduceOp, void*, stream_t) const;

Comm::Group::Group(const Comm& comm) : comm_(comm), exceptions_(std::uncaught_exceptions()) {
    State& s = *comm_.state_;
    if (s.group_depth++ == 0 && s.backend) s.backend->begin_group();
}
Comm::Group::~Group() noexcept(false) {
    State& s = *comm_.state_;
    if (--s.group_depth > 0 || !s.backend) return;
    if (std::uncaught_exceptions() > exceptions_) {
        try {
            s.backend->end_group();
        } catch (const Error&) {  // the first error is the one to report
        }
        return;
    }
    s.backend->end_group();
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

namespace {

// The first line in which two texts differ: "'a' against 'b'". A missing line counts as empty.
std::string first_difference(const std::string& a, const std::string& b) {
    std::istringstream lines_a(a), lines_b(b);
    std::string line_a, line_b;
    do {
        if (!std::getline(lines_a, line_a)) line_a.clear();
        if (!std::getline(lines_b, line_b)) line_b.clear();
    } while (line_a == line_b && (lines_a || lines_b));
    return fmt::format("'{}' against '{}'", line_a.substr(0, 200), line_b.substr(0, 200));
}

}  // namespace

void Comm::require_equal(const std::string& what, const std::string& text) const {
    if (world() == 1) return;
    const std::string reference = broadcast_text(*this, text);
    char mine[1024] = "";
    if (text != reference)
        std::snprintf(mine, sizeof mine, "rank %d on %s has another %s than rank 0: %s", rank(), host(rank()).c_str(),
                      what.c_str(), first_difference(text, reference).c_str());
    std::vector<char> all(sizeof mine * static_cast<size_t>(world()));
    host_all_gather(all.data(), mine, sizeof mine);
    int different = 0;
    std::string message;
    for (int r = 0; r < world(); r++) {
        const char* one = all.data() + sizeof mine * static_cast<size_t>(r);
        if (!*one) continue;
        if (!different++) message = peer_text(one, sizeof mine);
    }
    if (!different) return;
    if (different > 1) message += fmt::format(" (and {} more ranks)", different - 1);
    throw Error(ExitCode::bad_flags, message + "; start every rank with the same program and the same flags");
}

// ---- life ----------------------------------------------------------------------------------------------------------

void Comm::attach_device() const {
    State& s = *state_;
    if (s.nccl && s.world > 1 && !s.backend) {
        char mine[64] = "";
        std::snprintf(mine, sizeof mine, "%s", device_identity().c_str());
        std::vector<char> all(sizeof mine * static_cast<size_t>(s.world));
        host_all_gather(all.data(), mine, sizeof mine);
        std::map<std::string, int> owners;
        for (int r = 0; r < s.world; r++) {
            const std::string gpu = peer_text(all.data() + sizeof mine * static_cast<size_t>(r), sizeof mine);
            const auto [other, fresh] = owners.emplace(host(r) + " GPU " + gpu, r);
            if (!fresh)
                throw Error(ExitCode::bad_flags,
                            "ranks {} and {} share one GPU ({}), which NCCL does not allow: start one rank a GPU, or "
                            "use --comm mpi",
                            other->second, r, other->first);
        }
    }
    s.attach();
}

void Comm::finish() const {
    const State& s = *state_;
    if (!s.transport) return;
    s.exchange->drain();
    s.log->set_finishing();
    s.transport->barrier();
    s.transport->finish();
}

std::string Comm::failure() const {
    const State& s = *state_;
    if (!s.transport || s.log->finishing()) return {};
    // Looks only at the world's connections: those of a split also close when a rank is done with it.
    if (const int lost = s.transport->lost_peer(); lost >= 0)
        return fmt::format("rank {} on {} is gone: its connection was closed", lost, host(lost));
    return s.backends->failure();
}

std::string Comm::ended_neighbour() const {
    const State& s = *state_;
    if (!s.transport || s.log->finishing()) return {};
    for (const auto& [rank, pid] : s.neighbours)
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return fmt::format("rank {} on {} is gone: its process {} has ended", rank, host(rank), pid);
    return {};
}

}  // namespace llmc
