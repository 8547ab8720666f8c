// TCP sockets with deadlines, name resolution and listening; and the meeting of the ranks (tcp.h).
#include "llmc/comm/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "llmc/base/error.h"
#include "llmc/comm/operation_log.h"

namespace llmc {

// ---- sockets --------------------------------------------------------------------------------------------------------
namespace {

constexpr const char* kClosed = "it closed the connection";

int milliseconds_until(double deadline) {
    return static_cast<int>(std::clamp((deadline - monotonic_seconds()) * 1e3, 0.0, 1e6));
}

// Waits for one of `events` on a socket. Returns false if the deadline passes first. A signal does not end the wait.
bool wait_until(double deadline, int descriptor, short events) {
    while (true) {
        pollfd wanted = {descriptor, events, 0};
        const int ready = poll(&wanted, 1, milliseconds_until(deadline));
        if (ready >= 0 || errno != EINTR) return ready > 0;
    }
}

void set_option(int descriptor, int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof value);
}

std::string numeric(const sockaddr_storage& address, socklen_t size) {
    char text[NI_MAXHOST] = "";
    if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST))
        return {};
    // IPv4 addresses seen through an IPv6 socket begin with ::ffff:.
    return std::strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text;
}

// The address that `ask`, which is getpeername or getsockname, gives for a socket; "" if it gives none.
std::string address_from(decltype(getpeername)* ask, int descriptor) {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (ask(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
    return numeric(address, size);
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The addresses of a name. On failure the list is empty and `error` gives the reason.
AddressList resolve(const std::string& host, int port, std::string& error) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0) error = gai_strerror(status);
    return {status == 0 ? found : nullptr, freeaddrinfo};
}

// Tries one address once. Returns the reason of a failure, or "" for success.
std::string try_connect(int descriptor, const addrinfo& address, double deadline) {
    const int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
    if (::connect(descriptor, address.ai_addr, address.ai_addrlen) != 0) {
        if (errno != EINPROGRESS) return std::strerror(errno);
        // An address that swallows packets gets five seconds, so that the other addresses have their turn.
        if (!wait_until(std::min(deadline, monotonic_seconds() + 5), descriptor, POLLOUT)) return "no answer";
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) return std::strerror(error);
    }
    fcntl(descriptor, F_SETFL, flags);
    return {};
}

}  // namespace

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

void TcpSocket::close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

