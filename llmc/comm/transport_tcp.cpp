// The transport over TCP: a star with rank 0 as the hub. Everything goes through the hub, which makes it simple and
// slow. Ranks started without mpirun meet this way (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Between GPUs NCCL then
// moves the data, and this transport only the hosts' messages.
//
// In every collective each rank sends one message to the hub, and the hub sends one to each. A message begins with its
// kind, so ranks that are out of step get an error instead of wrong data.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "llmc/comm/backend.h"
#include "llmc/comm/tcp.h"

namespace llmc {
namespace {

enum class Kind : uint32_t { all_gather = 1, all_to_all_v, broadcast, barrier, failed };

const char* kind_name(Kind kind) {
    static const char* const names[] = {"all_gather", "all_to_all_v", "broadcast", "barrier", "failed"};
    const uint32_t n = static_cast<uint32_t>(kind);
    return n >= 1 && n <= std::size(names) ? names[n - 1] : "an unknown operation";
}

constexpr uint32_t kFrameMagic = 0x4C4D4D43;

struct Header {
    uint32_t magic = kFrameMagic;
    Kind kind = {};  // any number, if another program sent it
    uint64_t sequence = 0;
    uint64_t bytes = 0;
};

struct Address {
    char host[256] = "";  // names have at most 253 characters
    int32_t port = 0;
};

class TcpTransport final : public Transport {
public:
    TcpTransport(int rank, TcpMeeting meeting) : rank_(rank), world_(meeting.world), meeting_(std::move(meeting)) {}

    const char* name() const override { return "tcp"; }
    int rank() const override { return rank_; }
    int world() const override { return world_; }

    // ---- meeting ----

    // Rank 0 passes the listener to which the others connect.
    void meet(TcpSocket listener);
    // Tells all ranks the addresses of each other: for a spoke the address that the hub sees, for the hub that of the
    // meeting. Also draws the secret with which communicators split from this one meet.
    void prepare_split();

    // ---- collectives ----

    void all_gather(void* out, const void* in, size_t bytes) override { gather(Kind::all_gather, out, in, bytes); }
    void barrier() override { gather(Kind::barrier, nullptr, nullptr, 0); }

    // A rank first tells the hub the sizes of its pieces; the pieces follow.
    void all_to_all_v(void* out, const std::vector<size_t>& receive_sizes, const void* in,
                      const std::vector<size_t>& send_sizes) override {
        const auto total = [](const std::vector<size_t>& sizes) {
            return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        };
        const size_t table_bytes = world_ * sizeof(size_t);
        run([&] {
            if (rank_ != 0) {
                send(0, Kind::all_to_all_v, send_sizes.data(), table_bytes);
                send(0, Kind::all_to_all_v, in, total(send_sizes));
                return receive(0, Kind::all_to_all_v, out, total(receive_sizes));
            }
            std::vector<std::vector<size_t>> sizes(world_, send_sizes);  // by sender
            std::vector<std::vector<char>> rows(world_);
            rows[0].assign(static_cast<const char*>(in), static_cast<const char*>(in) + total(send_sizes));
            for (int r = 1; r < world_; r++) {
                receive(r, Kind::all_to_all_v, sizes[r].data(), table_bytes);
                require_possible(r, sizes[r], receive_sizes[r]);
                receive_row(r, rows[r], total(sizes[r]));
            }
            deal(out, rows, sizes);
        });
    }

    void broadcast(void* data, size_t bytes, int root) override {
        run([&] {
            if (rank_ != 0 && rank_ == root) return send(0, Kind::broadcast, data, bytes);
            if (rank_ != 0) return receive(0, Kind::broadcast, data, bytes);
            if (root != 0) receive(root, Kind::broadcast, data, bytes);
            for (int r = 1; r < world_; r++)
                if (r != root) send(r, Kind::broadcast, data, bytes);
        });
    }

    std::shared_ptr<Transport> split(int color) override;

    int lost_peer() override {
        for (int r = 0; r < world_; r++)
            if (r != rank_ && (rank_ == 0 || r == 0) && peers_[r].peer_closed()) return r;
        return -1;
    }
    void finish() override {}

private:
    // If the hub fails, it tells the other ranks the reason, so that all report the same error.
    template <class Collective>
    void run(const Collective& collective) {
        sequence_++;
        try {
            collective();
        } catch (const Error& error) {
            if (rank_ == 0) tell_failure(error.what());
            throw;
        }
    }

