// How the ranks of a run find each other over TCP. Rank 0 listens. Every other rank connects, says who it is and proves
// that it knows the run's secret; rank 0 answers with a welcome or with the reason why it is refused.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "llmc/comm/backend.h"
#include "llmc/comm/tcp_socket.h"

namespace llmc {

// Waits until all other ranks have connected and puts each one's socket at its place in `peers`. Any other
// connection is closed with a warning. Throws Error(communication) when the time is over; `peers` then has those who
// came.
void meet_as_hub(TcpSocket listener, const TcpMeeting& meeting, std::vector<TcpSocket>& peers);

// Connects to rank 0, retrying until the time is over. Throws Error(communication) if rank 0 cannot be reached and
// Error(bad_flags) with rank 0's reason if it refuses this process.
TcpSocket meet_as_spoke(int rank, const TcpMeeting& meeting);

// Random bytes that nobody can guess.
std::string random_bytes(size_t count);

}  // namespace llmc
