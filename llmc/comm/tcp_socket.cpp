// The system calls behind TcpSocket (tcp.h).
#include "llmc/comm/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/files.h"
#include "llmc/comm/launch.h"

namespace llmc {

constexpr uint32_t kVanished = 30'000;  // milliseconds without an answer

static void set_option(int descriptor, int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof value);
}

static std::string numeric(const sockaddr* address, socklen_t size) {
    char text[NI_MAXHOST] = "";
    if (getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST)) return {};
    // IPv4 addresses seen through an IPv6 socket begin with ::ffff:.
    return std::strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text;
}

// The address that `ask`, which is getpeername or getsockname, gives for a socket; "" if it gives none.
static std::string address_from(decltype(getpeername)* ask, int descriptor) {
    sockaddr_storage storage = {};
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    socklen_t size = sizeof storage;
    return ask(descriptor, address, &size) == 0 ? numeric(address, size) : "";
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The addresses of a name. On failure the list is empty and `error` gives the reason.
static AddressList resolve(const std::string& host, int port, std::string& error) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0) error = gai_strerror(status);
    return {status == 0 ? found : nullptr, freeaddrinfo};
}

// True for the host name of this machine, with or without its domain. /etc/hosts often maps it to 127.0.1.1, where no
// other machine could connect.
static bool is_own_name(const std::string& host) {
    const auto first_label = [](const std::string& name) { return name.substr(0, name.find('.')); };
    const std::string label = first_label(host_name());
    return strcasecmp(first_label(host).c_str(), label.c_str()) == 0 && strcasecmp(label.c_str(), "localhost") != 0;
}

// Tries one address once. Returns the reason of a failure, or "" for success.
static std::string try_connect(int descriptor, const addrinfo& address, double deadline) {
    const int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
    if (::connect(descriptor, address.ai_addr, address.ai_addrlen) != 0) {
        if (errno != EINPROGRESS) return std::strerror(errno);
        // An address that swallows packets gets five seconds, so that the other addresses have their turn.
        if (!wait_for_event(descriptor, POLLOUT, std::min(deadline, monotonic_seconds() + 5))) return "no answer";
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) return std::strerror(error);
    }
    fcntl(descriptor, F_SETFL, flags);
    return {};
}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

void TcpSocket::close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

// Sends small messages at once, and notices within half a minute that the peer's machine is gone while nothing is on
// its way to it. peer_closed() notices it otherwise. (TCP_USER_TIMEOUT would do both, but it would also break the
// connection to a rank that only reads nothing for as long, because it is busy.)
void TcpSocket::set_options() {
    set_option(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, 3);
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

void TcpSocket::send_without_waiting(const void* data, size_t bytes) {
    [[maybe_unused]] const ssize_t n = ::send(descriptor_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool TcpSocket::receive(void* data, size_t bytes, double deadline) {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
        if (!wait_for_event(descriptor_, POLLIN, deadline)) {
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
    error_ = n == 0 ? "it closed the connection" : std::strerror(errno);
    return -1;
}

bool TcpSocket::peer_closed() const {
    pollfd wanted = {descriptor_, POLLRDHUP, 0};
    if (poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR))) return true;
    // Bytes that were sent again and again, and that nothing acknowledges.
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    return info.tcpi_retransmits > 0 && info.tcpi_last_ack_recv > kVanished;
}

std::string TcpSocket::peer_address() const { return address_from(getpeername, descriptor_); }
std::string TcpSocket::local_address() const { return address_from(getsockname, descriptor_); }

bool TcpSocket::peer_is_this_machine() const {
    const std::string peer = peer_address();
    return peer == local_address() || is_loopback(peer);
}

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

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
    std::string ignored;
    // Else on all interfaces. An IPv6 socket accepts IPv4 connections as well; 0.0.0.0 is for machines without IPv6.
    for (const std::string& name : {host, std::string("::"), std::string("0.0.0.0")}) {
        const AddressList found = resolve(name, port, ignored);
        for (const addrinfo* a = found.get(); a; a = a->ai_next) {
            if (is_loopback(numeric(a->ai_addr, a->ai_addrlen)) && is_own_name(host)) continue;
            if (listener.listen_at(a->ai_addr, a->ai_addrlen)) return listener;
            if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) continue;
            throw Error(ExitCode::communication, "rank 0 cannot listen on port {}: {}; choose another MASTER_PORT",
                        port, std::strerror(errno));
        }
    }
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
    sockaddr_storage storage = {};
    auto* const peer = reinterpret_cast<sockaddr*>(&storage);
    socklen_t size = sizeof storage;
    TcpSocket socket(accept4(descriptor_, peer, &size, SOCK_CLOEXEC));
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
            error = socket.open() ? try_connect(socket.descriptor_, *a, deadline) : std::strerror(errno);
            if (!error.empty()) continue;
            socket.set_options();
            return socket;
        }
        usleep(100'000);
    } while (monotonic_seconds() < deadline);
    return TcpSocket();
}

}  // namespace llmc
