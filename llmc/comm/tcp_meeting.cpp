// The messages of a meeting, and rank 0's and the other ranks' parts in it (tcp.h).
//
// All messages have a fixed size:
//
//   hub -> spoke   Challenge   a magic number and random bytes, sent when the connection is accepted
//   spoke -> hub   Hello       rank, world size, program, and an HMAC-SHA256 of these and the challenge
//   hub -> spoke   Verdict     empty: welcome; else the reason of the refusal
//
// The key of the HMAC is the secret, which is never sent: who reads the traffic learns nothing that admits another
// process. After the meeting, traffic is neither encrypted nor authenticated.
#include "llmc/comm/tcp.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/comm/backend.h"

namespace llmc {
namespace {

constexpr size_t kMostStrangers = 128;  // connections without a hello that are held at once, besides one for each rank
constexpr size_t kMostWarnings = 12;    // about rejected connections
constexpr char kMagic[8] = {'L', 'L', 'M', 'C', 'r', 'k', '0', '3'};

struct Challenge {
    char magic[8];
    char random[16];
};

struct Hello {
    char magic[8];
    int32_t rank, world;
    char program[32];
    unsigned char proof[32];
};

struct Verdict {
    char refusal[256];
};

void prove(Hello& hello, const std::string& secret, const Challenge& challenge) {
    unsigned char text[sizeof challenge + offsetof(Hello, proof)];
    std::memcpy(text, &challenge, sizeof challenge);
    std::memcpy(text + sizeof challenge, &hello, offsetof(Hello, proof));
    if (!HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text, sizeof text, hello.proof, nullptr))
        throw Error(ExitCode::failure,
                    "OpenSSL cannot compute HMAC-SHA256; is its configuration (OPENSSL_CONF) broken?");
}

// When a meeting that begins now has to be complete.
double deadline_of(const TcpMeeting& meeting) {
    return meeting.timeout > 0 ? monotonic_seconds() + meeting.timeout : kForever;
}

// Every rank takes one of rank 0's descriptors. The usual limit of 1024 may be raised to the hard limit.
void allow_many_descriptors() {
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

class Hub {
public:
    Hub(TcpSocket listener, const TcpMeeting& meeting, std::vector<TcpSocket>& peers)
        : listener_(std::move(listener)), meeting_(meeting), peers_(peers) {
        peers_.clear();
        peers_.resize(meeting.world);
        allow_many_descriptors();
    }

    void wait_for_all() {
        const double deadline = deadline_of(meeting_);
        while (missing() > 0) {
            if (monotonic_seconds() >= deadline) give_up();
            wait_for_something(guests_.empty() ? deadline : std::min(deadline, guests_.front().deadline));
            accept_guests();
            hear_guests();
            forget_lost_peers();
        }
    }

private:
    // A connection that has not identified itself yet.
    struct Guest {
        TcpSocket socket;
        std::string address;
        double deadline = 0;
        Challenge challenge = {};
        Hello hello = {};
        size_t received = 0;
    };

    int missing() const {
        return static_cast<int>(std::count_if(peers_.begin() + 1, peers_.end(), [](auto& p) { return !p.open(); }));
    }

    void wait_for_something(double deadline) const {
        std::vector<pollfd> wanted = {{listener_.descriptor(), POLLIN, 0}};
        for (const Guest& guest : guests_) wanted.push_back({guest.socket.descriptor(), POLLIN, 0});
        for (const TcpSocket& peer : peers_)
            if (peer.open()) wanted.push_back({peer.descriptor(), POLLRDHUP, 0});
        const double seconds = std::clamp(deadline - monotonic_seconds(), 0.0, 60.0);
        poll(wanted.data(), wanted.size(), static_cast<int>(seconds * 1e3) + 1);
    }

    void accept_guests() {
        while (true) {
            Guest guest;
            guest.socket = listener_.accept(guest.address);
            if (!guest.socket.open()) {
                // Perhaps no descriptor is free: without this pause the loop would keep a core busy.
                if (errno != EAGAIN && errno != EWOULDBLOCK) usleep(10'000);
                return;
            }
            if (guests_.size() >= peers_.size() + kMostStrangers) {
                turn_away(guests_.front(), "too many connections that do not say which rank they are");
                guests_.pop_front();
            }
            std::memcpy(guest.challenge.magic, kMagic, sizeof kMagic);
            random_bytes(sizeof guest.challenge.random).copy(guest.challenge.random, sizeof guest.challenge.random);
            guest.socket.send_without_waiting(&guest.challenge, sizeof guest.challenge);
            guest.deadline = monotonic_seconds() + meeting_.hello_limit;
            guests_.push_back(std::move(guest));
        }
    }

    void hear_guests() {
        std::deque<Guest> silent;
        for (Guest& guest : guests_) {
            char* const hello = reinterpret_cast<char*>(&guest.hello);
            const ptrdiff_t n = guest.socket.receive_available(hello + guest.received, sizeof(Hello) - guest.received);
            guest.received += static_cast<size_t>(std::max<ptrdiff_t>(n, 0));
            if (std::memcmp(hello, kMagic, std::min(guest.received, sizeof kMagic)) != 0)
                turn_away(guest, "it is not a rank of this program");
            else if (guest.received == sizeof(Hello))
                judge(guest);
            else if (n < 0)
                turn_away(guest, "it left without saying which rank it is");
            else if (monotonic_seconds() >= guest.deadline)
                turn_away(guest, fmt::format("it did not say within {:g} s which rank it is", meeting_.hello_limit));
            else
                silent.push_back(std::move(guest));
        }
        guests_ = std::move(silent);
    }

    void judge(Guest& guest) {
        Verdict verdict = {};
        const std::string refusal = refusal_of(guest);
        std::snprintf(verdict.refusal, sizeof verdict.refusal, "%s", refusal.c_str());
        guest.socket.send_without_waiting(&verdict, sizeof verdict);
        if (!refusal.empty()) return turn_away(guest, refusal);
        peers_[guest.hello.rank] = std::move(guest.socket);
    }

    // Why the guest is not a missing rank of this run, or "" if it is one. Checks its proof before anything else it
    // says.
    std::string refusal_of(const Guest& guest) const {
        const Hello& hello = guest.hello;
        Hello expected = hello;
        prove(expected, meeting_.secret, guest.challenge);
        if (CRYPTO_memcmp(hello.proof, expected.proof, sizeof expected.proof) != 0)
            return "its secret is not rank 0's: set LLMC_SECRET to the same text on all ranks (without it, the job id "
                   "of torchrun, mpirun or Slurm is the secret), or MASTER_PORT is another run's";
        if (hello.world != meeting_.world || hello.rank < 1 || hello.rank >= meeting_.world)
            return fmt::format(
                "it is rank {} of {}, but rank 0 expects {} ranks; RANK, WORLD_SIZE or MASTER_PORT is wrong",
                hello.rank, hello.world, meeting_.world);
        if (peer_text(hello.program, sizeof hello.program) != meeting_.program)
            return fmt::format(
                "rank {} runs another build of the program than rank 0; start the same file on all ranks", hello.rank);
        if (const TcpSocket& other = peers_[hello.rank]; other.open())
            return fmt::format(
                "rank {} has already connected, from {}; two processes have RANK={}, or MASTER_PORT is another run's",
                hello.rank, other.peer_address(), hello.rank);
        return {};
    }

    // Prints each problem of an address once, and at most kMostWarnings in total.
    void turn_away(Guest& guest, const std::string& why) {
        const std::string text = guest.address + ": " + why;
        guest.socket.close();
        if (turned_away_.size() >= kMostWarnings || std::count(turned_away_.begin(), turned_away_.end(), text)) return;
        turned_away_.push_back(text);
        std::fprintf(stderr, "warning: rank 0 dropped a connection from %s\n", text.c_str());
    }

    // Frees the places of ranks that disconnected, so that a restarted rank may take one.
    void forget_lost_peers() {
        for (size_t r = 1; r < peers_.size(); r++) {
            if (!peers_[r].open() || !peers_[r].peer_closed()) continue;
            std::fprintf(stderr,
                         "warning: rank %zu (%s) has left before all ranks had connected; waiting for it again\n", r,
                         peers_[r].peer_address().c_str());
            peers_[r].close();
        }
    }

    [[noreturn]] void give_up() const {
        std::string text;
        const int count = missing();
        int listed = 0;
        for (size_t r = 1; r < peers_.size() && listed < 16; r++)
            if (!peers_[r].open()) text += fmt::format("{}{}", listed++ ? ", " : "", r);
        if (count > listed) text += fmt::format(" and {} more", count - listed);
        text = fmt::format("rank{} {} did not connect to {}:{} within {:g} s (--timeout-start)", count == 1 ? "" : "s",
                           text, meeting_.address.host, listener_.port(), meeting_.timeout);
        for (const std::string& one : turned_away_) text += "; dropped " + one;
        throw Error(ExitCode::communication, text);
    }

    TcpSocket listener_;
    const TcpMeeting& meeting_;
    std::vector<TcpSocket>& peers_;
    std::deque<Guest> guests_;  // oldest first
    std::vector<std::string> turned_away_;
};

// Returns "" if this process is welcome, else why the connection did not help. Throws if rank 0 refuses it.
std::string introduce(TcpSocket& socket, int rank, const TcpMeeting& meeting, double deadline) {
    Challenge challenge;
    if (!socket.receive(&challenge, sizeof challenge, deadline))
        return "a program that listens there does not answer like rank 0: " + socket.error();
    if (std::memcmp(challenge.magic, kMagic, sizeof kMagic) != 0) return "another program listens there";
    Hello hello = {};
    std::memcpy(hello.magic, kMagic, sizeof kMagic);
    hello.rank = rank;
    hello.world = meeting.world;
    std::snprintf(hello.program, sizeof hello.program, "%s", meeting.program.c_str());
    prove(hello, meeting.secret, challenge);
    Verdict verdict;
    if (!socket.send(&hello, sizeof hello) || !socket.receive(&verdict, sizeof verdict, deadline))
        return socket.error();
    const std::string refusal = peer_text(verdict.refusal, sizeof verdict.refusal);
    if (!refusal.empty())
        refuse("rank 0 at {}:{} refuses this process: {}", meeting.address.host, meeting.address.port, refusal);
    return {};
}

}  // namespace

std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    if (getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
        throw Error(ExitCode::failure, "the operating system gives no random bytes (getrandom)");
    return bytes;
}

void meet_as_hub(TcpSocket listener, const TcpMeeting& meeting, std::vector<TcpSocket>& peers) {
    Hub(std::move(listener), meeting, peers).wait_for_all();
}

TcpSocket meet_as_spoke(int rank, const TcpMeeting& meeting) {
    const TcpAddress& address = meeting.address;
    const double deadline = deadline_of(meeting);
    std::string problem;
    do {
        TcpSocket socket = TcpSocket::connect(address.host, address.port, deadline, problem);
        if (!socket.open()) break;
        problem = introduce(socket, rank, meeting, std::min(deadline, monotonic_seconds() + 2 * meeting.hello_limit));
        if (problem.empty()) return socket;
        usleep(100'000);
    } while (monotonic_seconds() < deadline);
    throw Error(ExitCode::communication,
                "could not reach rank 0 at {}:{} within {:g} s (--timeout-start): {}; are MASTER_ADDR and MASTER_PORT "
                "right, is rank 0 running there, does a firewall block the port?",
                address.host, address.port, meeting.timeout, problem);
}

}  // namespace llmc
