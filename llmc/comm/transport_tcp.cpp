// The transport over TCP: a star. Rank 0 is the hub; everything goes through it, which makes it simple and slow. It is
// how ranks that no mpirun started meet (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); between GPUs NCCL then does the
// work, and this carries what the hosts have to say to each other.
//
// In every collective each rank sends one message to the hub, and the hub one to each. A message begins with what it
// is: ranks out of step are reported, not mixed up.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "llmc/comm/backend.h"
#include "llmc/comm/tcp_socket.h"

namespace llmc {
namespace {

enum class Kind : uint32_t { all_gather = 1, all_to_all, broadcast, barrier, failed, all_to_all_v };

const char* kind_name(uint32_t kind) {
    static const char* const names[] = {"all_gather", "all_to_all", "broadcast", "barrier", "failed", "all_to_all_v"};
    return kind >= 1 && kind <= 6 ? names[kind - 1] : "nothing known";
}

struct Header {
    uint32_t magic = 0x4C4D4D43;
    uint32_t kind = 0;
    uint64_t sequence = 0;
    uint64_t bytes = 0;
};

struct Hello {
    char magic[8] = {'L', 'L', 'M', 'C', 'r', 'k', '0', '1'};
    int32_t rank = 0, world = 0;
};

struct Address {
    char host[64] = "";
    int32_t port = 0;
};

size_t as_size(int n) { return static_cast<size_t>(n); }

class TcpTransport final : public Transport {
public:
    TcpTransport(int rank, int world, double timeout) : rank_(rank), world_(world), timeout_(timeout) {}

    const char* name() const override { return "tcp"; }
    int rank() const override { return rank_; }
    int world() const override { return world_; }

    // ---- meeting ----

    void meet_as_hub(TcpSocket listener);
    void meet_as_spoke(const TcpAddress& address);
    // How the others can reach each rank: as the hub sees it, and the hub itself by the address it was called by.
    void share_addresses(const std::string& hub_address);

    // ---- collectives ----

    void all_gather(void* out, const void* in, size_t bytes) override {
        char* all = static_cast<char*>(out);
        const auto hub = [&] {
            if (in != all) std::memcpy(all, in, bytes);
            for (int r = 1; r < world_; r++) receive(r, Kind::all_gather, all + as_size(r) * bytes, bytes);
            for (int r = 1; r < world_; r++) send(r, Kind::all_gather, all, as_size(world_) * bytes);
        };
        const auto spoke = [&] {
            send(0, Kind::all_gather, in, bytes);
            receive(0, Kind::all_gather, all, as_size(world_) * bytes);
        };
        run(hub, spoke);
    }

    void all_to_all(void* out, const void* in, size_t bytes) override {
        const size_t row = as_size(world_) * bytes;
        const auto hub = [&] {
            std::vector<char> all(as_size(world_) * row), column(row);
            std::memcpy(all.data(), in, row);
            for (int r = 1; r < world_; r++) receive(r, Kind::all_to_all, all.data() + as_size(r) * row, row);
            for (int to = 0; to < world_; to++) {
                char* target = to == 0 ? static_cast<char*>(out) : column.data();
                for (int from = 0; from < world_; from++)
                    std::memcpy(target + as_size(from) * bytes, &all[as_size(from) * row + as_size(to) * bytes], bytes);
                if (to > 0) send(to, Kind::all_to_all, column.data(), row);
            }
        };
        const auto spoke = [&] {
            send(0, Kind::all_to_all, in, row);
            receive(0, Kind::all_to_all, out, row);
        };
        run(hub, spoke);
    }

    // A rank tells the hub how much it has for each, and what each is to get follows.
    void all_to_all_v(void* out, const std::vector<size_t>& receive_sizes, const void* in,
                      const std::vector<size_t>& send_sizes) override {
        const auto total = [](const std::vector<size_t>& sizes) {
            return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        };
        const size_t table_bytes = as_size(world_) * sizeof(size_t);
        const auto hub = [&] {
            std::vector<std::vector<size_t>> sizes(as_size(world_), send_sizes);  // by sender
            std::vector<std::vector<char>> rows(as_size(world_));
            rows[0].assign(static_cast<const char*>(in), static_cast<const char*>(in) + total(send_sizes));
            for (int r = 1; r < world_; r++) {
                receive(r, Kind::all_to_all_v, sizes[as_size(r)].data(), table_bytes);
                rows[as_size(r)].resize(total(sizes[as_size(r)]));
                receive(r, Kind::all_to_all_v, rows[as_size(r)].data(), rows[as_size(r)].size());
            }
            std::vector<size_t> sent(as_size(world_));
            for (int to = 0; to < world_; to++) {
                std::vector<char> column;
                for (size_t from = 0; from < as_size(world_); from++) {
                    const auto begin = rows[from].begin() + static_cast<ptrdiff_t>(sent[from]);
                    const size_t bytes = sizes[from][as_size(to)];
                    column.insert(column.end(), begin, begin + static_cast<ptrdiff_t>(bytes));
                    sent[from] += bytes;
                }
                if (to > 0)
                    send(to, Kind::all_to_all_v, column.data(), column.size());
                else if (column.size() == total(receive_sizes))
                    std::copy(column.begin(), column.end(), static_cast<char*>(out));
                else
                    throw Error(ExitCode::communication,
                                strprintf("ranks are out of step: they have %zu bytes for rank 0, which expects %zu",
                                          column.size(), total(receive_sizes)));
            }
        };
        const auto spoke = [&] {
            send(0, Kind::all_to_all_v, send_sizes.data(), table_bytes);
            send(0, Kind::all_to_all_v, in, total(send_sizes));
            receive(0, Kind::all_to_all_v, out, total(receive_sizes));
        };
        run(hub, spoke);
    }

