// TCP sockets with deadlines, and how the ranks of a run find each other over them. Rank 0 listens. Every other rank
// connects, says who it is and proves that it knows the run's secret. Rank 0 answers with a welcome or with the reason
// for its refusal.
#pragma once
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

struct sockaddr;

namespace llmc {

// A deadline that never passes. All deadlines here are in monotonic_seconds().
constexpr double kForever = std::numeric_limits<double>::infinity();

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
    // Also false if the deadline passes before everything has arrived.
    [[nodiscard]] bool receive(void* data, size_t bytes, double deadline = kForever);
    // Takes the bytes that have already arrived, at most `bytes`. Returns their number, or -1 if the peer is gone.
    ptrdiff_t receive_available(void* data, size_t bytes);
    // Sends as much as fits into the socket's buffer: for the last message to a peer that may no longer read.
    void send_without_waiting(const void* data, size_t bytes);
    const std::string& error() const { return error_; }

    bool peer_closed() const;           // or its machine is gone; callable from any thread
    std::string peer_address() const;   // digits, not a host name
    std::string local_address() const;  // digits; "::" or "0.0.0.0" for a listener on all interfaces
    bool peer_is_this_machine() const;
    int descriptor() const { return descriptor_; }

    // Listens on the interface that has the address of `host`, or on all interfaces if this machine has none with it,
    // or if `host` is the name of this machine and only leads to itself. Port 0 takes any free port. Throws
    // Error(communication).
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

// True for a numeric address that only this machine reaches: ::1 and 127.x.x.x.
bool is_loopback(const std::string& address);

struct TcpAddress {
    std::string host;
    int port = 0;
};
// The settings that all ranks of a run over TCP share. Rank 0 listens at the address; the others connect to it.
struct TcpMeeting {
    TcpAddress address;
    int world = 1;
    std::string program;     // hash of the executable, at most 31 characters
    std::string secret;      // a rank must know it to be admitted; "" admits every process
    double timeout = 600;    // seconds to wait for the other ranks; 0: forever
    double hello_limit = 5;  // seconds from accepting a connection to its complete hello
};

// Waits until all other ranks have connected, and puts each one's socket at its place in `peers`. Closes any other
// connection with a warning. Throws Error(communication) on a timeout; `peers` then holds the ranks that came.
void meet_as_hub(TcpSocket listener, const TcpMeeting& meeting, std::vector<TcpSocket>& peers);

// Connects to rank 0, and retries until the timeout. Throws Error(communication) if rank 0 cannot be reached, and
// Error(bad_flags) with rank 0's reason if it refuses this process.
TcpSocket meet_as_spoke(int rank, const TcpMeeting& meeting);

// Cryptographically random bytes.
std::string random_bytes(size_t count);

}  // namespace llmc
