// How this process was started (alone, by mpirun, by srun, or with RANK and WORLD_SIZE as torchrun sets them), and how
// the ranks therefore find each other. Only reads the environment.
#pragma once
#include <functional>
#include <string>

#include "llmc/base/text.h"

namespace llmc {

struct LaunchInfo {
    std::string launcher = "none";  // "none", "mpirun", "srun", "environment" (RANK, WORLD_SIZE)
    int rank = 0;
    int world = 1;          // 0 if only MPI knows
    std::string lone_rank;  // name of a variable with a rank, if none has a number of ranks
    bool mpi = false;       // the launcher supports MPI
    std::string address;    // MASTER_ADDR, or "" if not set
    int port = 29500;       // MASTER_PORT
    std::string secret;     // LLMC_SECRET, or the launcher's job id, or "" if neither is known
    int tasks = 1;          // number of tasks in the Slurm job

    // True if no launcher started this process.
    bool alone() const { return launcher == "none"; }
};

std::string host_name();  // the name of this machine in its network

// Throws Error(bad_flags) if variables contradict each other. The first of these that is set decides: Open MPI's
// variables; RANK, WORLD_SIZE and MASTER_ADDR together; srun's; PMI's and PMIx's; RANK and WORLD_SIZE.
LaunchInfo launch_environment(const std::function<const char*(const char*)>& get);
LaunchInfo launch_environment();

struct BuildFeatures {
    bool cuda, mpi, nccl;
};

struct CommChoice {
    enum class Transport { self, mpi, tcp } transport = Transport::self;
    bool nccl = false;
};

// Values of --comm.
enum class CommKind { automatic, self, mpi, tcp, nccl };
template <>
inline constexpr WordTable<CommKind> kWords<CommKind> = {{"auto", CommKind::automatic},
                                                         {"self", CommKind::self},
                                                         {"mpi", CommKind::mpi},
                                                         {"tcp", CommKind::tcp},
                                                         {"nccl", CommKind::nccl}};

// Resolves `--comm` for this launch. Throws Error(bad_flags) with advice if it is impossible.
CommChoice choose_comm(CommKind requested, const LaunchInfo& launch, const BuildFeatures& build);

// Sets variables that CUDA and NCCL read when they start, if the ranks use NCCL. Values that are set already stay.
void set_environment(const CommChoice& choice);

}  // namespace llmc