    // Every rank gets the `in` of all ranks.
    void gather(Kind kind, void* out, const void* in, size_t bytes) {
        char* all = static_cast<char*>(out);
        run([&] {
            if (rank_ != 0) {
                send(0, kind, in, bytes);
                return receive(0, kind, all, world_ * bytes);
            }
            if (in != all) std::memcpy(all, in, bytes);
            for (int r = 1; r < world_; r++) receive(r, kind, all + r * bytes, bytes);
            for (int r = 1; r < world_; r++) send(r, kind, all, world_ * bytes);
        });
    }

    // For the hub in all_to_all_v: rows[r] are the pieces of rank r for every rank, of sizes[r] bytes. Sends every rank
    // its pieces, and leaves rank 0's in `out`.
    void deal(void* out, const std::vector<std::vector<char>>& rows, const std::vector<std::vector<size_t>>& sizes) {
        std::vector<size_t> dealt(world_);
        for (int to = 0; to < world_; to++) {
            std::vector<char> column;
            for (int from = 0; from < world_; from++) {
                const char* piece = rows[from].data() + dealt[from];
                column.insert(column.end(), piece, piece + sizes[from][to]);
                dealt[from] += sizes[from][to];
            }
            if (to > 0)
                send(to, Kind::all_to_all_v, column.data(), column.size());
            else
                std::copy(column.begin(), column.end(), static_cast<char*>(out));
        }
    }

    void send(int to, Kind kind, const void* data, size_t bytes) {
        const Header header{.kind = kind, .sequence = sequence_, .bytes = bytes};
        TcpSocket& peer = peers_[to];
        if (!peer.send(&header, sizeof header) || !peer.send(data, bytes)) lost(to, kind);
    }

    void receive(int from, Kind kind, void* data, size_t bytes) {
        receive_header(from, kind, bytes);
        if (!peers_[from].receive(data, bytes)) lost(from, kind);
    }

    // For a row of all_to_all_v, whose size its sender stated. Memory grows with the bytes that arrive.
    void receive_row(int from, std::vector<char>& row, size_t bytes) {
        receive_header(from, Kind::all_to_all_v, bytes);
        for (size_t at = 0; at < bytes; at = row.size()) {
            row.resize(std::min(bytes, at + (size_t{16} << 20)));
            if (!peers_[from].receive(row.data() + at, row.size() - at)) lost(from, Kind::all_to_all_v);
        }
    }

    // Checks the sizes that rank `from` announces: rank 0's piece must have `to_hub` bytes, and no sum may overflow.
    static void require_possible(int from, const std::vector<size_t>& sizes, size_t to_hub) {
        constexpr size_t kMost = size_t{1} << 44;  // bytes that a rank may send at once
        size_t sum = 0;
        for (const size_t bytes : sizes) sum = std::min(kMost, bytes) + std::min(kMost, sum);
        if (sizes[0] != to_hub || sum >= kMost)
            throw Error(
                ExitCode::communication,
                "ranks are out of step: rank {} has {} bytes for rank 0, which expects {}, and {}{} bytes in all", from,
                sizes[0], to_hub, sum >= kMost ? "at least " : "", std::min(sum, kMost));
    }

    void receive_header(int from, Kind kind, size_t bytes) {
        Header header;
        TcpSocket& peer = peers_[from];
        if (!peer.receive(&header, sizeof header)) lost(from, kind);
        if (header.magic == kFrameMagic && header.kind == Kind::failed) {
            char text[1000] = "";
            const size_t size = std::min<uint64_t>(header.bytes, sizeof text);
            if (!peer.receive(text, size)) lost(from, kind);
            throw Error(ExitCode::communication, peer_text(text, size));
        }
        if (header.magic != kFrameMagic || header.kind != kind || header.sequence != sequence_ || header.bytes != bytes)
            throw Error(ExitCode::communication,
                        "ranks are out of step: rank {} is in {} #{} of {} bytes, rank {} in {} #{} of {} bytes", rank_,
                        kind_name(kind), sequence_, bytes, from, kind_name(header.kind), header.sequence, header.bytes);
    }