// Sends small messages at once, and notices a vanished machine within half a minute.
void TcpSocket::set_options() {
    set_option(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

bool TcpSocket::send(const void* data, size_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t n = ::send(descriptor_, p, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            error_ = std::strerror(errno);
            return false;
        }
        p += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool TcpSocket::receive(void* data, size_t bytes) {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t n = recv(descriptor_, p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            error_ = n == 0 ? kClosed : std::strerror(errno);
            return false;
        }
        p += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

void TcpSocket::send_without_waiting(const void* data, size_t bytes) {
    [[maybe_unused]] const ssize_t n = ::send(descriptor_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool TcpSocket::receive_until(double deadline, void* data, size_t bytes) {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
        if (!wait_until(deadline, descriptor_, POLLIN)) {
            error_ = "it does not answer";
            return false;
        }
        const ptrdiff_t n = receive_available(p, bytes);
        if (n < 0) return false;
        p += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

ptrdiff_t TcpSocket::receive_available(void* data, size_t bytes) {
    const ssize_t n = recv(descriptor_, data, bytes, MSG_DONTWAIT);
    if (n > 0) return n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    error_ = n == 0 ? kClosed : std::strerror(errno);
    return -1;
}

bool TcpSocket::peer_closed() const {
    pollfd wanted = {descriptor_, POLLRDHUP, 0};
    return poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

std::string TcpSocket::peer_address() const { return address_from(getpeername, descriptor_); }
std::string TcpSocket::local_address() const { return address_from(getsockname, descriptor_); }

bool TcpSocket::peer_is_this_machine() const {
    const std::string peer = peer_address();
    return peer == local_address() || is_loopback(peer);
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

bool TcpSocket::listen_at(const sockaddr* address, unsigned size) {
    TcpSocket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.open()) return false;
    set_option(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) set_option(socket.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.descriptor_, address, size) != 0 || ::listen(socket.descriptor_, 1024) != 0) return false;
    *this = std::move(socket);
    return true;
}

TcpSocket TcpSocket::listen(const std::string& host, int port) {
    TcpSocket listener;
    const auto try_address = [&](const sockaddr* address, unsigned size) {
        if (listener.listen_at(address, size)) return true;
        if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) return false;
        throw Error(ExitCode::communication, "rank 0 cannot listen on port {}: {}; choose another MASTER_PORT", port,
                    std::strerror(errno));
    };
    std::string ignored;
    const AddressList found = resolve(host, port, ignored);
    for (const addrinfo* a = found.get(); a; a = a->ai_next) {
        // Debian's /etc/hosts maps a machine's own name to 127.0.1.1, where no other machine could connect.
        sockaddr_storage address = {};
        std::memcpy(&address, a->ai_addr, a->ai_addrlen);
        if (is_loopback(numeric(address, a->ai_addrlen)) && !is_loopback(host)) continue;
        if (try_address(a->ai_addr, a->ai_addrlen)) return listener;
    }
    // An IPv6 socket accepts IPv4 connections as well; the second attempt is for machines without IPv6.
    sockaddr_in6 any6 = {};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<uint16_t>(port));
    if (try_address(reinterpret_cast<sockaddr*>(&any6), sizeof any6)) return listener;
    sockaddr_in any4 = {};
    any4.sin_family = AF_INET;
    any4.sin_port = any6.sin6_port;
    if (try_address(reinterpret_cast<sockaddr*>(&any4), sizeof any4)) return listener;
    throw Error(ExitCode::communication, "this machine allows no TCP sockets");
}

int TcpSocket::port() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

TcpSocket TcpSocket::accept(std::string& address) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    TcpSocket socket(accept4(descriptor_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC));
    if (!socket.open()) return socket;
    socket.set_options();
    address = numeric(peer, size);
    return socket;
}

TcpSocket TcpSocket::connect(const std::string& host, int port, double deadline, std::string& error) {
    do {
        const AddressList found = resolve(host, port, error);
        for (const addrinfo* a = found.get(); a; a = a->ai_next) {
            TcpSocket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (!socket.open()) continue;
            error = try_connect(socket.descriptor_, *a, deadline);
            if (!error.empty()) continue;
            socket.set_options();
            return socket;
        }
        usleep(100'000);
    } while (monotonic_seconds() < deadline);
    return TcpSocket();
}

// ---- the meeting ----------------------------------------------------------------------------------------------------
// The messages of a meeting, all of fixed size:
//
//   hub -> spoke   Challenge   a magic number and random bytes, sent when the connection is accepted
//   spoke -> hub   Hello       rank, world size, program, and a hash of these, the random bytes and the secret
//   hub -> spoke   Verdict     empty: welcome; else the reason of the refusal
//
// The secret itself is never sent. The hash is XXH3, which is not cryptographic: it keeps out other runs, port scanners
// and strangers on a shared network. It does not protect against an attacker who can read or change the traffic. After
// the meeting, traffic is neither encrypted nor authenticated.
namespace {

constexpr size_t kMostGuests = 128;   // connections held at once whose hello has not arrived
constexpr size_t kMostWarnings = 12;  // about rejected connections
constexpr char kMagic[8] = {'L', 'L', 'M', 'C', 'r', 'k', '0', '2'};

struct Challenge {
    char magic[8];
    char random[16];
};

struct Hello {
    char magic[8];
    int32_t rank, world;
    char program[32];
    unsigned char proof[16];
};

struct Verdict {
    char refusal[256];
};

void prove(Hello& hello, const std::string& secret, const Challenge& challenge) {
    std::string text = secret;
    text.append(reinterpret_cast<const char*>(&challenge), sizeof challenge);
    text.append(reinterpret_cast<const char*>(&hello), offsetof(Hello, proof));
    text += secret;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
    static_assert(sizeof canonical == sizeof hello.proof);
    std::memcpy(hello.proof, &canonical, sizeof canonical);
}

// Compares in a time that does not depend on where the proofs differ.
bool same_proof(const Hello& a, const Hello& b) {
    unsigned different = 0;
    for (size_t i = 0; i < sizeof a.proof; i++) different |= static_cast<unsigned>(a.proof[i] ^ b.proof[i]);
    return different == 0;
}

class Hub {
public:
    Hub(TcpSocket listener, const TcpMeeting& meeting, std::vector<TcpSocket>& peers)
        : listener_(std::move(listener)), meeting_(meeting), peers_(peers) {
        peers_.clear();
        peers_.resize(meeting.world);
    }

    void wait_for_all() {
        const double deadline = monotonic_seconds() + meeting_.timeout;
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
            if (guests_.size() >= kMostGuests) {
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
        if (!same_proof(hello, expected))
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
    if (!socket.receive_until(deadline, &challenge, sizeof challenge))
        return "a program that listens there does not answer like rank 0: " + socket.error();
    if (std::memcmp(challenge.magic, kMagic, sizeof kMagic) != 0) return "another program listens there";
    Hello hello = {};
    std::memcpy(hello.magic, kMagic, sizeof kMagic);
    hello.rank = rank;
    hello.world = meeting.world;
    std::snprintf(hello.program, sizeof hello.program, "%s", meeting.program.c_str());
    prove(hello, meeting.secret, challenge);
    Verdict verdict;
    if (!socket.send(&hello, sizeof hello) || !socket.receive_until(deadline, &verdict, sizeof verdict))
        return socket.error();
    const std::string refusal = peer_text(verdict.refusal, sizeof verdict.refusal);
    if (!refusal.empty())
        throw Error(ExitCode::bad_flags, "rank 0 at {}:{} refuses this process: {}", meeting.address.host,
                    meeting.address.port, refusal);
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
    const double deadline = monotonic_seconds() + meeting.timeout;
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
