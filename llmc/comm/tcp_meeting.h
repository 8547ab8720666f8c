// How the ranks of a run find each other over TCP. Rank 0 listens. Every other rank connects, says who it is and proves
// that it knows the run's secret. Rank 0 answers with a welcome or with the reason for its refusal.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/comm/tcp_socket.h"

namespace llmc {

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
    double timeout = 600;    // seconds to wait for the other ranks
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
