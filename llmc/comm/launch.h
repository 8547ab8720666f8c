// How this process was started: alone, by mpirun, by srun, or with RANK and WORLD_SIZE in its environment as torchrun
// does; and what that means for how the ranks find each other. Reads the environment, talks to nobody.
#pragma once
#include <functional>
#include <string>

#include "llmc/base/words.h"

namespace llmc {

struct LaunchInfo {
    std::string launcher = "none";  // "none", "mpirun", "srun", "environment" (RANK, WORLD_SIZE)
    int rank = 0;
    int world = 1;        // 0: only MPI knows
    bool mpi = false;     // the launcher speaks to MPI
    std::string address;  // MASTER_ADDR, "" if not set
    int port = 29500;     // MASTER_PORT
    std::string secret;   // LLMC_SECRET, or the launcher's job id, or "" if neither is known

    bool alone() const { return launcher == "none"; }
};

// Throws Error(bad_flags) for variables that contradict each other. In this order: mpirun's variables; RANK, WORLD_SIZE
// and MASTER_ADDR, all three; PMI's; srun's; RANK and WORLD_SIZE.
LaunchInfo launch_environment(const std::function<const char*(const char*)>& get);
LaunchInfo launch_environment();

struct BuildFeatures {
    bool cuda, mpi, nccl;
};

struct CommChoice {
    enum class Transport { self, mpi, tcp } transport = Transport::self;
    bool nccl = false;
};

// What --comm asks for.
enum class CommKind { automatic, self, mpi, tcp, nccl };
template <>
inline constexpr Word<CommKind> kWords<CommKind>[] = {{"auto", CommKind::automatic},
                                                      {"self", CommKind::self},
                                                      {"mpi", CommKind::mpi},
                                                      {"tcp", CommKind::tcp},
                                                      {"nccl", CommKind::nccl}};

// What a request means under this launch. Throws Error(bad_flags) with advice if it cannot be met.
CommChoice choose_comm(CommKind requested, const LaunchInfo& launch, const BuildFeatures& build);

}  // namespace llmc
