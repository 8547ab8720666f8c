// Joins the processes of a run into one Comm.
#pragma once
#include <string>

#include "llmc/comm/comm.h"
#include "llmc/comm/launch.h"

namespace llmc {

struct ConnectOptions {
    CommKind backend = CommKind::automatic;
    ReduceOrder order = ReduceOrder::any;
    double timeout = 600;                      // seconds to wait for the other ranks
    size_t largest_message = size_t{1} << 30;  // bytes in one call of MPI; tests make it small
};

// Meets the other ranks, and refuses a start in which they contradict each other: another binary on one of them, or
// tasks of srun that know nothing of each other. To be followed by open_device() for local_rank() and attach_device().
Comm connect(const ConnectOptions& options, const LaunchInfo& launch);

// How a process of several ends after an error: says "rank 2: ..." and leaves with the error's exit code, without
// MPI_Finalize, on which mpirun ends the other ranks. Rank 0 goes first: what all ranks would say is heard once where a
// launcher ends the others. Stop the watchdog before.
[[noreturn]] void leave(const LaunchInfo& launch, const Error& error);

// The device for a rank: machines that show every rank its own GPU alone have one device, number 0.
int device_of_rank(const Comm& comm, int visible_devices);

}  // namespace llmc
