// Blocking TCP sockets, with deadlines where a peer may not be there yet.
#pragma once
#include <cstddef>
#include <string>

namespace llmc {

class TcpSocket {
public:
    TcpSocket() = default;
    explicit TcpSocket(int descriptor) : descriptor_(descriptor) {}
    ~TcpSocket() { close(); }
    TcpSocket(TcpSocket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    TcpSocket& operator=(TcpSocket&& other) noexcept;

    bool open() const { return descriptor_ >= 0; }
    void close();

    // False when the peer is gone; error() says how.
    [[nodiscard]] bool send(const void* data, size_t bytes);
    [[nodiscard]] bool receive(void* data, size_t bytes);
    // As much as goes at once; for a last word to a peer that may not listen.
    void send_without_waiting(const void* data, size_t bytes);
    void limit_receive(double seconds);  // 0: none
    const std::string& error() const { return error_; }

    bool peer_closed() const;          // from any thread
    std::string peer_address() const;  // numeric
    bool peer_is_this_machine() const;

    // Listens on all interfaces; port 0: any free one. Throws Error(communication).
    static TcpSocket listen(int port);
    int port() const;
    // The next connection, or a closed socket when `deadline` (monotonic_seconds()) has passed.
    TcpSocket accept(double deadline);
    // A connection, tried again and again until the deadline; then `error` says what was wrong last.
    static TcpSocket connect(const std::string& host, int port, double deadline, std::string& error);

private:
    void set_options();
    int descriptor_ = -1;
    std::string error_;
};

}  // namespace llmc