    [[noreturn]] void lost(int rank, Kind kind) {
        throw Error(ExitCode::communication, "rank {} was lost during {} #{}: {}", rank, kind_name(kind), sequence_,
                    peers_[rank].error());
    }

    void tell_failure(const std::string& text) {
        const Header header{.kind = Kind::failed, .sequence = sequence_, .bytes = text.size()};
        std::string message(reinterpret_cast<const char*>(&header), sizeof header);
        message += text;
        for (TcpSocket& peer : peers_)
            if (peer.open()) peer.send_without_waiting(message.data(), message.size());
    }

    int rank_, world_;
    TcpMeeting meeting_;
    uint64_t sequence_ = 0;
    std::vector<TcpSocket> peers_;    // hub: the sockets of all other ranks; others: only [0]
    std::vector<Address> addresses_;  // by rank
};

void TcpTransport::meet(TcpSocket listener) {
    if (rank_ != 0) {
        peers_.push_back(meet_as_spoke(rank_, meeting_));
        return;
    }
    try {
        meet_as_hub(std::move(listener), meeting_, peers_);
    } catch (const Error& error) {
        tell_failure(error.what());
        throw;
    }
}

void TcpTransport::prepare_split() {
    addresses_.resize(world_);
    for (int r = 0; r < world_ && rank_ == 0; r++) {
        const TcpSocket& peer = peers_[r];
        const std::string host = r == 0 || peer.peer_is_this_machine() ? meeting_.address.host : peer.peer_address();
        std::snprintf(addresses_[r].host, sizeof Address::host, "%s", host.c_str());
    }
    broadcast(addresses_.data(), sizeof(Address) * addresses_.size(), 0);
    std::string drawn = random_bytes(32);
    broadcast(drawn.data(), drawn.size(), 0);
    meeting_.secret += drawn;
}

// The lowest rank of each color becomes the hub of that color's own star.
std::shared_ptr<Transport> TcpTransport::split(int color) {
    std::vector<int> colors(world_), members;
    all_gather(colors.data(), &color, sizeof color);
    if (colors[rank_] != color)
        throw Error(ExitCode::communication, "rank 0 sent colors that are not those of the ranks (split)");
    for (int r = 0; r < world_; r++)
        if (colors[r] == color) members.push_back(r);
    const int place = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());

    TcpSocket listener;
    Address mine = addresses_[rank_];
    if (place == 0) {
        listener = TcpSocket::listen(peer_text(mine.host, sizeof mine.host), 0);
        mine.port = listener.port();
    }
    std::vector<Address> all(world_);
    all_gather(all.data(), &mine, sizeof mine);
    const Address& hub = all[members[0]];
    TcpMeeting meeting = meeting_;
    meeting.world = static_cast<int>(members.size());
    meeting.address = {peer_text(hub.host, sizeof hub.host), hub.port};
    auto part = std::make_shared<TcpTransport>(place, std::move(meeting));
    for (const int member : members) part->addresses_.push_back(addresses_[member]);
    part->meet(std::move(listener));
    return part;
}

void warn_of_strangers(const TcpMeeting& meeting, const TcpSocket& listener) {
    const std::string address = listener.local_address();
    if (address == "::" || address == "0.0.0.0")
        std::fprintf(stderr,
                     "warning: MASTER_ADDR=%s does not name a network interface of this machine, so rank 0 listens on "
                     "all of them\n",
                     meeting.address.host.c_str());
    if (meeting.secret.empty() && !is_loopback(address))
        std::fprintf(
            stderr,
            "warning: every process that reaches port %d of this machine can join the run; set LLMC_SECRET to the "
            "same text on all ranks to keep others out\n",
            meeting.address.port);
}

}  // namespace

std::shared_ptr<Transport> make_tcp_transport(int rank, const TcpMeeting& meeting) {
    TcpSocket listener;
    if (rank == 0) {
        listener = TcpSocket::listen(meeting.address.host, meeting.address.port);
        warn_of_strangers(meeting, listener);
    }
    auto transport = std::make_shared<TcpTransport>(rank, meeting);
    transport->meet(std::move(listener));
    transport->prepare_split();
    return transport;
}

}  // namespace llmc
