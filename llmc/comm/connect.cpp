// connect(): chooses a transport from the launch environment, meets the other ranks, and compares their binaries.
// build: per device
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "llmc/comm/backend.h"
#include "llmc/comm/tcp.h"

namespace llmc {

// A hash of this program's file: ranks with different builds would train different models.
static std::string program_hash() {
    std::FILE* f = std::fopen("/proc/self/exe", "rb");
    if (!f) return "unknown";
    XXH64_hash_t hash = 0;
    static unsigned char buffer[1 << 16];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) hash = XXH64(buffer, n, hash);
    std::fclose(f);
    return fmt::format("{:016x}", hash);
}

static void check_mpi_world(const LaunchInfo& launch, int rank, int world) {
    if (launch.world == 0 && launch.rank != rank)
        refuse(
            "PMIX_RANK={} is in the environment, but MPI sees rank {} of {}: start the ranks with the mpirun of "
            "this program's MPI, or unset PMIX_RANK",
            launch.rank, rank, world);
    if (launch.world == 0 || launch.world == world) return;
    if (launch.launcher == "srun")
        refuse(
            "srun started {} tasks, but MPI sees {}: they would train alone, on top of each other. Use srun "
            "--mpi=pmix (or pmi2; srun --mpi=list shows which), or mpirun, or set MASTER_ADDR and MASTER_PORT",
            launch.world, world);
    refuse("mpirun started {} ranks, but MPI sees {}: this program was built with another MPI than that mpirun's",
           launch.world, world);
}

Comm connect(const ConnectOptions& options, const LaunchInfo& launch) {
    const CommChoice choice =
        choose_comm(options.backend, launch, {LLMC_CUDA != 0, built_with_mpi(), built_with_nccl()});
    if (choice.transport == CommChoice::Transport::self) return Comm::self(options.order);
    set_environment(choice);  // before MPI, which may start CUDA
    const std::string program = program_hash();
    std::shared_ptr<Transport> transport;
    if (choice.transport == CommChoice::Transport::mpi) {
        transport = make_mpi_transport(options.largest_message);
        check_mpi_world(launch, transport->rank(), transport->world());
    } else {
        transport = make_tcp_transport(launch.rank, {.address = {launch.address, launch.port},
                                                     .world = launch.world,
                                                     .program = program,
                                                     .secret = launch.secret,
                                                     .timeout = options.timeout});
    }
    Comm comm = connect_transport(std::move(transport), choice.nccl, options.order);
    comm.require_equal("program", program);
    return comm;
}

void leave(const LaunchInfo& launch, const Error& error) {
    if (launch.rank > 0 && error.code() == ExitCode::bad_flags)
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::fflush(stdout);
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, error.what());
    std::fflush(stderr);
    std::_Exit(static_cast<int>(error.code()));
}

int device_of_rank(const Comm& comm, int visible_devices) {
    return visible_devices > 0 ? comm.local_rank() % visible_devices : 0;
}

}  // namespace llmc