    void broadcast(void* data, size_t bytes, int root) override {
        const auto hub = [&] {
            if (root != 0) receive(root, Kind::broadcast, data, bytes);
            for (int r = 1; r < world_; r++)
                if (r != root) send(r, Kind::broadcast, data, bytes);
        };
        const auto spoke = [&] {
            if (rank_ == root)
                send(0, Kind::broadcast, data, bytes);
            else
                receive(0, Kind::broadcast, data, bytes);
        };
        run(hub, spoke);
    }

    void barrier() override {
        const auto hub = [&] {
            for (int r = 1; r < world_; r++) receive(r, Kind::barrier, nullptr, 0);
            for (int r = 1; r < world_; r++) send(r, Kind::barrier, nullptr, 0);
        };
        const auto spoke = [&] {
            send(0, Kind::barrier, nullptr, 0);
            receive(0, Kind::barrier, nullptr, 0);
        };
        run(hub, spoke);
    }

    std::shared_ptr<Transport> split(int color) override;

    int lost_peer() override {
        for (int r = 0; r < world_; r++)
            if (r != rank_ && (rank_ == 0 || r == 0) && peers_[as_size(r)].peer_closed()) return r;
        return -1;
    }
    void finish() override {}

private:
    // A hub that fails tells the others why, so that each says the same.
    template <class Hub, class Spoke>
    void run(const Hub& hub, const Spoke& spoke) {
        sequence_++;
        if (rank_ != 0) return spoke();
        try {
            hub();
        } catch (const Error& error) {
            tell_failure(error.what());
            throw;
        }
    }

    void send(int to, Kind kind, const void* data, size_t bytes) {
        const Header header{Header{}.magic, static_cast<uint32_t>(kind), sequence_, bytes};
        TcpSocket& peer = peers_[as_size(to)];
        if (!peer.send(&header, sizeof header) || !peer.send(data, bytes)) lost(to, kind);
    }

    void receive(int from, Kind kind, void* data, size_t bytes) {
        Header header;
        TcpSocket& peer = peers_[as_size(from)];
        if (!peer.receive(&header, sizeof header)) lost(from, kind);
        if (header.magic == Header{}.magic && header.kind == static_cast<uint32_t>(Kind::failed)) {
            std::string text(std::min<uint64_t>(header.bytes, 1000), '\0');
            if (!peer.receive(text.data(), text.size())) lost(from, kind);
            throw Error(ExitCode::communication, text);
        }
        if (header.magic != Header{}.magic || header.kind != static_cast<uint32_t>(kind) ||
            header.sequence != sequence_ || header.bytes != bytes)
            throw Error(
                ExitCode::communication,
                strprintf("ranks are out of step: rank %d is in %s #%llu of %zu bytes, rank %d in %s #%llu of "
                          "%llu bytes",
                          rank_, kind_name(static_cast<uint32_t>(kind)), static_cast<unsigned long long>(sequence_),
                          bytes, from, kind_name(header.kind), static_cast<unsigned long long>(header.sequence),
                          static_cast<unsigned long long>(header.bytes)));
        if (!peer.receive(data, bytes)) lost(from, kind);
    }

    [[noreturn]] void lost(int rank, Kind kind) {
        throw Error(ExitCode::communication,
                    strprintf("rank %d was lost during %s #%llu: %s", rank, kind_name(static_cast<uint32_t>(kind)),
                              static_cast<unsigned long long>(sequence_), peers_[as_size(rank)].error().c_str()));
    }

    void tell_failure(const std::string& text) {
        const Header header{Header{}.magic, static_cast<uint32_t>(Kind::failed), sequence_, text.size()};
        std::string message(reinterpret_cast<const char*>(&header), sizeof header);
        message += text;
        for (TcpSocket& peer : peers_)
            if (peer.open()) peer.send_without_waiting(message.data(), message.size());
    }

