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
    size_t largest_message = size_t{1} << 30;  // bytes in one call of MPI; tests reduce it
};

// Meets the other ranks. Refuses a start whose ranks contradict each other: different binaries, or tasks of srun that
// each believe they are alone. Afterwards call open_device() for local_rank(), then attach_device().
Comm connect(const ConnectOptions& options, const LaunchInfo& launch);

// Ends a process of a multi-rank run after an error: prints "rank 2: ..." and exits with the error's code, without
// MPI_Finalize, so mpirun ends the other ranks. Wrong flags fail on every rank, so the others give rank 0 half a second
// to print the error and the launcher to end them: then it is printed once. Stop the watchdog first.
[[noreturn]] void leave(const LaunchInfo& launch, const Error& error);

// The device number for a rank. If a machine shows every rank only its own GPU, that device is number 0.
int device_of_rank(const Comm& comm, int visible_devices);

}  // namespace llmc
