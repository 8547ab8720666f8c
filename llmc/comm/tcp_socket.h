// TCP sockets with deadlines, and how they are opened: by name resolution, listening and connecting.
#pragma once
#include <cstddef>
#include <string>

struct sockaddr;

namespace llmc {

// A TCP socket. Calls block unless a comment says otherwise.
class TcpSocket {
public:
    TcpSocket() = default;
    explicit TcpSocket(int descriptor) : descriptor_(descriptor) {}
    ~TcpSocket() { close(); }
    TcpSocket(TcpSocket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    TcpSocket& operator=(TcpSocket&& other) noexcept;

    bool open() const { return descriptor_ >= 0; }
    void close();

    // False if the peer is gone; error() says why.
    [[nodiscard]] bool send(const void* data, size_t bytes);
    [[nodiscard]] bool receive(void* data, size_t bytes);
    // The same, but also false if `deadline` (monotonic_seconds()) passes before everything has arrived.
    [[nodiscard]] bool receive_until(double deadline, void* data, size_t bytes);
    // Takes the bytes that have already arrived, at most `bytes`. Returns their number, or -1 if the peer is gone.
    ptrdiff_t receive_available(void* data, size_t bytes);
    // Sends as much as fits into the socket's buffer: for the last message to a peer that may no longer read.
    void send_without_waiting(const void* data, size_t bytes);
    const std::string& error() const { return error_; }

    bool peer_closed() const;           // callable from any thread
    std::string peer_address() const;   // digits, not a host name
    std::string local_address() const;  // digits; "::" or "0.0.0.0" for a listener on all interfaces
    bool peer_is_this_machine() const;
    int descriptor() const { return descriptor_; }

    // Listens on the interface that has the address of `host`, or on all interfaces if this machine has none with it.
    // Port 0 takes any free port. Throws Error(communication).
    static TcpSocket listen(const std::string& host, int port);
    int port() const;
    // The next connection and the numeric address it comes from, or a closed socket if none is waiting.
    TcpSocket accept(std::string& address);
    // Connects, and retries until the deadline. On failure the socket is closed and `error` gives the last reason.
    static TcpSocket connect(const std::string& host, int port, double deadline, std::string& error);

private:
    void set_options();
    bool listen_at(const sockaddr* address, unsigned size);
    int descriptor_ = -1;
    std::string error_;
};

// True for "localhost", ::1 and 127.x.x.x.
bool is_loopback(const std::string& host);

}  // namespace llmc