    int rank_, world_;
    double timeout_;
    uint64_t sequence_ = 0;
    std::vector<TcpSocket> peers_;    // hub: of every other rank; others: [0] alone
    std::vector<Address> addresses_;  // of every rank
};

std::string list_missing(const std::vector<TcpSocket>& peers) {
    std::string text;
    int missing = 0;
    for (size_t r = 1; r < peers.size(); r++)
        if (!peers[r].open() && missing++ < 16) text += strprintf("%s%zu", text.empty() ? "" : ", ", r);
    if (missing > 16) text += strprintf(" and %d more", missing - 16);
    return (missing == 1 ? "rank " : "ranks ") + text;
}

void TcpTransport::meet_as_hub(TcpSocket listener) {
    const double start = monotonic_seconds();
    peers_.resize(as_size(world_));
    for (int present = 1; present < world_;) {
        TcpSocket socket = listener.accept(start + timeout_);
        if (!socket.open()) {
            const std::string text =
                strprintf("rank 0 waited %.1f s at port %d, and %s did not come", monotonic_seconds() - start,
                          listener.port(), list_missing(peers_).c_str());
            tell_failure(text);
            throw Error(ExitCode::communication, text);
        }
        Hello hello;
        const Hello ours;
        // Strangers at the port say nothing, or something else.
        socket.limit_receive(5);
        if (!socket.receive(&hello, sizeof hello) || std::memcmp(hello.magic, ours.magic, sizeof ours.magic) != 0)
            continue;
        socket.limit_receive(0);
        if (hello.world != world_ || hello.rank < 1 || hello.rank >= world_ || peers_[as_size(hello.rank)].open()) {
            const std::string text = strprintf(
                "a process came as rank %d of %d where rank 0 expects %d ranks, each once; "
                "RANK, WORLD_SIZE or MASTER_PORT is wrong",
                hello.rank, hello.world, world_);
            peers_.push_back(std::move(socket));
            tell_failure(text);
            throw Error(ExitCode::bad_flags, text);
        }
        peers_[as_size(hello.rank)] = std::move(socket);
        present++;
    }
}

void TcpTransport::meet_as_spoke(const TcpAddress& address) {
    const double start = monotonic_seconds();
    std::string error;
    peers_.resize(1);
    peers_[0] = TcpSocket::connect(address.host, address.port, start + timeout_, error);
    Hello hello;
    hello.rank = rank_;
    hello.world = world_;
    if (!peers_[0].open() || !peers_[0].send(&hello, sizeof hello))
        throw Error(
            ExitCode::communication,
            strprintf("rank %d could not reach rank 0 at %s, port %d: waited %.1f s, %s; is rank 0 running there, "
                      "are MASTER_ADDR and MASTER_PORT right, does a firewall block the port?",
                      rank_, address.host.c_str(), address.port, monotonic_seconds() - start, error.c_str()));
}

void TcpTransport::share_addresses(const std::string& hub_address) {
    addresses_.resize(as_size(world_));
    for (int r = 0; r < world_ && rank_ == 0; r++) {
        const TcpSocket& peer = peers_[as_size(r)];
        const std::string host = r == 0 || peer.peer_is_this_machine() ? hub_address : peer.peer_address();
        std::snprintf(addresses_[as_size(r)].host, sizeof Address::host, "%s", host.c_str());
    }
    broadcast(addresses_.data(), sizeof(Address) * addresses_.size(), 0);
}

// The lowest rank of each color becomes the hub of a star of its own.
std::shared_ptr<Transport> TcpTransport::split(int color) {
    std::vector<int> colors(as_size(world_)), members;
    all_gather(colors.data(), &color, sizeof color);
    for (int r = 0; r < world_; r++)
        if (colors[as_size(r)] == color) members.push_back(r);
    const int place = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());

    TcpSocket listener;
    Address mine = addresses_[as_size(rank_)];
    if (place == 0) {
        listener = TcpSocket::listen(0);
        mine.port = listener.port();
    }
    std::vector<Address> all(as_size(world_));
    all_gather(all.data(), &mine, sizeof mine);
    auto part = std::make_shared<TcpTransport>(place, static_cast<int>(members.size()), timeout_);
    for (const int member : members) part->addresses_.push_back(addresses_[as_size(member)]);
    const Address& hub = all[as_size(members[0])];
    if (place == 0)
        part->meet_as_hub(std::move(listener));
    else
        part->meet_as_spoke({hub.host, hub.port});
    return part;
}

}  // namespace

std::shared_ptr<Transport> make_tcp_transport(int rank, int world, const TcpAddress& address, double timeout) {
    auto transport = std::make_shared<TcpTransport>(rank, world, timeout);
    if (rank == 0)
        transport->meet_as_hub(TcpSocket::listen(address.port));
    else
        transport->meet_as_spoke(address);
    transport->share_addresses(address.host);
    return transport;
}

}  // namespace llmc
