#include "llmc/comm/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "llmc/comm/operation_log.h"
#include "llmc/device/error.h"

namespace llmc {
namespace {

int milliseconds_until(double deadline) {
    return static_cast<int>(std::clamp((deadline - monotonic_seconds()) * 1e3, 0.0, 1e6));
}

void set_option(int descriptor, int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof value);
}

// One attempt at one address; what failed, "" for success.
std::string try_connect(int descriptor, const addrinfo& address, double deadline) {
    const int flags = fcntl(descriptor, F_GETFL);
    fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
    int status = ::connect(descriptor, address.ai_addr, address.ai_addrlen);
    if (status != 0 && errno == EINPROGRESS) {
        pollfd wanted = {descriptor, POLLOUT, 0};
        // An address that swallows packets is given five seconds, so that others have their turn.
        status = poll(&wanted, 1, std::min(5000, milliseconds_until(deadline)));
        if (status == 0) return "no answer";
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) return std::strerror(error);
    } else if (status != 0) {
        return std::strerror(errno);
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

// Small messages leave at once; a machine that vanished is noticed within half a minute.
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
            error_ = n == 0 ? "it closed the connection" : std::strerror(errno);
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

void TcpSocket::limit_receive(double seconds) {
    timeval limit = {};
    limit.tv_sec = static_cast<time_t>(seconds);
    limit.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(limit.tv_sec)) * 1e6);
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

bool TcpSocket::peer_closed() const {
    pollfd wanted = {descriptor_, POLLRDHUP, 0};
    return poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

std::string TcpSocket::peer_address() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    char text[NI_MAXHOST] = "";
    if (getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
        return {};
    // IPv4 seen through an IPv6 socket.
    return std::strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text;
}

bool TcpSocket::peer_is_this_machine() const {
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    char text[NI_MAXHOST] = "";
    getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &size);
    getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    const std::string mine = std::strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text, peer = peer_address();
    return peer == mine || peer == "::1" || peer.starts_with("127.");
}

TcpSocket TcpSocket::listen(int port) {
    // One IPv6 socket hears IPv4 as well; machines without IPv6 get an IPv4 one.
    for (const int family : {AF_INET6, AF_INET}) {
        TcpSocket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!socket.open()) continue;
        set_option(socket.descriptor_, SOL_SOCKET, SO_REUSEADDR, 1);
        sockaddr_storage address = {};
        socklen_t size = 0;
        if (family == AF_INET6) {
            set_option(socket.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
            sockaddr_in6& a = reinterpret_cast<sockaddr_in6&>(address);
            a.sin6_family = AF_INET6, a.sin6_addr = in6addr_any, a.sin6_port = htons(static_cast<uint16_t>(port));
            size = sizeof a;
        } else {
            sockaddr_in& a = reinterpret_cast<sockaddr_in&>(address);
            a.sin_family = AF_INET, a.sin_addr.s_addr = INADDR_ANY, a.sin_port = htons(static_cast<uint16_t>(port));
            size = sizeof a;
        }
        if (bind(socket.descriptor_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
            ::listen(socket.descriptor_, 1024) == 0)
            return socket;
        if (family == AF_INET6 && errno == EADDRNOTAVAIL) continue;
        throw Error(
            ExitCode::communication,
            strprintf("rank 0 cannot listen on port %d: %s; choose another MASTER_PORT", port, std::strerror(errno)));
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

TcpSocket TcpSocket::accept(double deadline) {
    while (true) {
        pollfd wanted = {descriptor_, POLLIN, 0};
        const int ready = poll(&wanted, 1, milliseconds_until(deadline));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return TcpSocket();
        TcpSocket socket(accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
        if (!socket.open()) continue;
        socket.set_options();
        return socket;
    }
}

TcpSocket TcpSocket::connect(const std::string& host, int port, double deadline, std::string& error) {
    do {
        addrinfo hints = {}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
        if (status != 0) error = gai_strerror(status);
        for (const addrinfo* a = found; a; a = a->ai_next) {
            TcpSocket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (!socket.open()) continue;
            error = try_connect(socket.descriptor_, *a, deadline);
            if (!error.empty()) continue;
            socket.set_options();
            freeaddrinfo(found);
            return socket;
        }
        if (found) freeaddrinfo(found);
        usleep(100'000);
    } while (monotonic_seconds() < deadline);
    return TcpSocket();
}

}  // namespace llmc
